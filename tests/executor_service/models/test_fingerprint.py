# SPDX-License-Identifier: Apache-2.0
"""Fingerprints are equal where ids are, whatever the spelling or the sharding, and differ where a model does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from executor_service.models.fingerprint import config_sha256, weights_sha256
from executor_service.models.model_config import parse_model_config
from tests.fixtures.random_model import random_config, random_tensors, write_model, write_random_model


def test_weights_in_shards_have_the_hash_of_one_file(tmp_path: Path) -> None:
    one, two = (weights_sha256(write_random_model(tmp_path / str(n), shards=n)) for n in (1, 2))
    assert one == two
    assert len(one) == 64


@pytest.mark.parametrize("place", [0, 10_240, 20_479])
def test_one_other_value_at_a_sampled_place_changes_the_hash(tmp_path: Path, place: int) -> None:
    tensors = random_tensors(random_config())
    write_model(tmp_path / "a", random_config(), tensors)
    tensors["lm_head.weight"].view(-1)[place] += 1
    write_model(tmp_path / "b", random_config(), tensors)
    assert weights_sha256(tmp_path / "a") != weights_sha256(tmp_path / "b")


def test_another_stored_type_changes_the_hash(tmp_path: Path) -> None:
    write_random_model(tmp_path / "a")
    write_random_model(tmp_path / "b", dtype=torch.bfloat16)
    assert weights_sha256(tmp_path / "a") != weights_sha256(tmp_path / "b")


def config_hash(**overrides: Any) -> str:
    return config_sha256(parse_model_config(random_config(**overrides), {}))


def test_a_config_has_the_same_hash_in_either_spelling() -> None:
    new = {"rope_theta": ..., "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000, "factor": 2.0}}
    assert config_hash(**new) == config_hash(rope_scaling={"type": "linear", "factor": 2.0})


def test_served_contexts_count_where_positions_depend_on_them() -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = random_config(rope_scaling=rope | {"original_max_position_embeddings": 64})
    short, long = (config_sha256(parse_model_config(config, {}, length)) for length in (64, 65))
    assert short != long


@pytest.mark.parametrize("overrides", [{"rope_theta": 5e5}, {"rms_norm_eps": 1e-5}, {"eos_token_id": 258}])
def test_another_config_has_another_hash(overrides: dict[str, Any]) -> None:
    assert config_hash(**overrides) != config_hash()
