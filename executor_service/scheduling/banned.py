# SPDX-License-Identifier: Apache-2.0
"""What a row's output may not contain, as the ids that it forbids always, and those that it forbids next: sequences of
ids, and strings of bytes.

The prompt never counts. Knows the bytes of ids; does not know masks or logits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from protos.batch import Int32Array, Int64Array
from protos.vocabulary import Vocabulary

# Sets of words whose ids are kept: the choices of a prompt share theirs, and callers repeat themselves.
MAX_KEPT_WORD_SETS = 32


class BadTokenIds:
    """sequences: each of at least one id; the output never completes one."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self.always: tuple[int, ...] = ()
        # By the last id but one: those before the last, and the last.
        self._endings: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for *begin, last in sequences:
            if begin:
                self._endings[begin[-1]].append((begin, last))
            else:
                self.always += (last,)

    def next_token_ids(self, output: Int32Array) -> list[int]:
        endings = self._endings.get(int(output[-1]), ()) if len(output) else ()
        return [last for begin, last in endings if output[-len(begin) :].tolist() == begin]


class Pieces:
    """The bytes of every id that has text, found by how they begin and by what they contain.

    Special ids have none: they put nothing between the bytes before and after them. Made once for a vocabulary; a
    search of 262,144 pieces takes about a millisecond.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = vocabulary.special_token_ids
        self._vocabulary = vocabulary
        token_ids = [i for i, piece in enumerate(vocabulary.pieces) if piece and i not in special]
        token_ids.sort(key=vocabulary.pieces.__getitem__)
        self._sorted = [vocabulary.pieces[i] for i in token_ids]
        self._token_ids = np.array(token_ids, np.int32)
        self._bytes = np.frombuffer(b"".join(self._sorted), np.uint8)
        # Piece i is bytes [ends[i], ends[i + 1]).
        self._ends = np.concatenate([[0], np.cumsum([len(piece) for piece in self._sorted], dtype=np.int64)])
        # The places of each byte value, one value behind the other.
        self._places = np.argsort(self._bytes, kind="stable").astype(np.int32)
        self._counts = np.bincount(self._bytes, minlength=256)
        self._first_place = np.concatenate([[0], np.cumsum(self._counts)])
        self.containing = lru_cache(MAX_KEPT_WORD_SETS)(self._containing)

    def text(self, token_id: int) -> bytes:
        return b"" if token_id in self._vocabulary.special_token_ids else self._vocabulary.piece(token_id)

    def beginning_with(self, prefix: bytes) -> list[int]:
        """Ids whose bytes begin so."""
        token_ids: list[int] = self._token_ids[beginning_with(self._sorted, prefix)].tolist()
        return token_ids

    def _containing(self, words: tuple[bytes, ...]) -> tuple[int, ...]:
        """Ids whose bytes contain any of the words."""
        places = np.unique(np.concatenate([self._containing_one(word) for word in words]))
        return tuple(self._token_ids[places].tolist())

    def _containing_one(self, word: bytes) -> Int64Array:
        """Places of the pieces. Looks at the rarest bytes first: few places are left for the others."""
        order = sorted(range(len(word)), key=lambda i: self._counts[word[i]])
        value = word[order[0]]
        starts = self._places[self._first_place[value] : self._first_place[value + 1]] - order[0]
        starts = starts[(starts >= 0) & (starts + len(word) <= len(self._bytes))]
        for i in order[1:]:
            starts = starts[self._bytes[starts + i] == word[i]]
        owners: Int64Array = np.searchsorted(self._ends, starts, side="right") - 1
        return owners[starts + len(word) <= self._ends[owners + 1]]


class BadBytes:
    """words: at least one, of at least one byte each; the output's bytes never contain one, however its ids cut them.

    Follows one row's output, which only grows.
    """

    def __init__(self, words: Iterable[bytes], pieces: Pieces) -> None:
        self._words = sorted(set(words))
        self._pieces = pieces
        self.always = pieces.containing(tuple(self._words))
        self._max_tail_bytes = max(map(len, self._words)) - 1
        self._tail = b""
        self._num_seen = 0

    def next_token_ids(self, output: Int32Array) -> list[int]:
        self._follow(output)
        found: list[int] = []
        for num_bytes in range(1, len(self._tail) + 1):
            begin = self._tail[-num_bytes:]
            for word in self._words[beginning_with(self._words, begin)]:
                if len(word) > num_bytes:
                    found += self._pieces.beginning_with(word[num_bytes:])
        return found

    def _follow(self, output: Int32Array) -> None:
        new = b"".join(map(self._pieces.text, output[self._num_seen :].tolist()))
        self._num_seen = len(output)
        tail = self._tail + new
        self._tail = tail[max(0, len(tail) - self._max_tail_bytes) :]


def beginning_with(strings: Sequence[bytes], prefix: bytes) -> slice:
    """Of strings in order: those that begin so stand together."""
    first = bisect_left(strings, prefix)
    return slice(first, bisect_right(strings, prefix, lo=first, key=lambda string: string[: len(prefix)]))
