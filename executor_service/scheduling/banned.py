# SPDX-License-Identifier: Apache-2.0
"""What a row's output may not contain, as the ids that it forbids always, and those that it forbids next: sequences of
ids, and strings of bytes.

The prompt never counts. Knows the bytes of ids; does not know masks or logits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from protos.batch import Int32Array, Int64Array
from protos.vocabulary import Vocabulary

# Sets of words whose ids are kept: the choices of a prompt share theirs, and callers repeat themselves.
MAX_KEPT_WORD_SETS = 32
# Of each, so many ends of a text: a word has at most 256 bytes, and each of its beginnings is one.
MAX_KEPT_STATES = 1024


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
        self._max_piece_bytes = max(map(len, self._sorted), default=0)
        # The places of each byte value, one value behind the other.
        self._places = np.argsort(self._bytes, kind="stable").astype(np.int32)
        self._counts = np.bincount(self._bytes, minlength=256)
        self._first_place = np.concatenate([[0], np.cumsum(self._counts)])
        self.words = lru_cache(MAX_KEPT_WORD_SETS)(self._words)

    def text(self, token_id: int) -> bytes:
        return b"" if token_id in self._vocabulary.special_token_ids else self._vocabulary.piece(token_id)

    def beginning_with(self, prefix: bytes) -> list[int]:
        """Ids whose bytes begin so."""
        if len(prefix) > self._max_piece_bytes:
            return []
        token_ids: list[int] = self._token_ids[beginning_with(self._sorted, prefix)].tolist()
        return token_ids

    def _words(self, words: frozenset[bytes]) -> Words:
        return Words(words, self)

    def containing(self, words: Iterable[bytes]) -> tuple[int, ...]:
        """Ids whose bytes contain any of the words."""
        places = np.unique(np.concatenate([self._containing_one(word) for word in words]))
        return tuple(self._token_ids[places].tolist())

    def _containing_one(self, word: bytes) -> Int64Array:
        """Places of the pieces. Looks at the rarest bytes first: few places are left for the others."""
        if len(word) > self._max_piece_bytes:
            return np.zeros(0, np.int64)
        order = sorted(range(len(word)), key=lambda i: self._counts[word[i]])
        value = word[order[0]]
        starts = self._places[self._first_place[value] : self._first_place[value + 1]] - order[0]
        starts = starts[(starts >= 0) & (starts + len(word) <= len(self._bytes))]
        for i in order[1:]:
            starts = starts[self._bytes[starts + i] == word[i]]
        owners: Int64Array = np.searchsorted(self._ends, starts, side="right") - 1
        return owners[starts + len(word) <= self._ends[owners + 1]]


class Words:
    """A set of words, as an automaton over bytes (Aho and Corasick, "Efficient string matching", 1975).

    A state is the longest end of the text with which a word begins; what it forbids is found once. always: ids that
    contain a word.
    """

    def __init__(self, words: Iterable[bytes], pieces: Pieces) -> None:
        self._words = sorted(words)
        self._pieces = pieces
        self.always = pieces.containing(self._words)
        self.forbidden = lru_cache(MAX_KEPT_STATES)(self._forbidden)

    def after(self, state: bytes, text: bytes) -> bytes:
        """The state that text leads to."""
        for i in range(len(text)):
            state = self._longest(state + text[i : i + 1])
        return state

    def _forbidden(self, state: bytes) -> frozenset[int]:
        """Ids that complete a word that a state's bytes, or a later part of them, began."""
        if not state:
            return frozenset()
        own = (self._pieces.beginning_with(word[len(state) :]) for word in self._longer(state))
        return self.forbidden(self._longest(state[1:])).union(*own)

    def _longest(self, text: bytes) -> bytes:
        while text and not self._longer(text):
            text = text[1:]
        return text

    def _longer(self, begin: bytes) -> list[bytes]:
        """Words that begin so and go on; a word itself stands before those."""
        found = self._words[beginning_with(self._words, begin)]
        return found[1:] if found and len(found[0]) == len(begin) else found


class BadBytes:
    """words: at least one, of at least one byte each; the output's bytes never contain one, however its ids cut them.

    Follows one row's output, which only grows.
    """

    def __init__(self, words: Iterable[bytes], pieces: Pieces) -> None:
        self._words = pieces.words(frozenset(words))
        self._pieces = pieces
        self._state = b""
        self._num_seen = 0
        self.always = self._words.always

    def next_token_ids(self, output: Int32Array) -> Iterable[int]:
        new = b"".join(map(self._pieces.text, output[self._num_seen :].tolist()))
        self._num_seen = len(output)
        self._state = self._words.after(self._state, new)
        return self._words.forbidden(self._state)


def beginning_with(strings: Sequence[bytes], prefix: bytes) -> slice:
    """Of strings in order: those that begin so stand together."""
    first = bisect_left(strings, prefix)
    begin = prefix.rstrip(b"\xff")
    end = bisect_left(strings, begin[:-1] + bytes([begin[-1] + 1]), lo=first) if begin else len(strings)
    return slice(first, end)
