# SPDX-License-Identifier: Apache-2.0
"""FX-POOL: both services on a random model with a pool of 8 blocks of 16 tokens, prompts in chunks of 32."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor_service.models.weight_names import EMBEDDING
from protos.client import Client
from protos.errors import InvalidRequest, PackserveError
from protos.packserve.v1 import sampling_pb2
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tests.fixtures.random_model import random_config, random_tensors, write_model, write_random_model
from tests.fixtures.services import RunningServices, assert_idle, running_services

POOL = {"EXECUTOR_BLOCK_TOKENS": "16", "EXECUTOR_MAX_STEP_TOKENS": "32"}
KINDS: list[dict[str, Any]] = [
    {},
    {"frequency_penalty": 0.3},
    {"logprobs": 2},
    {"constraint": {"regex": "[a-z]*"}},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("model")
    write_random_model(directory, max_position_embeddings=4096, eos_token_id=None)
    return write_byte_tokenizer(directory)


@pytest.fixture(scope="module")
def small(model: Path) -> Iterator[RunningServices]:
    with running_services(model, model / "small.log", EXECUTOR_NUM_BLOCKS="8", **POOL) as running:
        yield running


@pytest.fixture(scope="module")
def large(model: Path) -> Iterator[RunningServices]:
    with running_services(model, model / "large.log", EXECUTOR_NUM_BLOCKS="512", **POOL) as running:
        yield running


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=num_tokens)


async def test_rows_larger_than_the_pool_do_not_stand_still(small: RunningServices) -> None:
    """B31: a prompt that never fits is refused at once, one that fills the pool ends there, others are served."""
    async with Client(small.address) as client:
        with pytest.raises(InvalidRequest, match="200 tokens, the model's context is 128"):
            await client.generate(prompt(200), max_tokens=1)
        filling = asyncio.create_task(client.generate(prompt(100), max_tokens=200, temperature=0))
        third = await client.generate(prompt(10, 1), max_tokens=5, temperature=0)
        assert len(third.token_ids) == 5
        filled = await filling
    assert len(filled.token_ids) == 28
    assert filled.finish.reason == sampling_pb2.FINISH_REASON_LENGTH
    await assert_idle(small)


async def test_preemption_changes_nothing(small: RunningServices, large: RunningServices) -> None:
    """B33: four outputs of 40 tokens that outgrow the pool; the same in a pool where all have room."""

    async def outputs(services: RunningServices) -> list[list[int]]:
        async with Client(services.address) as client:
            calls = [
                client.generate(prompt(17 + i, i), max_tokens=40, temperature=0.5 * i, seed=i, repetition_penalty=1.1)
                for i in range(4)
            ]
            return [list(choice.token_ids) for choice in await asyncio.gather(*calls)]

    before = small.scrape(small.executor)["packserve_preemptions_total"]
    assert await outputs(small) == await outputs(large)
    assert small.scrape(small.executor)["packserve_preemptions_total"] > before
    assert large.scrape(large.executor)["packserve_preemptions_total"] == 0


async def test_many_mixed_requests_with_cancels(small: RunningServices, large: RunningServices) -> None:
    """64 requests, a third cancelled at some time: what ends is whole and as in a large pool, nothing stays behind."""
    chance = random.Random(3)
    lengths = [chance.randint(1, 90 if i % 4 == 0 else 15) for i in range(64)]
    shapes = [(length, chance.randint(10, 38), chance.choice([0.0, 1.0])) for length in lengths]

    async def call(client: Client, i: int) -> list[int]:
        num_tokens, max_tokens, temperature = shapes[i]
        fields = {"max_tokens": max_tokens, "temperature": temperature, "seed": i} | KINDS[i % len(KINDS)]
        choice = await client.generate(prompt(num_tokens, i % 8), **fields)
        assert len(choice.token_ids) == max_tokens
        return list(choice.token_ids)

    async def run(services: RunningServices, cancels: bool) -> dict[int, list[int]]:
        async with Client(services.address) as client:
            tasks = [asyncio.create_task(call(client, i)) for i in range(64)]
            for task in tasks[::3] if cancels else []:
                await asyncio.sleep(0.02)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        return {i: result for i, result in enumerate(results) if not isinstance(result, BaseException)}

    before = small.scrape(small.executor)["packserve_preemptions_total"]
    expected, found = await run(large, cancels=False), await run(small, cancels=True)
    assert small.scrape(small.executor)["packserve_preemptions_total"] > before
    assert len(expected) == 64
    assert len(found) >= 42
    assert all(found[i] == expected[i] for i in found)
    await assert_idle(small)


async def test_short_prompt_overtakes_a_long_one_while_streams_go_on(large: RunningServices) -> None:
    """B39: 50 chunks prefill beside a stream and a steady feed of short prompts, which are answered meanwhile."""
    num_chunks = 50
    gaps: list[float] = []

    async def stream(client: Client) -> None:
        last_s = time.monotonic()
        async for _ in client.generate_stream(prompt(8, 1), max_tokens=1000, temperature=0):
            gaps.append(time.monotonic() - last_s)
            last_s = time.monotonic()

    async with Client(large.address) as client:
        streaming = asyncio.create_task(stream(client))
        await asyncio.sleep(0.1)
        gaps.clear()
        start_s = time.monotonic()
        long = asyncio.create_task(client.generate(prompt(num_chunks * 32), max_tokens=2, temperature=0))
        await asyncio.sleep(0.02)
        num_answered = 0
        while not long.done():
            await client.generate(prompt(5, num_answered), max_tokens=2, temperature=0)
            num_answered += 1
        chunk_s = (time.monotonic() - start_s) / num_chunks
        streaming.cancel()
        await asyncio.gather(streaming, return_exceptions=True)
    assert num_answered > 1
    # A shared machine may hold everything up now and then; one chunk time is what most of the gaps take.
    assert statistics.quantiles(gaps, n=10)[-1] < 4 * chunk_s
    assert max(gaps) < num_chunks / 2 * chunk_s


@pytest.mark.parametrize(("dtype", "is_finite"), [("float16", False), ("bfloat16", True), ("float32", True)])
def test_logits_that_are_not_finite_end_their_row_alone(tmp_path: Path, dtype: str, is_finite: bool) -> None:
    """B57: one id's embedding is finite in every type but float16."""
    config = random_config(eos_token_id=None)
    tensors = random_tensors(config)
    tensors[EMBEDDING][300] = 1e5
    write_model(tmp_path / "model", config, tensors)
    write_byte_tokenizer(tmp_path / "model")
    with running_services(tmp_path / "model", tmp_path / "log", EXECUTOR_DTYPE=dtype) as running:
        asyncio.run(check_bad_row(running.address, is_finite))
        assert running.scrape(running.executor)["packserve_failed_rows_total"] == (0 if is_finite else 1)


async def check_bad_row(address: str, is_finite: bool) -> None:
    async with Client(address) as client:
        good = [client.generate(prompt(20, i), max_tokens=8, temperature=0) for i in range(2)]
        bad = client.generate([*prompt(5), 300, 7], max_tokens=8, temperature=0)
        *beside, result = await asyncio.gather(*good, bad, return_exceptions=True)
        alone = [await client.generate(prompt(20, i), max_tokens=8, temperature=0) for i in range(2)]
    assert [list(choice.token_ids) for choice in beside] == [list(choice.token_ids) for choice in alone]
    if is_finite:
        assert len(result.token_ids) == 8
    else:
        assert isinstance(result, PackserveError)
        assert "output position 0 are not finite" in str(result)
