# SPDX-License-Identifier: Apache-2.0
"""A model directory becomes a decoder, with blocks for each of its cache groups and the context that they hold."""

from pathlib import Path
from typing import Any

import pytest

from executor_service.config import ExecutorConfig
from executor_service.loading import LoadedModel, load_model
from protos.errors import ConfigError
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tests.fixtures.random_model import write_random_model


def load(directory: Path, architecture: str = "Gemma3ForCausalLM", **settings: Any) -> LoadedModel:
    """Of 512 tokens; Gemma3 with a window of 48 in one of its two layers."""
    write_byte_tokenizer(write_random_model(directory, architecture))
    return load_model(ExecutorConfig(directory, threads=1, **settings))


def test_each_cache_group_has_blocks_of_its_own(tmp_path: Path) -> None:
    model = load(tmp_path, num_blocks=30, max_step_tokens=32, max_sequences=2)
    assert model.num_blocks == (30, 2 * 6)
    assert model.info.num_blocks == 42
    assert model.info.max_context_tokens == 30 * 16


def test_memory_is_measured_where_the_settings_say_nothing(tmp_path: Path) -> None:
    model = load(tmp_path, max_step_tokens=32, max_sequences=2)
    assert model.num_blocks == (2 * 32, 2 * 6)
    assert model.info.max_context_tokens == 512


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_context_tokens": 513}, "EXECUTOR_MAX_CONTEXT_TOKENS=513: the model takes 512"),
        ({"block_tokens": 1, "num_blocks": 1}, r"the context is 1 tokens \(model 512, blocks \(1,\) of 1\), must be 2"),
        ({"num_blocks": 10**12}, r"EXECUTOR_NUM_BLOCKS=1000000000000: they take \d+ bytes, \d+ are free"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, "Qwen3ForCausalLM", **settings)
