# SPDX-License-Identifier: Apache-2.0
"""Layers whose keys and values are kept for equally long, and so share block tables.

Plain values: the model says which groups it has, scheduler and pool follow them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheGroup:
    """window: how many tokens a query sees, itself included; None for all before it."""

    window: int | None
    num_layers: int
