# SPDX-License-Identifier: Apache-2.0
"""A model directory on the device: the cache takes what a full step leaves of its memory, and warm-up has room beside.
Nothing is computed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from protos.vocabulary import BYTE_OF_CHARACTER
from tests.fixtures.npu_checks import Soc
from tests.fixtures.random_model import write_random_model
from tests.npu.suite.processes import run

MIB = 1 << 20
MEMORY = 256 * MIB
BLOCK = 16
# Of keys and values, in 2 layers with 2 heads of 128 numbers of 2 bytes.
BLOCK_BYTES = BLOCK * 2 * 2 * 2 * 128 * 2

LOAD = """
from pathlib import Path
from executor_service.config import ExecutorConfig
from executor_service.loading import load_model
config = ExecutorConfig(
    Path({directory!r}), device="npu:0", dtype={dtype!r}, threads=1, block_tokens=16, max_step_tokens=64,
    max_sequences=512, depth=2
)
runner = load_model(config).runner
runner.warm_up(64)
print("blocks", *runner.num_blocks, runner._graphs is not None)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model = {"type": "BPE", "vocab": dict(BYTE_OF_CHARACTER), "merges": []}
    tokenizer = {"model": model, "added_tokens": [], "decoder": {"type": "ByteLevel"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return write_random_model(tmp_path, hidden_size=128, head_dim=128)


def test_the_cache_takes_what_is_free(directory: Path) -> None:
    ran = run(LOAD.format(directory=str(directory), dtype="float16"), STUB_MEMORY_BYTES=str(MEMORY))
    found = re.search(r"blocks (\d+) (\w+)", ran.stdout)
    assert found, ran.stderr
    # A cache in FRACTAL_NZ is made from another of its size, which of two layers is too much: it is halved once.
    least, most = (MEMORY / 4, MEMORY / 2) if Soc.is_310p() else (MEMORY / 2, MEMORY)
    assert least < int(found[1]) * BLOCK_BYTES < most
    assert ("half of them are tried" in ran.stderr) == Soc.is_310p()
    assert found[2] == str(not Soc.is_310p())


def test_a_type_that_the_chip_has_not_is_refused_by_name(directory: Path) -> None:
    if not Soc.is_310p():
        pytest.skip("this chip has both")
    ran = run(LOAD.format(directory=str(directory), dtype="bfloat16"))
    assert "Ascend310P takes float16 only" in ran.stderr
