# SPDX-License-Identifier: Apache-2.0
"""Logits against transformers over config variants, and the one flow from ids to logits that every model takes."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_service.models.decoder import Decoder
from executor_service.models.forward_batch import ForwardBatch, KvCache
from tests.fixtures.decoding import greedy, load_decoder, logits_of
from tests.fixtures.engine_run import EngineRun
from tests.fixtures.oracle import oracle_logits
from tests.fixtures.random_model import random_config, random_tensors, write_model, write_random_model
from tests.fixtures.repository import PACKAGES, modules
from tests.fixtures.scripted_model import write_scripted_model
from tests.fixtures.sequences import make_sequence

TOKEN_IDS = [(7 * i * i + 3 * i) % 320 for i in range(100)]
LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 64,
}


def assert_like_oracle(directory: Path) -> None:
    expected = oracle_logits(directory, TOKEN_IDS)
    difference = (logits_of(load_decoder(directory), TOKEN_IDS) - expected).abs().max()
    assert difference / expected.abs().max() < 1e-4


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "head_dim_is_not_hidden_over_heads": {"hidden_size": 320, "num_heads": 4, "head_dim": 16},
    "attention_bias": {"attention_bias": True},
    "sharded": {"shards": 3},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "theta_of_500000": {"rope_theta": 500_000.0},
    "one_kv_head": {"num_kv_heads": 1},
    "llama3_type": {"rope_scaling": {"type": "llama3"} | LLAMA3},
    "llama3_rope_type": {"rope_scaling": {"rope_type": "llama3"} | LLAMA3},
    "llama3_rope_parameters": {
        "rope_theta": ...,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500_000.0} | LLAMA3,
    },
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
    "longrope_beyond_the_original_context": {"rope_scaling": LONGROPE},
    "longrope_within_it": {
        "rope_scaling": LONGROPE | {"original_max_position_embeddings": 512, "attention_factor": 1.2}
    },
    "yarn": {"rope_scaling": {"rope_type": "yarn"} | YARN},
    "yarn_with_factors": {
        "rope_scaling": {"rope_type": "yarn", "attention_factor": 0.9, "beta_fast": 16.0, "truncate": False} | YARN
    },
}


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(tmp_path: Path, architecture: str, variant: str) -> None:
    assert_like_oracle(write_random_model(tmp_path, architecture, **VARIANTS[variant]))


@pytest.mark.parametrize("overrides", [{"mlp_bias": True}, {"head_dim": None}, {"head_dim": ...}])
def test_llama_logits_are_those_of_transformers(tmp_path: Path, overrides: dict[str, Any]) -> None:
    """B55 for head_dim null and absent."""
    assert_like_oracle(write_random_model(tmp_path, "LlamaForCausalLM", **overrides))


def test_qwen3_without_head_dim_takes_the_default_of_its_class(tmp_path: Path) -> None:
    """B55."""
    assert load_decoder(write_random_model(tmp_path, head_dim=...)).config.head_dim == 128
    assert_like_oracle(tmp_path)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_three_spellings_of_rope_give_equal_logits(tmp_path: Path, architecture: str, kind: str) -> None:
    """B53. The dtype is bfloat16 by either name."""
    parameters = {"linear": {"factor": 2.0}, "llama3": LLAMA3, "yarn": YARN}[kind]
    spellings: list[dict[str, Any]] = [
        {"rope_theta": 5e5, "rope_scaling": {"type": kind} | parameters, "torch_dtype": "bfloat16", "dtype": ...},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": kind} | parameters, "torch_dtype": "bfloat16", "dtype": ...},
        {
            "rope_theta": ...,
            "rope_parameters": {"rope_type": kind, "rope_theta": 5e5} | parameters,
            "dtype": "bfloat16",
        },
    ]
    logits = []
    for i, spelling in enumerate(spellings):
        directory = tmp_path / str(i)
        config = random_config(architecture, **spelling)
        write_model(directory, config, random_tensors(config, dtype=torch.bfloat16))
        decoder = load_decoder(directory)
        assert decoder.config.dtype == "bfloat16"
        assert decoder.config.layers[0].rope.theta == 5e5
        logits.append(logits_of(decoder, TOKEN_IDS))
        assert_like_oracle(directory)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    write_random_model(tmp_path)
    expected = logits_of(load_decoder(tmp_path), TOKEN_IDS)
    got = logits_of(load_decoder(tmp_path, dtype), TOKEN_IDS)
    assert got.dtype is torch.float32
    assert (got - expected).abs().max() / expected.abs().max() < 0.05


class StreamsDecoder(Decoder):
    """Each token is four residual streams, as in the DeepSeek-V4 family."""

    def embed(self, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, normed = super().embed(token_ids)
        return x[:, None].expand(-1, 4, -1), normed[:, None].expand(-1, 4, -1)  # [N, 4, C] each

    def layers(self, x: torch.Tensor, normed: torch.Tensor, batch: ForwardBatch, cache: KvCache) -> torch.Tensor:
        return super().layers(x.mean(1), normed.mean(1), batch, cache)[:, None] * torch.ones(4, 1)  # [R + Q, 4, C]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return super().logits(x.mean(1))


def test_a_model_with_several_streams_a_token_takes_the_same_flow(tmp_path: Path) -> None:
    write_random_model(tmp_path)
    expected = logits_of(load_decoder(tmp_path), TOKEN_IDS)
    torch.testing.assert_close(logits_of(load_decoder(tmp_path, cls=StreamsDecoder), TOKEN_IDS), expected)


def test_several_streams_a_token_through_scheduler_and_runner(tmp_path: Path) -> None:
    """Nothing between a step and its ids knows how a token is embedded: chunks, decode rows, two sequences."""
    write_random_model(tmp_path)

    def token_ids(decoder: Decoder) -> list[list[int]]:
        run = EngineRun(decoder, num_blocks=16, max_step_tokens=12)
        results = run.run([make_sequence(i, num_tokens=20 + i, max_output_tokens=6) for i in range(2)])
        return [results[i].token_ids for i in range(2)]

    assert token_ids(load_decoder(tmp_path, cls=StreamsDecoder)) == token_ids(load_decoder(tmp_path))


def test_no_name_or_branch_speaks_of_where_embedding_is_done() -> None:
    """There is one flow: ids reach the device, the model embeds them there. No flag, no second way."""
    for package in PACKAGES:
        for _, path in modules(package):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name in names(tree):
                has_place = any(word in name.lower() for word in ("host", "device", "supports", "cpu"))
                assert not (has_place and "embed" in name.lower()), f"{path}: {name}"
            if path.name == "weights.py":  # asks whether a head is tied to the table
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.If | ast.IfExp):
                    asked = {name for name in names(node.test) if "embed" in name.lower()}
                    assert asked <= {"max_position_embeddings"}, f"{path}:{node.lineno}"


def names(tree: ast.AST) -> set[str]:
    fields = ("id", "attr", "name", "arg")
    return {str(getattr(node, field)) for node in ast.walk(tree) for field in fields if getattr(node, field, None)}


def test_kv_bytes_per_token_is_what_the_cache_takes(tmp_path: Path) -> None:
    decoder = load_decoder(write_random_model(tmp_path, num_layers=3))
    cache = decoder.new_cache([5], 8, torch.device("cpu"))
    assert 3 * decoder.kv_bytes_per_token * 5 * 8 == sum(part.nbytes for layer in cache for part in layer)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_the_scripted_model_follows_its_chain(tmp_path: Path, architecture: str) -> None:
    decoder = load_decoder(write_scripted_model(tmp_path, [72, 105, 33, 257], architecture=architecture))
    assert greedy(decoder, [5, 72], 3) == [105, 33, 257]


def test_the_scripted_model_has_the_probabilities_of_its_law(tmp_path: Path) -> None:
    decoder = load_decoder(write_scripted_model(tmp_path, {65: {66: 0.6, 67: 0.3, 68: 0.1}}))
    p = logits_of(decoder, [9, 65])[-1].softmax(0)
    torch.testing.assert_close(p[66:69], torch.tensor([0.6, 0.3, 0.1]))
    assert p.sum() - p[66:69].sum() < 1e-6
