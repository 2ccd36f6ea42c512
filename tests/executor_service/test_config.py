# SPDX-License-Identifier: Apache-2.0
"""A bad setting stops the start and names itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from executor_service.__main__ import main
from executor_service.config import ExecutorConfig
from protos.errors import ConfigError
from protos.server import Ports


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"block_tokens": 12}, "EXECUTOR_BLOCK_TOKENS=12: must be a power of two"),
        ({"ports": Ports(port=99999)}, "EXECUTOR_PORT=99999: must be 0 to 65535"),
        ({"kv_memory_fraction": 1.5}, "EXECUTOR_KV_MEMORY_FRACTION=1.5: must be in (0, 1]"),
        ({"dtype": "int3"}, "EXECUTOR_DTYPE=int3: must be one of auto, float32, bfloat16, float16"),
        ({"device": "tpu"}, "EXECUTOR_DEVICE=tpu: must be cpu, npu:0 or cuda:0, of any number"),
        ({"device": "npu:x"}, "EXECUTOR_DEVICE=npu:x: must be cpu"),
        ({"device": "cpu:1"}, "EXECUTOR_DEVICE=cpu:1: must be cpu"),
        ({"kernels": "cuda"}, "EXECUTOR_KERNELS=cuda: must be one of auto, reference, triton, npu"),
        ({"max_step_tokens": -1}, "EXECUTOR_MAX_STEP_TOKENS=-1: must be 1 or more"),
        ({"max_sequences": 10**9}, "EXECUTOR_MAX_SEQUENCES=1000000000: must be 1 to 65536"),
        ({"max_sequences": 5000, "device": "npu:0"}, "EXECUTOR_MAX_SEQUENCES=5000: must be 1 to 4096"),
        ({"max_context_tokens": 1}, "EXECUTOR_MAX_CONTEXT_TOKENS=1: must be 0 (the model's) or at least 2"),
        ({"depth": 3}, "EXECUTOR_DEPTH=3: must be 0 (the device's own) to 2"),
        ({"model": Path("/nowhere")}, "EXECUTOR_MODEL=/nowhere: must be a directory"),
    ],
)
def test_bad_setting_is_named(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        ExecutorConfig(**({"model": tmp_path} | settings))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("device", "defaults"),
    [("cpu", (16, 512, 1, 0.5)), ("npu:3", (128, 2048, 2, 0.9)), ("cuda", (64, 2048, 2, 0.9))],
)
def test_what_is_left_open_suits_the_device(tmp_path: Path, device: str, defaults: tuple[int, int, int, float]) -> None:
    config = ExecutorConfig(tmp_path, device=device)
    assert (config.block_tokens, config.max_step_tokens, config.depth, config.kv_memory_fraction) == defaults
    assert ExecutorConfig(tmp_path, device=device, block_tokens=32, depth=1).block_tokens == 32


def test_environment_fills_settings_and_a_bad_one_exits_with_its_name(tmp_path: Path) -> None:
    env = {"EXECUTOR_MODEL": str(tmp_path), "EXECUTOR_BLOCK_TOKENS": "12"}
    result = CliRunner().invoke(main, env=env)
    assert result.exit_code != 0
    assert "EXECUTOR_BLOCK_TOKENS=12" in str(result.exception)
