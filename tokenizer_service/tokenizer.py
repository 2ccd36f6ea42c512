# SPDX-License-Identifier: Apache-2.0
"""Text to token ids, by the model's own files: `tokenizers` for tokenizer.json, `sentencepiece` for tokenizer.model.

The spelling of a control token inside a text becomes that token, as Hugging Face does it: rendered chats depend on it.
A tokenizer never cuts or pads, never changes once loaded, and is safe to use from many threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import sentencepiece
import tokenizers

from protos.batch import Int32Array
from protos.errors import ConfigError
from protos.vocabulary import Vocabulary, added_tokens, read_json


class Tokenizer(Protocol):
    @property
    def vocabulary(self) -> Vocabulary: ...

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[Int32Array]:
        """One row of ids for each text; add_special_tokens puts the model's own begin and end tokens around it."""
        ...


def load_tokenizer(directory: Path) -> Tokenizer:
    """From tokenizer.json, else tokenizer.model."""
    vocabulary = Vocabulary.load(directory)
    if (directory / "tokenizer.json").is_file():
        return FastTokenizer(directory / "tokenizer.json", vocabulary)
    return SentencePieceTokenizer(directory, vocabulary)


class FastTokenizer:
    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower class
            raise ConfigError(f"{path}: {error}") from error
        # Some files were saved with a length inside. These two calls are the last that change the tokenizer: a change
        # beside a running encode is what raises "Already borrowed".
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[Int32Array]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]


class SentencePieceTokenizer:
    """A text is cut at the spellings of control and added tokens; what lies between is encoded piece by piece.

    BOS and EOS are added as tokenizer_config.json says, else as Llama does: BOS only.
    """

    def __init__(self, directory: Path, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._model = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
        self._id_of_spelling = _spellings(self._model, directory)
        longest_first = sorted(self._id_of_spelling, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        config = read_json(directory / "tokenizer_config.json")
        self._begin = [self._model.bos_id()] if config.get("add_bos_token", True) else []
        self._end = [self._model.eos_id()] if config.get("add_eos_token", False) else []
        if -1 in self._begin + self._end:
            raise ConfigError(f"{directory}/tokenizer_config.json: adds a token that tokenizer.model does not have")

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[Int32Array]:
        rows = [self._encode(text) for text in texts]
        if add_special_tokens:
            rows = [self._begin + row + self._end for row in rows]
        return [np.array(row, np.int32) for row in rows]

    def _encode(self, text: str) -> list[int]:
        row: list[int] = []
        for i, part in enumerate(self._cut.split(text)):
            row += [self._id_of_spelling[part]] if i % 2 else self._model.encode(part)
        return row


def _spellings(model: sentencepiece.SentencePieceProcessor, directory: Path) -> dict[str, int]:
    """Of control tokens, which sentencepiece itself never finds in a text, and of tokens added beside the model."""
    own = [i for i in range(model.vocab_size()) if model.is_control(i) or model.is_unknown(i)]
    added = added_tokens(directory)
    for token in added:
        if token.get("lstrip") or token.get("rstrip"):
            raise ConfigError(f"{directory}: added token {token['content']!r} takes spaces; this needs tokenizer.json")
    return {model.id_to_piece(i): i for i in own} | {token["content"]: token["id"] for token in added}
