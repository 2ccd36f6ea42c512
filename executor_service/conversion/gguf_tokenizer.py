# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that lies in a GGUF file's metadata, as Hugging Face's tokenizer files.

Answers for BPE over bytes and over pieces with scores: its pre-tokenizer by name, its merges, its added tokens, its
chat template. Does not tokenize.
"""

from __future__ import annotations

import json
from typing import Any

from protos.errors import ConfigError

Json = dict[str, Any]

# Values of llama.cpp's token types.
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
# By tokenizer.ggml.pre.
PRE_TOKENIZERS = {"gpt-2": [BYTE_LEVEL], "smollm": [DIGITS, BYTE_LEVEL]}

SPACE = "\u2581"
# By tokenizer.ggml.model.
MODELS = {"gpt2": "byte-level BPE", "llama": "pieces with scores"}


def tokenizer_files(metadata: Json) -> dict[str, str]:
    """Content by file name."""
    ggml = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    check_understood(ggml)
    files = {
        "tokenizer.json": json.dumps(tokenizer(ggml), ensure_ascii=False),
        "tokenizer_config.json": json.dumps(tokenizer_config(ggml), indent=2) + "\n",
    }
    if template := metadata.get("tokenizer.chat_template"):
        files["chat_template.jinja"] = template
    return files


def check_understood(ggml: Json) -> None:
    if ggml["model"] not in MODELS:
        known = ", ".join(f"{name} ({what})" for name, what in MODELS.items())
        raise ConfigError(f"tokenizer.ggml.model={ggml['model']}: not one of {known}")
    is_byte_level = ggml["model"] == "gpt2"
    if is_byte_level and ggml.get("pre") not in PRE_TOKENIZERS:
        raise ConfigError(f"tokenizer.ggml.pre={ggml.get('pre')}: not one of {', '.join(PRE_TOKENIZERS)}")
    # llama.cpp puts a space before text with pieces where the file does not say that it must not.
    flags = {"add_bos_token": False, "add_eos_token": False, "add_space_prefix": not is_byte_level}
    for name, default in flags.items():
        if ggml.get(name, default) and (is_byte_level or name != "add_bos_token"):
            raise ConfigError(f"tokenizer.ggml.{name}=true: only false is converted")
    known_types = {NORMAL, CONTROL, USER_DEFINED} | (set() if is_byte_level else {BYTE})
    if others := set(ggml["token_type"]) - known_types:
        raise ConfigError(
            f"tokenizer.ggml.token_type has {min(others)}: not one of {', '.join(map(str, sorted(known_types)))}"
        )


def tokenizer(ggml: Json) -> Json:
    parts = byte_level(ggml) if ggml["model"] == "gpt2" else scored_pieces(ggml)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(ggml["tokens"], ggml["token_type"]),
        **parts,
    }


def byte_level(ggml: Json) -> Json:
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[ggml["pre"]]},
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": token_ids(ggml["tokens"]),
            "merges": [merge.split(" ") for merge in ggml["merges"]],
        },
    }


def scored_pieces(ggml: Json) -> Json:
    """SentencePiece's BPE without a prefix space: what it does by scores, done by merges."""
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": None,
        "post_processor": first_token(ggml) if ggml.get("add_bos_token") else None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "vocab": token_ids(ggml["tokens"]),
            "merges": merges(ggml["tokens"], ggml["scores"]),
            "unk_token": ggml["tokens"][ggml["unknown_token_id"]],
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def token_ids(tokens: list[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def merges(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Every two pieces that make a third, the highest score of that first."""
    known = set(tokens)
    by_score = sorted(zip(scores, tokens, strict=True), key=lambda scored: -scored[0])
    return [
        (piece[:i], piece[i:])
        for _, piece in by_score
        for i in range(1, len(piece))
        if piece[:i] in known and piece[i:] in known
    ]


def first_token(ggml: Json) -> Json:
    token_id = ggml["bos_token_id"]
    token = ggml["tokens"][token_id]
    special, text = {"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special, text],
        "pair": [special, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def added_tokens(tokens: list[str], token_types: list[int]) -> list[Json]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": token_id, "content": token, **flags, "special": token_type == CONTROL}
        for token_id, (token, token_type) in enumerate(zip(tokens, token_types, strict=True))
        if token_type in (CONTROL, USER_DEFINED)
    ]


def tokenizer_config(ggml: Json) -> Json:
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
    names["unk_token"] = "unknown_token_id"  # noqa: S105
    special = {ours: ggml["tokens"][ggml[theirs]] for ours, theirs in names.items() if theirs in ggml}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
