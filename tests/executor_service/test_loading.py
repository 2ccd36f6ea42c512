# SPDX-License-Identifier: Apache-2.0
"""A model directory becomes a decoder, with blocks for each of its cache groups and the context that they hold."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from executor_service import loading
from executor_service.cache_size import CacheSize
from executor_service.config import ExecutorConfig
from executor_service.loading import LoadedModel, allocate_cache, load_model
from executor_service.scheduling.cache_group import CacheGroup
from protos.errors import ConfigError
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tests.fixtures.random_model import write_random_model


def load(directory: Path, architecture: str = "Gemma3ForCausalLM", **settings: Any) -> LoadedModel:
    """Of 512 tokens; Gemma3 with a window of 48 in one of its two layers."""
    write_byte_tokenizer(write_random_model(directory, architecture))
    return load_model(ExecutorConfig(directory, threads=1, **settings))


def test_each_cache_group_has_blocks_of_its_own(tmp_path: Path) -> None:
    model = load(tmp_path, num_blocks=30, max_step_tokens=32, max_sequences=2)
    assert model.runner.num_blocks == (30, 2 * 6)
    assert model.info.num_blocks == 42
    assert model.info.max_context_tokens == 30 * 16


def test_memory_is_measured_where_the_settings_say_nothing(tmp_path: Path) -> None:
    model = load(tmp_path, max_step_tokens=32, max_sequences=2)
    assert model.runner.num_blocks == (2 * 32, 2 * 6)
    assert model.info.max_context_tokens == 512


class SmallDevice:
    """A runner on a device that holds so many blocks, whatever it says of its memory."""

    device = torch.device("cuda", 0)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.calls: list[object] = []

    def allocate(self, num_blocks: Sequence[int]) -> None:
        self.calls.append(tuple(num_blocks))
        if sum(num_blocks) > self.capacity:
            raise torch.OutOfMemoryError("out of memory")

    def try_largest_step(self, max_step_tokens: int) -> int:
        self.calls.append(max_step_tokens)
        return 64 * 100


def size_of(monkeypatch: pytest.MonkeyPatch, free: int, **settings: Any) -> CacheSize:
    monkeypatch.setattr(loading, "free_bytes", lambda device: free)
    config = ExecutorConfig(Path(), device="cuda:0", block_tokens=16, max_step_tokens=40, **settings)
    return CacheSize(config, (CacheGroup(None, 1),), bytes_per_token=4, context_tokens=4096)


def test_the_cache_takes_what_a_full_step_leaves_free(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = SmallDevice(1000)
    allocate_cache(runner, size_of(monkeypatch, 64 * 1100))  # type: ignore[arg-type]
    assert runner.calls == [40, (900,)]


def test_a_cache_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = SmallDevice(300)
    allocate_cache(runner, size_of(monkeypatch, 64 * 1100))  # type: ignore[arg-type]
    assert runner.calls[1:] == [(900,), (450,), (225,)]


def test_a_cache_of_a_size_that_was_set_is_not_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="EXECUTOR_NUM_BLOCKS=400: the device does not hold them: out of memory"):
        allocate_cache(SmallDevice(300), size_of(monkeypatch, 64 * 1100, num_blocks=400))  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("do_sample", "expected"), [(True, (0.5, 1.25, 0.25)), (False, (0.0, 1.25, 0.0))])
def test_defaults_are_those_of_generation_config(
    tmp_path: Path, do_sample: bool, expected: tuple[float, float, float]
) -> None:
    """temperature, repetition_penalty and min_p; a model that is not to be sampled is greedy, penalties apply."""
    generation = {"do_sample": do_sample, "temperature": 0.5, "repetition_penalty": 1.25, "min_p": 0.25}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    defaults = load(tmp_path, num_blocks=30).info.defaults
    assert (defaults.temperature, defaults.repetition_penalty, defaults.min_p) == expected


@pytest.mark.parametrize(
    ("default", "message"),
    [
        ({"top_k": -5}, "sampling.top_k is -5, must be >= -1"),
        ({"temperature": -1}, "sampling.temperature is -1, must"),
    ],
)
def test_a_default_that_no_request_may_have_is_named(tmp_path: Path, default: dict[str, float], message: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(default))
    with pytest.raises(ConfigError, match=rf"^generation_config\.json: {message}"):
        load(tmp_path, num_blocks=30)


def test_pieces_that_the_table_has_no_rows_for_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_byte_tokenizer(write_random_model(tmp_path, vocabulary_size=260))
    model = load_model(ExecutorConfig(tmp_path, threads=1, num_blocks=30))
    assert (model.info.vocabulary_size, len(model.vocabulary)) == (260, 263)
    assert "the tokenizer has 263 pieces, the model's table 260 rows" in caplog.text
