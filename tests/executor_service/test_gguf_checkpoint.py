# SPDX-License-Identifier: Apache-2.0
"""Conversion of a GGUF file: exact values, rows in Hugging Face's order, nothing silently ignored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from executor_service.gguf_checkpoint import convert
from protos.errors import ConfigError
from tests.fixtures.tiny_gguf import FFN, HEAD_DIM, HIDDEN, NUM_KEY_HEADS, TOKENS, write_tiny_gguf


def test_every_tensor_comes_back_exactly_under_its_name(tmp_path: Path) -> None:
    expected = write_tiny_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.pop("model.embed_tokens.weight").shape == (len(TOKENS), HIDDEN)
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(tensors[name], values, err_msg=name)


def test_config_describes_the_model(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["intermediate_size"], config["head_dim"]) == (HIDDEN, FFN, HEAD_DIM)
    assert config["num_key_value_heads"] == NUM_KEY_HEADS
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 0


def test_tokenizer_splits_digits_and_keeps_special_tokens_whole(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("ab ab12<|end|>").ids == [6, 7, 3, 4, 0]
    assert tokenizer.decode([6, 7, 3, 4, 0]) == "ab ab12"


def test_progress_counts_tensors_to_the_end(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    seen: list[tuple[int, int]] = []
    convert(tmp_path / "tiny.gguf", tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == [(i, 20) for i in range(1, 21)]


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"extra_tensor": "blk.0.attn_q.bias"}, "blk.0.attn_q.bias"),
        ({"extra_tensor": "rope_freqs.weight"}, "rope_freqs.weight"),
        ({"llama__rope__scaling__type": "yarn"}, "llama.rope.scaling.type=yarn"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, extra: dict[str, str], named: str) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", **extra)
    with pytest.raises(ConfigError, match=named):
        convert(tmp_path / "tiny.gguf", tmp_path)
