# SPDX-License-Identifier: Apache-2.0
"""Conversion of a GGUF file: exact values, rows in Hugging Face's order, nothing silently ignored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from executor_service.conversion.gguf_checkpoint import convert
from executor_service.conversion.gguf_tokenizer import SPACE
from executor_service.models.model_config import LayerConfig, load_model_config
from executor_service.models.rope_config import RopeConfig
from executor_service.models.weights import load_weights
from protos.errors import ConfigError
from tests.fixtures.tiny_gguf import (
    FFN,
    GEMMA_HEAD_DIM,
    HEAD_DIM,
    HIDDEN,
    NUM_KEY_HEADS,
    PIECES,
    TOKENS,
    write_tiny_gguf,
)


@pytest.mark.parametrize(("architecture", "num_tokens"), [("llama", len(TOKENS)), ("gemma3", len(PIECES))])
def test_every_tensor_comes_back_exactly_under_its_name(tmp_path: Path, architecture: str, num_tokens: int) -> None:
    expected = write_tiny_gguf(tmp_path / "tiny.gguf", architecture=architecture)
    convert(tmp_path / "tiny.gguf", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.pop("model.embed_tokens.weight").shape == (num_tokens, HIDDEN)
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


def test_config_describes_gemma3(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", architecture="gemma3")
    convert(tmp_path / "tiny.gguf", tmp_path)
    config = load_model_config(tmp_path)
    assert config.architecture == "Gemma3ForCausalLM"
    assert config.layers == (LayerConfig(64, RopeConfig(1e4)),) * 2
    assert (config.head_dim, config.attention_scale) == (GEMMA_HEAD_DIM, 1 / 16)
    load_weights(tmp_path, config, torch.float32, torch.device("cpu"))


def test_tokenizer_of_pieces_joins_by_score(tmp_path: Path) -> None:
    """Spaces are pieces, unknown characters bytes, added tokens stay whole, the first token is put before."""
    write_tiny_gguf(tmp_path / "tiny.gguf", architecture="gemma3")
    convert(tmp_path / "tiny.gguf", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = tokenizer.encode("ab ab bab c<b>")
    assert encoded.tokens == ["<bos>", "ab", SPACE + "ab", SPACE, "ba", "b", SPACE, "<0x63>", "<b>"]
    assert tokenizer.decode(encoded.ids) == "ab ab bab c<b>"


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
        ({"architecture": "falcon"}, "general.architecture=falcon: only llama and gemma3 are converted"),
        ({"architecture": "gemma3", "gemma3__rope__scaling__type": "linear"}, "gemma3.rope.scaling.type=linear"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, extra: dict[str, str], named: str) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", **extra)
    with pytest.raises(ConfigError, match=named):
        convert(tmp_path / "tiny.gguf", tmp_path)
