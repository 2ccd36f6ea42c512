# SPDX-License-Identifier: Apache-2.0
"""Logprobs of ids as they come from an executor: read from the wire, checked, kept until a call takes them.

Plain numbers; does not know text, nor what an id belongs to.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protos.batch import WIRE_DTYPE, Int32Array
from protos.errors import InvalidRequest, PackserveError
from protos.packserve.v1 import executor_pb2

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of k ids, and of the likeliest ids in the place of each, likeliest first."""

    logprobs: Float32Array  # [k]
    top_token_ids: Int32Array  # [k, num_top]
    top_logprobs: Float32Array  # [k, num_top]

    def __len__(self) -> int:
        return len(self.logprobs)

    @property
    def num_top(self) -> int:
        return int(self.top_token_ids.shape[1])

    @classmethod
    def from_wire(cls, entry: executor_pb2.RowLogprobs | executor_pb2.PromptLogprobs) -> Logprobs:
        """Raises InvalidRequest where the numbers of numbers contradict each other."""
        num_ids, num_top = len(entry.logprobs) // 4, entry.num_top
        _check_size("logprobs", entry.logprobs, num_ids)
        _check_size("top_token_ids", entry.top_token_ids, num_ids * num_top)
        _check_size("top_logprobs", entry.top_logprobs, num_ids * num_top)
        return cls(
            _floats(entry.logprobs),
            np.frombuffer(entry.top_token_ids, WIRE_DTYPE).astype(np.int32, copy=False).reshape(num_ids, num_top),
            _floats(entry.top_logprobs).reshape(num_ids, num_top),
        )


class LogprobsBuffer:
    """What came and was not taken. max_top: how many alternatives the row asked for, or None for no logprobs."""

    __slots__ = ("_logprobs", "_max_top", "_num_top", "_top_logprobs", "_top_token_ids")

    def __init__(self, max_top: int | None) -> None:
        self._max_top = max_top
        # Fewer than asked for where the vocabulary has no more.
        self._num_top = max_top or 0
        self._logprobs = array("f")
        self._top_token_ids = array("i")
        self._top_logprobs = array("f")

    def __len__(self) -> int:
        return len(self._logprobs)

    @property
    def is_wanted(self) -> bool:
        return self._max_top is not None

    @property
    def num_numbers(self) -> int:
        """Of one id: its own, and those of the alternatives."""
        return 1 + self._num_top if self.is_wanted else 1

    def feed(self, new: Logprobs) -> None:
        """Copies. Raises PackserveError where they are not what was asked for, or no ids."""
        if self._max_top is None:
            raise PackserveError(f"the executor sent {len(new)} logprobs, the row asked for none")
        if new.num_top > self._max_top or (self._logprobs and new.num_top != self._num_top):
            raise PackserveError(f"the executor sent {new.num_top} alternatives, the row asked for {self._max_top}")
        if new.top_token_ids.size and new.top_token_ids.min() < 0:
            raise PackserveError(f"a likely token id is {new.top_token_ids.min()}, must be 0 or more")
        self._num_top = new.num_top
        self._logprobs.frombytes(new.logprobs.tobytes())
        self._top_token_ids.frombytes(new.top_token_ids.tobytes())
        self._top_logprobs.frombytes(new.top_logprobs.tobytes())

    def take(self, most: int) -> Logprobs | None:
        """The first ones; None where none were asked for, or none are there."""
        if not self._logprobs:
            return None
        num_top, most = self._num_top, min(most, len(self._logprobs))
        end = most * num_top
        taken = Logprobs(
            np.array(self._logprobs[:most], np.float32),
            np.array(self._top_token_ids[:end], np.int32).reshape(most, num_top),
            np.array(self._top_logprobs[:end], np.float32).reshape(most, num_top),
        )
        del self._logprobs[:most], self._top_token_ids[:end], self._top_logprobs[:end]
        return taken


def _check_size(name: str, wire: bytes, num_numbers: int) -> None:
    if len(wire) != 4 * num_numbers:
        raise InvalidRequest(f"{name} has {len(wire)} bytes, {num_numbers} numbers take {4 * num_numbers}")


def _floats(wire: bytes) -> Float32Array:
    return np.frombuffer(wire, "<f4").astype(np.float32, copy=False)
