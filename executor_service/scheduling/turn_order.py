# SPDX-License-Identifier: Apache-2.0
"""Sequences in the order of their rank: higher priority first, then first come first served.

Does not know what they wait for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from executor_service.scheduling.sequence import RowKey, Sequence


def rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


class TurnOrder:
    """Ranks are unique and stay what they are while a sequence is in here."""

    def __init__(self) -> None:
        self._ordered: list[Sequence] = []
        self._keys: set[RowKey] = set()

    def __len__(self) -> int:
        return len(self._ordered)

    def __contains__(self, key: RowKey) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._ordered)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._ordered)

    @property
    def first(self) -> Sequence:
        return self._ordered[0]

    @property
    def last(self) -> Sequence:
        return self._ordered[-1]

    def add(self, sequence: Sequence) -> None:
        insort(self._ordered, sequence, key=rank)
        self._keys.add(sequence.key)

    def remove(self, sequence: Sequence) -> None:
        del self._ordered[bisect_left(self._ordered, sequence.rank, key=rank)]
        self._keys.remove(sequence.key)
