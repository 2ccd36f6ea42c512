# SPDX-License-Identifier: Apache-2.0
"""Random JSON schemas through both services with the demo model: what ends is valid, what is cut is the start of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from executor_service.conversion.demo_model import ensure
from executor_service.grammar.compiler import GrammarTokenizer
from executor_service.grammar.matcher_grammar import MatcherGrammar
from protos.client import Client
from protos.packserve.v1 import sampling_pb2, tokenizer_pb2
from protos.packserve.v1.sampling_pb2 import FinishReason
from protos.vocabulary import Vocabulary
from tests.fixtures.grammars import make_prototype, schema_constraint
from tests.fixtures.random_schemas import Json, random_schema
from tests.fixtures.services import running_services

NUM_SCHEMAS = 200
MAX_CUT = NUM_SCHEMAS // 10
MAX_TOKENS = 256
NUM_STREAMS = 16


async def generate_all(address: str, constraints: list[sampling_pb2.Constraint]) -> list[tokenizer_pb2.Choice]:
    turns = asyncio.Semaphore(NUM_STREAMS)

    async def generate(seed: int, client: Client) -> tokenizer_pb2.Choice:
        async with turns:
            return await client.generate(
                [{"role": "user", "text": "Invent an example. Answer with JSON."}],
                constraint=constraints[seed],
                max_tokens=MAX_TOKENS,
                seed=seed,
                temperature=0.8,
            )

    async with Client(address) as client:
        return await asyncio.gather(*(generate(seed, client) for seed in range(len(constraints))))


def check_whole(schema: Json, text: str) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))


def check_prefix(tokenizer: GrammarTokenizer, constraint: sampling_pb2.Constraint, token_ids: list[int]) -> None:
    MatcherGrammar(make_prototype(constraint, tokenizer), frozenset()).begin(np.array(token_ids, np.int32))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_schemas_with_the_demo_model(tmp_path: Path) -> None:
    model = ensure(Console(stderr=True))
    schemas = [random_schema(Random(seed)) for seed in range(NUM_SCHEMAS)]
    constraints = [schema_constraint(schema) for schema in schemas]
    with running_services(model, tmp_path / "log", EXECUTOR_THREADS="2") as services:
        choices = asyncio.run(generate_all(services.address, constraints))
    vocabulary = Vocabulary.load(model)
    special = vocabulary.special_token_ids
    pieces = [b"" if i in special else piece for i, piece in enumerate(vocabulary.pieces)]
    tokenizer = GrammarTokenizer(pieces, len(pieces))
    num_cut = 0
    for schema, constraint, choice in zip(schemas, constraints, choices, strict=True):
        if choice.finish.reason == FinishReason.FINISH_REASON_STOP:
            check_whole(schema, choice.text)
        else:
            num_cut += 1
            check_prefix(tokenizer, constraint, [*choice.token_ids])
    print(f"{NUM_SCHEMAS - num_cut} of {NUM_SCHEMAS} ended and are valid, {num_cut} were cut and are valid beginnings")
    assert num_cut <= MAX_CUT
