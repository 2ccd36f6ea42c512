# SPDX-License-Identifier: Apache-2.0
"""Fields with presence: what one that is not set stands for. Does not know what a field means."""

from __future__ import annotations

from google.protobuf.message import Message


def is_true_or_unset(message: Message, field: str) -> bool:
    """Of an optional bool whose default is true."""
    return not message.HasField(field) or bool(getattr(message, field))
