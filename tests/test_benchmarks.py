# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run where their device is not: what they print there means nothing, but they do print it."""

from __future__ import annotations

import subprocess
import sys

import torch

from benchmarks.decoders import Rows, num_bytes, num_operations, random_model
from tests.fixtures.repository import ROOT

# Of the tiny shape. A layer: q, k, v 64 x 8 * 16, output 64 x 64, MLP 3 * 64 x 96; the head: 320 x 64.
LAYERS, HEAD = 2 * (8192 + 4096 + 18432), 20480


def test_gpu_benchmark_runs_on_a_cpu_and_says_that_it_means_nothing() -> None:
    sizes = ["--batches=1,3", "--context=20", "--steps=2", "--repeats=1"]
    command = [sys.executable, "-m", "benchmarks.gpu", "--device=cpu", "--shapes=tiny", *sizes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mean nothing" in done.stdout
    rows = [line for line in done.stdout.splitlines() if "off" in line]
    assert len(rows) == 4  # of 2 batches and 2 depths: there are no graphs


def test_a_step_costs_its_products_and_its_context() -> None:
    model = random_model("tiny", 16, torch.float32, torch.device("cpu"))
    prompts = Rows(2, 3, 16).step(0, 3)
    seen = 2 * (1 + 2 + 3)
    assert num_operations(model.config, prompts) == 2 * (6 * LAYERS + 2 * HEAD) + 2 * 2 * 2 * 4 * 16 * seen
    decode = Rows(2, 11, 16).step(10, 11)
    keys_and_values = 2 * 2 * 11 * (2 * 16) * 2
    assert num_bytes(model, decode) == 4 * (LAYERS + HEAD + keys_and_values)


def test_rows_take_a_new_block_where_the_last_one_is_full() -> None:
    rows = Rows(2, 40, 16)
    assert [row.new_blocks[0].block_ids for row in rows.step(31, 32).rows] == [[], []]
    assert [row.new_blocks[0].block_ids for row in rows.step(32, 33).rows] == [[2], [5]]
    assert [row.new_blocks[0].block_ids for row in rows.step(19, 20, named=0).rows] == [[0, 1], [3, 4]]
