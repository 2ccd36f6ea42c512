# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that lies in a GGUF file's metadata, as Hugging Face's tokenizer files.

Answers for byte-level BPE: its pre-tokenizer by name, its added tokens, its chat template. Does not tokenize.
"""

from __future__ import annotations

import json
from typing import Any

from protos.errors import ConfigError

Json = dict[str, Any]

# Values of llama.cpp's token types.
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
# By tokenizer.ggml.pre.
PRE_TOKENIZERS = {"gpt-2": [BYTE_LEVEL], "smollm": [DIGITS, BYTE_LEVEL]}


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
    if ggml["model"] != "gpt2":
        raise ConfigError(f"tokenizer.ggml.model={ggml['model']}: only gpt2 (byte-level BPE) is converted")
    if ggml.get("pre") not in PRE_TOKENIZERS:
        raise ConfigError(f"tokenizer.ggml.pre={ggml.get('pre')}: not one of {', '.join(PRE_TOKENIZERS)}")
    for name in ("add_bos_token", "add_eos_token", "add_space_prefix"):
        if ggml.get(name, False):
            raise ConfigError(f"tokenizer.ggml.{name}=true: only false is converted")
    if others := set(ggml["token_type"]) - {NORMAL, CONTROL, USER_DEFINED}:
        raise ConfigError(
            f"tokenizer.ggml.token_type has {min(others)}: not one of {NORMAL}, {CONTROL}, {USER_DEFINED}"
        )


def tokenizer(ggml: Json) -> Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(ggml["tokens"], ggml["token_type"]),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[ggml["pre"]]},
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(ggml["tokens"])},
            "merges": [merge.split(" ") for merge in ggml["merges"]],
        },
    }


def added_tokens(tokens: list[str], token_types: list[int]) -> list[Json]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": token_id, "content": token, **flags, "special": token_type == CONTROL}
        for token_id, (token, token_type) in enumerate(zip(tokens, token_types, strict=True))
        if token_type != NORMAL
    ]


def tokenizer_config(ggml: Json) -> Json:
    names = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
    names["unk_token"] = "unknown_token_id"  # noqa: S105
    special = {ours: ggml["tokens"][ggml[theirs]] for ours, theirs in names.items() if theirs in ggml}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
