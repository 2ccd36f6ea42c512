# SPDX-License-Identifier: Apache-2.0
"""Token ids to text as they come, for one row. Knows bytes and UTF-8; does not know stop strings or the wire.

The bytes of all ids are put together and decoded once. What is sent is never taken back, nothing is tidied up, and the
sum of all pushes and `finish` is the same wherever the ids are cut. A byte that no character can use becomes one
U+FFFD; so does a character that the end leaves incomplete.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from protos.batch import Int32Array
from protos.vocabulary import Vocabulary

# An incomplete character has at most three bytes, so older context cannot matter.
NUM_CONTEXT_BYTES = 3
# Ids without text (special ones) that are passed over in search of those bytes.
MAX_CONTEXT_TOKENS = 64

TokenIds = Sequence[int] | Int32Array


class Detokenizer:
    """context: the ids before the first push, such as the prompt. Their text is not returned, but a character that
    begins there is completed, and a space that follows them is kept.

    skip_special_tokens: special ids have no text. Ids that were added but are not special always have.
    """

    def __init__(self, vocabulary: Vocabulary, *, context: TokenIds = (), skip_special_tokens: bool = True) -> None:
        self._vocabulary = vocabulary
        self._hidden: frozenset[int] = vocabulary.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        tail = self._context_bytes(context)
        self._decoder.decode(tail)
        at_start = not tail and len(context) <= MAX_CONTEXT_TOKENS
        self._strips_space = vocabulary.strips_leading_space and at_start

    def push(self, token_ids: TokenIds) -> str:
        """The text that these ids complete."""
        return self._first_stripped(self._decoder.decode(self._bytes(token_ids)))

    def finish(self) -> str:
        """The tail: U+FFFD where a character is incomplete, else nothing."""
        return self._first_stripped(self._decoder.decode(b"", final=True))

    def _bytes(self, token_ids: TokenIds) -> bytes:
        plain: Sequence[int] = token_ids if isinstance(token_ids, Sequence) else token_ids.tolist()
        piece, hidden = self._vocabulary.piece, self._hidden
        return b"".join([piece(token_id) for token_id in plain if token_id not in hidden])

    def _context_bytes(self, context: TokenIds) -> bytes:
        """The last few; empty where the context has no text."""
        tail = b""
        for i in range(len(context) - 1, max(len(context) - MAX_CONTEXT_TOKENS, 0) - 1, -1):
            tail = self._bytes(context[i : i + 1]) + tail
            if len(tail) >= NUM_CONTEXT_BYTES:
                break
        return tail

    def _first_stripped(self, text: str) -> str:
        if self._strips_space and text:
            self._strips_space = False
            return text.removeprefix(" ")
        return text
