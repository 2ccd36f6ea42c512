# SPDX-License-Identifier: Apache-2.0
"""Text in, text out, through both services, on a model that was quantized by the program that does it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from executor_service.conversion.quantize import quantize
from protos.client import Client
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tests.fixtures.decoding import greedy, load_decoder
from tests.fixtures.random_model import write_random_model
from tests.fixtures.services import running_services

PROMPT, NUM_TOKENS = list(b"The quick brown fox"), 12


async def token_ids_of(address: str) -> list[int]:
    async with Client(address) as client:
        choice = await client.generate(PROMPT, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return list(choice.token_ids)


def test_a_quantized_model_is_served(tmp_path: Path) -> None:
    """Its ids are those of its decoder, and not those of the floats it was made from."""
    source, target = write_random_model(tmp_path / "source"), tmp_path / "target"
    write_byte_tokenizer(source)
    quantize(source, target)
    expected = greedy(load_decoder(target), PROMPT, NUM_TOKENS)
    assert expected != greedy(load_decoder(source), PROMPT, NUM_TOKENS)
    with running_services(target, tmp_path / "log", EXECUTOR_NUM_BLOCKS="64") as services:
        assert asyncio.run(token_ids_of(services.address)) == expected
