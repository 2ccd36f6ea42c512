# SPDX-License-Identifier: Apache-2.0
"""Every tensor of a checkpoint is used once, or the start stops and names it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from executor_service.models.model_config import load_model_config
from executor_service.models.weights import DecoderWeights, load_weights
from protos.errors import ConfigError
from tests.fixtures.decoding import CPU, load_decoder, logits_of
from tests.fixtures.oracle import oracle_logits
from tests.fixtures.random_model import random_config, random_tensors, write_model, write_random_model

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ATTENTION = "model.layers.0.self_attn."
TOKEN_IDS = list(range(0, 320, 11))


def load(directory: Path, dtype: torch.dtype = torch.float32) -> DecoderWeights:
    return load_weights(directory, load_model_config(directory), dtype, CPU)


def write_changed(directory: Path, changes: dict[str, torch.Tensor | None], **overrides: Any) -> Path:
    """A random model with tensors added or replaced, and those given as None left out."""
    config = random_config(**overrides)
    tensors = {name: t for name, t in (random_tensors(config) | changes).items() if t is not None}
    write_model(directory, config, tensors)
    return directory


def assert_like_oracle(directory: Path) -> None:
    expected = oracle_logits(directory, TOKEN_IDS)
    difference = (logits_of(load_decoder(directory), TOKEN_IDS) - expected).abs().max()
    assert difference / expected.abs().max() < 1e-4


def test_a_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    """B51: true without a head in the file."""
    weights = load(write_random_model(tmp_path, tie_word_embeddings=True))
    assert weights.head.data_ptr() == weights.embedding.data_ptr()
    assert_like_oracle(tmp_path)


def test_a_tied_head_that_the_file_repeats_is_the_embedding_itself(tmp_path: Path) -> None:
    """B51."""
    table = random_tensors(random_config(tie_word_embeddings=True))[EMBEDDING]
    weights = load(write_changed(tmp_path, {HEAD: table.clone()}, tie_word_embeddings=True))
    assert weights.head.data_ptr() == weights.embedding.data_ptr()


def test_another_head_in_the_file_of_a_tied_model_is_used_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B51: what the pinned transformers does, and says, too."""
    write_changed(tmp_path, {HEAD: torch.randn(320, 64)}, tie_word_embeddings=True)
    assert_like_oracle(tmp_path)
    assert "lm_head.weight differs from model.embed_tokens.weight: it is used" in caplog.text


@pytest.mark.parametrize("tie", [False, ...], ids=["false", "absent"])
@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_an_untied_model_without_a_head_is_refused(tmp_path: Path, architecture: str, tie: object) -> None:
    """B51: an absent key takes the class default, which is false for both."""
    write_changed(tmp_path, {HEAD: None}, architecture=architecture, tie_word_embeddings=tie)
    with pytest.raises(ConfigError, match=r"tensor lm_head\.weight is missing"):
        load(tmp_path)


def test_an_absent_tie_key_takes_the_head_in_the_file(tmp_path: Path) -> None:
    """B51."""
    assert_like_oracle(write_random_model(tmp_path, tie_word_embeddings=...))


@pytest.mark.parametrize("projection", ["q_proj", "k_proj", "v_proj", "o_proj"])
@pytest.mark.parametrize("attention_bias", [False, ...], ids=["false", "absent"])
def test_biases_that_the_config_does_not_speak_of_are_refused(
    tmp_path: Path, attention_bias: object, projection: str
) -> None:
    """B55. With attention_bias true they are applied: test_decoder.py."""
    name = f"{ATTENTION}{projection}.bias"
    write_changed(tmp_path, {name: torch.zeros(64)}, attention_bias=attention_bias)
    with pytest.raises(ConfigError, match=f"tensor {name} is not used"):
        load(tmp_path)


def test_missing_biases_are_named(tmp_path: Path) -> None:
    """B55."""
    name = f"{ATTENTION}k_proj.bias"
    write_changed(tmp_path, {name: None}, attention_bias=True)
    with pytest.raises(ConfigError, match=f"tensor {name} is missing"):
        load(tmp_path)


def test_a_tensor_of_another_shape_is_named_with_both(tmp_path: Path) -> None:
    write_changed(tmp_path, {f"{ATTENTION}k_proj.weight": torch.zeros(48, 64)})
    with pytest.raises(ConfigError, match=r"k_proj\.weight has shape \[48, 64\], the config asks \[32, 64\]"):
        load(tmp_path)


def test_a_tensor_of_another_type_is_named(tmp_path: Path) -> None:
    write_changed(tmp_path, {f"{ATTENTION}k_proj.weight": torch.zeros(32, 64, dtype=torch.int8)})
    with pytest.raises(ConfigError, match=r"k_proj\.weight is stored as I8 \(F32, BF16, F16 are read\)"):
        load(tmp_path)


def test_buffers_that_are_computed_are_passed_over_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    name = f"{ATTENTION}rotary_emb.inv_freq"
    load(write_changed(tmp_path, {name: torch.zeros(8)}))
    assert f"{name} is not read" in caplog.text


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    write_random_model(tmp_path, shards=2)
    twice = tmp_path / "model-00002-of-00002.safetensors"
    twice.write_bytes((tmp_path / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"tensor .* is in model-00001-of-00002\.safetensors too"):
        load(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_random_model(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model-00002-of-00003\.safetensors is missing \(1 of 3 files\)"):
        load(tmp_path)


def test_a_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = write_random_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"model\.safetensors: ends at byte"):
        load(tmp_path)


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    (write_random_model(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin is no safetensors file"):
        load(tmp_path)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("run", [torch.float32, torch.bfloat16])
def test_stored_types_become_the_run_type(tmp_path: Path, stored: torch.dtype, run: torch.dtype) -> None:
    weights = load(write_random_model(tmp_path, dtype=stored), run)
    expected = random_tensors(random_config(), dtype=stored)
    q, k, v = (expected[f"{ATTENTION}{name}_proj.weight"] for name in "qkv")
    assert torch.equal(weights.layers[0].qkv, torch.cat((q, k, v)).to(run))
    assert torch.equal(weights.embedding, expected[EMBEDDING].to(run))


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    write_random_model(tmp_path, shards=2)
    seen: list[tuple[int, int]] = []
    load_weights(tmp_path, load_model_config(tmp_path), torch.float32, CPU, lambda *numbers: seen.append(numbers))
    assert seen == sorted(seen)
    total = sum(tensor.nbytes for tensor in random_tensors(random_config()).values())
    assert seen[-1] == (total, total)
