# SPDX-License-Identifier: Apache-2.0
"""A row's logits have the same bits alone, in batches, in chunks, mixed with others and with one or two threads."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from executor_service.models.decoder import Decoder
from tests.fixtures.decoding import Rows, load_decoder
from tests.fixtures.random_model import write_random_model

CHUNK = 32
NUM_PROMPT, NUM_TOKENS = 70, 75
SEQUENCES = [[(row * 31 + 7 * i * i + 3 * i) % 320 for i in range(NUM_TOKENS)] for row in range(9)]


@cache
def decoder() -> Decoder:
    with TemporaryDirectory() as directory:
        return load_decoder(
            write_random_model(Path(directory), hidden_size=96, num_heads=6, num_kv_heads=2, num_layers=3)
        )


@cache
def alone(row: int) -> torch.Tensor:
    """One id a step, one thread: logits [T, V]."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = Rows(decoder(), 1)
    logits = torch.cat([rows.forward({0: [token_id]})[0] for token_id in SEQUENCES[row]])
    torch.set_num_threads(before)
    return logits


@pytest.fixture(autouse=True, params=[1, 2], ids=["1-thread", "2-threads"])
def num_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("chunk", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, NUM_TOKENS])
def test_chunks(chunk: int) -> None:
    rows = Rows(decoder(), 1)
    parts = [rows.forward({0: SEQUENCES[0][start : start + chunk]})[0] for start in range(0, NUM_TOKENS, chunk)]
    assert torch.equal(torch.cat(parts), alone(0))


@pytest.mark.parametrize("num_rows", range(2, 10))
def test_batches(num_rows: int) -> None:
    rows = Rows(decoder(), num_rows)
    for start, end in [(0, 20), (20, 21), (21, 22), (22, 70)]:
        logits = rows.forward({row: SEQUENCES[row][start:end] for row in range(num_rows)})
        for row, got in logits.items():
            assert torch.equal(got, alone(row)[start:end]), row


def test_decode_rows_beside_prefill_chunks_of_other_lengths() -> None:
    rows = Rows(decoder(), 4)
    spans = [{0: (0, 33)}, {0: (33, 34), 1: (0, 31)}, {0: (34, 35), 1: (31, 64), 2: (0, 7)}]
    spans += [{2: (7, 71), 0: (35, 36), 3: (0, 64)}, {3: (64, 65), 1: (64, 65), 0: (36, 37), 2: (71, 72)}]
    for step in spans:
        logits = rows.forward({row: SEQUENCES[row][start:end] for row, (start, end) in step.items()})
        for row, (start, end) in step.items():
            assert torch.equal(logits[row], alone(row)[start:end]), (row, start)


def test_what_earlier_sequences_left_in_the_blocks_does_not_count() -> None:
    rows = Rows(decoder(), 1)
    for k, v in rows.cache:
        k.fill_(torch.nan)
        v.fill_(torch.inf)
    assert torch.equal(rows.forward({0: SEQUENCES[0]})[0], alone(0))


def test_a_row_goes_on_in_another_cache_with_its_output_as_known_ids() -> None:
    first = Rows(decoder(), 2)
    first.forward({0: SEQUENCES[0][:NUM_PROMPT], 1: SEQUENCES[1][:40]})
    half = first.forward({0: SEQUENCES[0][NUM_PROMPT : NUM_PROMPT + 1], 1: SEQUENCES[1][40:41]})[0]
    assert torch.equal(half, alone(0)[NUM_PROMPT : NUM_PROMPT + 1])
    second = Rows(decoder(), 1)
    second.forward({0: SEQUENCES[0][: NUM_PROMPT + 2]})
    rest = second.forward({0: SEQUENCES[0][NUM_PROMPT + 2 : NUM_PROMPT + 3]})[0]
    assert torch.equal(rest, alone(0)[NUM_PROMPT + 2 : NUM_PROMPT + 3])
