# SPDX-License-Identifier: Apache-2.0
"""A field that is in the contract and not yet honoured is refused by name, never passed over.

Knows messages by their descriptors. Which fields a server does not honour is that server's to say.
"""

from __future__ import annotations

from functools import lru_cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from protos.errors import NotSupported


def refuse_unsupported(message: Message, unsupported: frozenset[str], path: str = "") -> None:
    """Raises NotSupported for the first field that is set and stands in ``unsupported``.

    ``unsupported`` holds full names, such as "packserve.v1.SamplingParameters.min_p".
    """
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if field.full_name in unsupported:
            raise NotSupported(f"{name} is not supported")
        if field.message_type is None or not _holds_any(field.message_type, unsupported):
            continue
        if field.is_repeated:
            for i, item in enumerate(value):
                refuse_unsupported(item, unsupported, f"{name}[{i}].")
        else:
            refuse_unsupported(value, unsupported, f"{name}.")


@lru_cache(maxsize=256)
def _holds_any(descriptor: Descriptor, unsupported: frozenset[str]) -> bool:
    """Whether a message of this type can have such a field, at any depth. Map entries are plain values here."""
    if descriptor.GetOptions().map_entry:
        return False
    seen, todo = {descriptor.full_name}, [descriptor]
    while todo:
        for field in todo.pop().fields:
            if field.full_name in unsupported:
                return True
            if field.message_type is not None and field.message_type.full_name not in seen:
                seen.add(field.message_type.full_name)
                todo.append(field.message_type)
    return False
