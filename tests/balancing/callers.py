# SPDX-License-Identifier: Apache-2.0
"""Callers of a fleet: many calls at once, and what became of each. They balance as docs/deploy.md says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from protos.client import generate_request
from protos.packserve.v1 import tokenizer_pb2_grpc
from tests.balancing.fleet import RING
from tests.fixtures.repository import ROOT

NUM_CALLS = 300
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
# Answers of a test's name server change within seconds, not minutes.
QUICK_LOOKUPS = ("grpc.dns_min_time_between_resolutions_ms", 500)


def fenced(word: str) -> str:
    """The page's one block with that word."""
    blocks = re.findall(r"^```\w+\n(.*?)^```", DEPLOY, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if word in block)
    return str(block)


@dataclass(frozen=True)
class Answer:
    text: str
    code: grpc.StatusCode
    detail: str = ""


@asynccontextmanager
async def balancing_stub(target: str) -> AsyncIterator[Any]:
    options = [("grpc.service_config", fenced("round_robin")), QUICK_LOOKUPS]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)


async def unary(stub: Any, max_tokens: int = 4) -> Answer:
    try:
        response = await stub.Generate(request(max_tokens), timeout=60)
    except grpc.aio.AioRpcError as error:
        return Answer("", error.code(), error.details() or "")
    return Answer(response.choices[0].text, grpc.StatusCode.OK)


async def stream(stub: Any, max_tokens: int = 4) -> Answer:
    text = ""
    try:
        async for response in stub.GenerateStream(request(max_tokens), timeout=60):
            text += "".join(choice.text for choice in response.choices)
    except grpc.aio.AioRpcError as error:
        return Answer(text, error.code(), error.details() or "")
    return Answer(text, grpc.StatusCode.OK)


def request(max_tokens: int) -> Any:
    return generate_request("a", (), {"max_tokens": max_tokens, "temperature": 0})


def text_of(num_tokens: int) -> str:
    """What follows the prompt."""
    return ((RING * (num_tokens // len(RING) + 2))[1 : num_tokens + 1]).decode()


async def many(call: Callable[[], Any], num_calls: int = NUM_CALLS, at_once: int = 8) -> list[Answer]:
    """Each caller takes the next one when it has its answer."""
    left = iter(range(num_calls))
    answers: list[Answer] = []

    async def caller() -> None:
        answers.extend([await call() for _ in left])

    await asyncio.gather(*(caller() for _ in range(at_once)))
    return answers


def gained(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """By whoever is there now."""
    return {host: num - before.get(host, 0) for host, num in after.items()}


def assert_answered(answers: list[Answer], num_tokens: int = 4) -> None:
    whole = Answer(text_of(num_tokens), grpc.StatusCode.OK)
    others = [answer for answer in answers if answer != whole]
    assert not others, others


def assert_shared(calls: dict[str, int], num_calls: int = NUM_CALLS) -> None:
    """Each has at least a fifth of what there was."""
    assert sum(calls.values()) == num_calls
    assert min(calls.values()) >= num_calls / 5, calls


async def assert_only_begun_streams_are_cut(
    stub: Any, kill: Callable[[], Awaitable[None]], code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
) -> None:
    """Something is killed under calls that run. Unary calls are tried again, and so are streams that had brought
    nothing. One that had ends with the code and the beginning of its answer; nothing is said twice."""
    calls = asyncio.gather(many(lambda: unary(stub, 100), 60), many(lambda: stream(stub, 100), 60))
    await asyncio.sleep(0.5)
    await kill()
    unaries, streams = await calls
    cut = [answer for answer in streams if answer.code is not grpc.StatusCode.OK]
    assert_answered([*unaries, *(answer for answer in streams if answer not in cut)], 100)
    for answer in cut:
        assert answer.code is code, answer
        assert answer.text
        assert text_of(100).startswith(answer.text)
