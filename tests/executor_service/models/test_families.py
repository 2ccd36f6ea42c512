# SPDX-License-Identifier: Apache-2.0
"""Each family's logits against transformers, over windows that cross the edges of chunks and tiles, and the same bits
alone, in chunks and in company."""

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from executor_service.models.decoder import Decoder
from executor_service.scheduling.cache_group import CacheGroup
from executor_service.scheduling.sequence import Sequence
from tests.fixtures.decoding import Rows, load_decoder
from tests.fixtures.engine_run import EngineRun
from tests.fixtures.oracle import oracle_logits, transformers
from tests.fixtures.random_model import write_random_model
from tests.fixtures.sequences import make_sequence

NUM_TOKENS = 150
SEQUENCES = [[(row * 31 + 7 * i * i + 3 * i) % 320 for i in range(NUM_TOKENS)] for row in range(3)]
WINDOW = 48
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
SLIDING, FULL = "sliding_attention", "full_attention"

VARIANTS: dict[str, dict[str, Any]] = {
    "qwen2": {"architecture": "Qwen2ForCausalLM"},
    "qwen2_tied": {"architecture": "Qwen2ForCausalLM", "tie_word_embeddings": True, "head_dim": ...},
    "qwen2_window": {
        "architecture": "Qwen2ForCausalLM",
        "num_layers": 3,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
    },
    "qwen3_window_not_used": {"use_sliding_window": False, "sliding_window": WINDOW, "max_window_layers": 0},
    "qwen3_layer_types": {
        "num_layers": 3,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": [SLIDING, FULL, SLIDING],
    },
    "mistral": {"architecture": "MistralForCausalLM"},
    "mistral_window": {"architecture": "MistralForCausalLM", "sliding_window": WINDOW, "head_dim": ...},
    "mistral_wide_heads": {"architecture": "MistralForCausalLM", "head_dim": 32, "hidden_size": 64},
    "mistral_window_of_one": {"architecture": "MistralForCausalLM", "sliding_window": 1},
    "gemma3": {"architecture": "Gemma3ForCausalLM", "num_layers": 3},
    "gemma3_defaults": {
        "architecture": "Gemma3ForCausalLM",
        "num_layers": 6,
        "head_dim": ...,
        "query_pre_attn_scalar": ...,
        "rope_theta": ...,
        "sliding_window_pattern": ...,
        "tie_word_embeddings": ...,
        "eos_token_id": ...,
        "hidden_activation": ...,
    },
    "gemma3_layer_types": {"architecture": "Gemma3ForCausalLM", "layer_types": [FULL, SLIDING]},
    "gemma3_final_cap": {"architecture": "Gemma3ForCausalLM", "final_logit_softcapping": 2.0},
    "gemma3_bias": {"architecture": "Gemma3ForCausalLM", "attention_bias": True},
    "gemma3_old_rope": {
        "architecture": "Gemma3ForCausalLM",
        "rope_theta": 5e5,
        "rope_local_base_freq": 1e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3_new_rope": {
        "architecture": "Gemma3ForCausalLM",
        "rope_theta": ...,
        "rope_parameters": {
            FULL: {"rope_type": "yarn", "rope_theta": 5e5, **YARN},
            SLIDING: {"rope_type": "default", "rope_theta": 1e3},
        },
    },
}


def assert_like(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got - expected).abs().max() / expected.abs().max() < 1e-4


def in_chunks(decoder: Decoder, chunk: int, row: int = 0) -> torch.Tensor:
    rows = Rows(decoder, 1, NUM_TOKENS)
    token_ids = SEQUENCES[row]
    return torch.cat([rows.forward({0: token_ids[i : i + chunk]})[0] for i in range(0, NUM_TOKENS, chunk)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(tmp_path: Path, variant: str) -> None:
    """As a whole, and in chunks whose queries see across their edges."""
    decoder = load_decoder(write_random_model(tmp_path, **VARIANTS[variant]))
    expected = oracle_logits(tmp_path, SEQUENCES[0])
    whole = in_chunks(decoder, NUM_TOKENS)
    assert_like(whole, expected)
    for chunk in (31, 32, 33):
        assert torch.equal(in_chunks(decoder, chunk), whole), chunk


def test_a_cap_of_attention_scores_is_that_of_transformers(tmp_path: Path) -> None:
    """transformers 5.24 has the cap in Gemma3's attention, but does not hand it the config's value."""
    write_random_model(tmp_path, "Gemma3ForCausalLM", attn_logit_softcapping=0.5)
    modeling = transformers.models.gemma3.modeling_gemma3
    capped = partial(modeling.eager_attention_forward, softcap=0.5)
    with mock.patch.object(modeling, "eager_attention_forward", capped):
        expected = oracle_logits(tmp_path, SEQUENCES[0], attn_implementation="eager")
    assert_like(in_chunks(load_decoder(tmp_path), NUM_TOKENS), expected)
    without = oracle_logits(tmp_path, SEQUENCES[0])
    assert (without - expected).abs().max() / expected.abs().max() > 1e-2


@pytest.fixture(
    scope="module",
    params=["gemma3", "qwen3_layer_types", "mistral_window", "mistral_window_of_one"],
)
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load_decoder(write_random_model(tmp_path_factory.mktemp("model"), **VARIANTS[request.param]))


def test_same_bits_id_by_id_and_in_company(windowed: Decoder) -> None:
    """Blocks that a window has left behind hold NaN here, see Rows."""
    alone = [in_chunks(windowed, NUM_TOKENS, row) for row in range(3)]
    assert torch.equal(in_chunks(windowed, 1), alone[0])
    rows = Rows(windowed, 3, NUM_TOKENS)
    spans = [{0: (0, 90)}, {0: (90, 91), 1: (0, 33)}, {1: (33, 120), 0: (91, 92), 2: (0, 64)}]
    spans += [{2: (64, 65), 1: (120, 121), 0: (92, 93)}, {0: (93, 150), 1: (121, 122), 2: (65, 150)}]
    for step in spans:
        logits = rows.forward({row: SEQUENCES[row][start:end] for row, (start, end) in step.items()})
        for row, (start, end) in step.items():
            assert torch.equal(logits[row], alone[row][start:end]), (row, start)


def request(request_id: int, num_tokens: int) -> Sequence:
    token_ids = np.array(SEQUENCES[0][:num_tokens], np.int32)
    return make_sequence(request_id, num_tokens, token_ids=token_ids, max_output_tokens=60)


@pytest.mark.parametrize("num_tokens", [48, 100, 128])
def test_same_bits_where_a_prefix_is_cached(windowed: Decoder, num_tokens: int) -> None:
    """Through scheduler and pool, where blocks that a window has left behind are given to others."""
    alone = EngineRun(windowed).run([request(1, num_tokens)])[1]
    run = EngineRun(windowed, num_blocks=40, max_step_tokens=33)
    cold, warm = (run.run([request(1, num_tokens), request(2, num_tokens - 20)])[1] for _ in range(2))
    assert cold.is_same(alone)
    assert warm.is_same(alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_transformers(tmp_path: Path, dtype: torch.dtype) -> None:
    """Norms that multiply by 1 + weight do so in float32."""
    write_random_model(tmp_path, "Gemma3ForCausalLM")
    expected = oracle_logits(tmp_path, SEQUENCES[0])
    got = in_chunks(load_decoder(tmp_path, dtype), NUM_TOKENS)
    assert (got - expected).abs().max() / expected.abs().max() < 0.05


def groups_of(tmp_path: Path, **overrides: Any) -> tuple[CacheGroup, ...]:
    return load_decoder(write_random_model(tmp_path, **overrides)).cache_groups


def test_layers_with_one_window_are_a_cache_group(tmp_path: Path) -> None:
    assert groups_of(tmp_path) == (CacheGroup(None, 2),)
    assert groups_of(tmp_path, **VARIANTS["qwen3_layer_types"]) == (CacheGroup(None, 1), CacheGroup(WINDOW, 2))
    assert groups_of(tmp_path, **VARIANTS["mistral_window"]) == (CacheGroup(WINDOW, 2),)


def test_a_window_that_no_context_outgrows_is_none(tmp_path: Path) -> None:
    overrides = {"architecture": "MistralForCausalLM", "sliding_window": 512, "max_position_embeddings": 512}
    assert groups_of(tmp_path, **overrides) == (CacheGroup(None, 2),)


def test_each_group_has_a_cache_of_its_own_size(tmp_path: Path) -> None:
    decoder = load_decoder(write_random_model(tmp_path, **VARIANTS["qwen3_layer_types"]))
    cache = decoder.new_cache([7, 3], 16, torch.device("cpu"))
    assert [k.shape[0] for k, _ in cache] == [3, 7, 3]
