# SPDX-License-Identifier: Apache-2.0
"""The host twin of the wire's TokenBatch: rows of token ids packed flat in three numpy arrays.

Checks the invariants and turns batches to and from the wire; no step here loops over ids. Does not know what a row is
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protos.errors import InvalidRequest
from protos.packserve.v1 import batch_pb2

Int32Array = npt.NDArray[np.int32]
UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

WIRE_DTYPE = np.dtype("<i4")


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Row i is ``token_ids[offsets[i]:offsets[i + 1]]`` and belongs to ``request_ids[i]``.

    request_ids: uint64 [B], unique. token_ids: int32 [N]. offsets: int64 [B + 1], from 0 to N, never decreasing.
    Raises InvalidRequest, with both numbers, where that does not hold.
    """

    request_ids: UInt64Array
    token_ids: Int32Array
    offsets: Int64Array

    def __post_init__(self) -> None:
        num_rows, num_tokens = len(self.request_ids), len(self.token_ids)
        if len(self.offsets) != num_rows + 1:
            raise InvalidRequest(f"offsets has {len(self.offsets)} entries, {num_rows} rows take {num_rows + 1}")
        if self.offsets[0] != 0:
            raise InvalidRequest(f"offsets[0] is {self.offsets[0]}, must be 0")
        if self.offsets[-1] != num_tokens:
            raise InvalidRequest(f"offsets[{num_rows}] is {self.offsets[-1]}, token_ids has {num_tokens} ids")
        falls = np.flatnonzero(self.offsets[1:] < self.offsets[:-1])
        if len(falls):
            i = int(falls[0])
            raise InvalidRequest(f"offsets[{i + 1}] is {self.offsets[i + 1]}, below offsets[{i}] = {self.offsets[i]}")
        if len(np.unique(self.request_ids)) != num_rows:
            raise InvalidRequest(
                f"request_ids has {num_rows} ids, {len(np.unique(self.request_ids))} of them different"
            )

    def __len__(self) -> int:
        return len(self.request_ids)

    def row(self, i: int) -> Int32Array:
        """The ids of row i, a view."""
        return self.token_ids[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[tuple[int, Int32Array]]:
        """(request id, ids) of each row."""
        for i, request_id in enumerate(self.request_ids.tolist()):
            yield request_id, self.row(i)

    @classmethod
    def pack(cls, request_ids: Sequence[int], rows: Sequence[Int32Array]) -> TokenBatch:
        """Rows put one behind the other, in the order given."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        token_ids = np.concatenate(rows, dtype=np.int32) if rows else np.empty(0, np.int32)
        return cls(np.array(request_ids, np.uint64), token_ids, offsets)

    @classmethod
    def from_wire(cls, message: batch_pb2.TokenBatch) -> TokenBatch:
        """A view of the message's bytes: read-only, and as long-lived as the array."""
        if len(message.token_ids) % WIRE_DTYPE.itemsize:
            raise InvalidRequest(f"token_ids has {len(message.token_ids)} bytes, an id takes {WIRE_DTYPE.itemsize}")
        offsets = np.array(message.offsets, np.int64) if message.offsets else np.zeros(1, np.int64)
        return cls(
            np.array(message.request_ids, np.uint64),
            np.frombuffer(message.token_ids, WIRE_DTYPE).astype(np.int32, copy=False),
            offsets,
        )

    def to_wire(self) -> batch_pb2.TokenBatch:
        return batch_pb2.TokenBatch(
            request_ids=self.request_ids.tolist(),
            token_ids=self.token_ids.astype(WIRE_DTYPE, copy=False).tobytes(),
            offsets=self.offsets.tolist(),
        )


def check_token_range(token_ids: Int32Array, vocabulary_size: int, what: str) -> None:
    """Raises InvalidRequest naming the first id outside [0, vocabulary_size)."""
    if not len(token_ids):
        return
    if token_ids.min() >= 0 and token_ids.max() < vocabulary_size:
        return
    i = int(np.flatnonzero((token_ids < 0) | (token_ids >= vocabulary_size))[0])
    raise InvalidRequest(f"{what}[{i}] is {token_ids[i]}, the model's vocabulary is [0, {vocabulary_size})")
