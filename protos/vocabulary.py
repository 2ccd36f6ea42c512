# SPDX-License-Identifier: Apache-2.0
"""The bytes that each token id stands for, as the tokenizer's files spell them.

Both services read it: text is put together from these bytes, and grammars are matched against them. Does not encode,
and does not know UTF-8: a character may be spread over several ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece

from protos.errors import ConfigError, InvalidRequest

Json = dict[str, Any]

# What sentencepiece writes for a space.
SPACE_MARK = "▁"
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")

# The tokenizer.json decoders of sentencepiece-like models, without and with the leading space taken off.
SPM_DECODER: list[Json] = [
    {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
SPM_STRIP_DECODER: list[Json] = [*SPM_DECODER, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]


@dataclass(frozen=True)
class Vocabulary:
    """pieces: the bytes of each id, b"" where an id has no text. Control tokens have their spelling.

    special_token_ids: those that text usually leaves out. strips_leading_space: one space at the very start of a text
    is the encoder's, and is dropped.
    """

    pieces: tuple[bytes, ...]
    special_token_ids: frozenset[int]
    strips_leading_space: bool

    def __len__(self) -> int:
        return len(self.pieces)

    def piece(self, token_id: int) -> bytes:
        """Also of ids past the end: a model's table may have more rows than its tokenizer has texts."""
        if token_id < 0:
            raise InvalidRequest(f"token id is {token_id}, must be at least 0")
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    @cached_property
    def sha256(self) -> str:
        """Of all three fields; equal wherever the bytes of every id are equal."""
        digest = hashlib.sha256(repr((self.strips_leading_space, sorted(self.special_token_ids))).encode())
        for piece in self.pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        return digest.hexdigest()

    @classmethod
    def load(cls, directory: Path) -> Vocabulary:
        """From tokenizer.json, else tokenizer.model."""
        if (path := directory / "tokenizer.json").is_file():
            return _from_tokenizer_json(path)
        if (path := directory / "tokenizer.model").is_file():
            return _from_sentencepiece(path)
        raise ConfigError(f"{directory}: has neither tokenizer.json nor tokenizer.model")


def read_json(path: Path) -> Json:
    """{} where there is no such file."""
    try:
        document = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: holds a {type(document).__name__}, not a JSON object")
    return document


def added_tokens(directory: Path) -> list[Json]:
    """Tokens that a tokenizer.model has beside its own, in the words of tokenizer.json: id, content, special."""
    plain = {i: {"content": content} for content, i in read_json(directory / "added_tokens.json").items()}
    described = read_json(directory / "tokenizer_config.json").get("added_tokens_decoder", {})
    tokens = plain | {int(i): token for i, token in described.items()}
    return [{"special": False, **token, "id": i} for i, token in tokens.items()]


def _from_tokenizer_json(path: Path) -> Vocabulary:
    document = read_json(path)
    try:
        to_bytes, strips_leading_space = _decoder(document["decoder"])
        vocabulary, added = document["model"]["vocab"], document["added_tokens"]
    except KeyError as error:
        raise ConfigError(f"{path}: has no {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if isinstance(vocabulary, list):  # Unigram: [token, score], the id is the place
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    return _assemble({i: to_bytes(token) for token, i in vocabulary.items()}, added, (), strips_leading_space)


def _decoder(decoder: Json | None) -> tuple[Callable[[str], bytes], bool]:
    """How a token becomes bytes, and whether a text's first space is dropped."""
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _byte_level_bytes, False
    if steps in (SPM_DECODER, SPM_STRIP_DECODER):
        return _spm_bytes, steps == SPM_STRIP_DECODER
    if [(step["type"], step.get("replacement")) for step in steps] == [("Metaspace", SPACE_MARK)]:
        return _spm_bytes, steps[0].get("prepend_scheme", "always") != "never"
    raise ConfigError(f"decoder is not understood: {json.dumps(decoder, ensure_ascii=False)}")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's: a printable byte is its own character, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    if BYTE_OF_CHARACTER.keys() >= set(token):
        return bytes(map(BYTE_OF_CHARACTER.__getitem__, token))
    return token.encode()


def _spm_bytes(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace(SPACE_MARK, " ").encode()


def _from_sentencepiece(path: Path) -> Vocabulary:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    token_ids = range(model.vocab_size())
    special = [i for i in token_ids if model.is_control(i) or model.is_unknown(i)]
    texts = {i: b"" if model.is_unused(i) else _spm_bytes(model.id_to_piece(i)) for i in token_ids}
    spaced = next((i for i in token_ids if model.id_to_piece(i).startswith(SPACE_MARK)), None)
    strips_leading_space = spaced is not None and model.decode([spaced]) != texts[spaced].decode()
    return _assemble(texts, added_tokens(path.parent), special, strips_leading_space)


def _assemble(
    texts: dict[int, bytes], added: list[Json], special: Iterable[int], strips_leading_space: bool
) -> Vocabulary:
    """An added token's content is its text as it stands."""
    texts |= {token["id"]: token["content"].encode() for token in added}
    pieces = tuple(texts.get(i, b"") for i in range(max(texts, default=-1) + 1))
    special_token_ids = frozenset(special) | {token["id"] for token in added if token["special"]}
    return Vocabulary(pieces, special_token_ids, strips_leading_space)
