# SPDX-License-Identifier: Apache-2.0
"""Rows too long for one message: their parts are kept until the last one comes.

Bounded by the context. Does not know what a row is for.
"""

from __future__ import annotations

import numpy as np

from protos.batch import Int32Array
from protos.errors import InvalidRequest, LimitReached, PromptTooLong

# A sender splits the row that meets the end of a message: one at a time.
MAX_ROWS = 16


class RowParts:
    """By request id. A row that is refused is refused with all its parts."""

    def __init__(self, max_context_tokens: int) -> None:
        self._max_context_tokens = max_context_tokens
        self._parts: dict[int, list[Int32Array]] = {}
        self._refused: set[int] = set()

    def __len__(self) -> int:
        """Rows that wait for more."""
        return len(self._parts)

    def join(self, request_id: int, token_ids: Int32Array, continues: bool) -> Int32Array | None:
        """The whole row with its last part, None before. Raises InvalidRequest where there is too much of it."""
        parts = self._parts.get(request_id, [])
        if not continues:
            self._parts.pop(request_id, None)
            return np.concatenate([*parts, token_ids]) if parts else token_ids
        num_tokens = sum(map(len, parts)) + len(token_ids)
        if not len(token_ids):
            raise InvalidRequest("a row continues after a part of 0 ids, a part has at least 1")
        if request_id not in self._parts and len(self._parts) >= MAX_ROWS:
            raise LimitReached(f"{len(self._parts)} rows wait for their last parts, a stream has at most {MAX_ROWS}")
        if num_tokens >= self._max_context_tokens:
            raise PromptTooLong(f"the row has {num_tokens} tokens so far, the context is {self._max_context_tokens}")
        self._parts.setdefault(request_id, parts).append(token_ids.copy())
        return None

    def refuse(self, request_id: int, continues: bool) -> None:
        """Parts still to come are passed over."""
        self._parts.pop(request_id, None)
        if continues:
            self._refused.add(request_id)

    def is_refused(self, request_id: int, continues: bool) -> bool:
        """Of a part that comes after its row was refused; the last one ends that."""
        if request_id not in self._refused:
            return False
        if not continues:
            self._refused.discard(request_id)
        return True

    def drop(self, request_id: int) -> bool:
        """Whether there was anything of it. What is still to come is passed over."""
        was_there = request_id in self._parts
        if was_there:
            self.refuse(request_id, continues=True)
        return was_there

    def drop_all(self) -> list[int]:
        """The request ids that had parts."""
        request_ids = list(self._parts)
        self._parts.clear()
        return request_ids
