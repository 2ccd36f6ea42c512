# SPDX-License-Identifier: Apache-2.0
"""A mixed load on the tokenizer service, and its own tally of what it asked and got.

Streams, unary answers, chats, a prefix that calls share, schemas, callers who leave, and requests that are refused.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from random import Random
from typing import Any

from protos.client import Client, Prompt
from protos.errors import DeadlineExceeded, InvalidRequest, PackserveError
from protos.packserve.v1 import sampling_pb2, tokenizer_pb2

OPENINGS = (
    "The capital of France is",
    "Once upon a time, in a harbour town,",
    "To bake bread at home you need",
    "The three laws of motion say that",
    "Dear colleague, thank you for",
)
TOPICS = ("tides", "bicycles", "bread", "lighthouses", "owls", "glaciers")
SHARED_PREFIX = (
    "You answer questions of visitors to a museum of everyday things. Be brief and kind, name the room where a thing "
    "stands, and say so plainly when you do not know. The museum opens at nine and closes at six. Room one shows "
    "kitchens, room two clocks and lamps, room three what children played with, room four tools of crafts that are "
    "gone. Tickets are sold at the door, and groups have to write a week before they come.\n\nQuestion: tell me about "
)


@dataclass
class Tally:
    """What callers saw, in the words of the services' own series."""

    requests: Counter[str] = field(default_factory=Counter)
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    first_tokens_s: list[float] = field(default_factory=list)

    @contextmanager
    def outcome_of_call(self) -> Iterator[None]:
        """Errors are counted, and are the caller's no more."""
        try:
            yield
        except InvalidRequest:
            self.requests["refused"] += 1
        except DeadlineExceeded:
            self.requests["expired"] += 1
        except PackserveError:
            self.requests["error"] += 1

    def add_end(self, choice: tokenizer_pb2.Choice) -> None:
        """choice: the last of a stream, or the only one."""
        is_cut = choice.finish.reason == sampling_pb2.FINISH_REASON_LENGTH
        self.requests["length" if is_cut else "stop"] += 1
        self.num_prompt_tokens += choice.usage.num_prompt_tokens


class Load:
    def __init__(self, client: Client) -> None:
        self.tally = Tally()
        self._client = client
        self._numbers = count()

    async def run(self, num_callers: int, pause_s: float = 0.5) -> None:
        """Until cancelled. Each caller takes its time between calls."""
        async with asyncio.TaskGroup() as group:
            for number in range(num_callers):
                group.create_task(self._call_on(number, pause_s))

    async def _call_on(self, number: int, pause_s: float) -> None:
        """In every way in turn; each caller begins at another."""
        random = Random(number)  # noqa: S311
        for call in islice(cycle(self.kinds), number, None):
            await call(random)
            await asyncio.sleep(random.expovariate(1 / pause_s))

    @property
    def kinds(self) -> tuple[Callable[[Random], Awaitable[None]], ...]:
        """First those that fill a panel alone."""
        often = (self.stream, self.chat, self.stream, self.burst, self.unary)
        return (self.schema, self.shared_prefix, self.refused, self.leave, self.shared_prefix, *often)

    async def stream(self, random: Random) -> None:
        await self.stream_of(random.choice(OPENINGS), max_tokens=random.randint(8, 48), temperature=0.8)

    async def burst(self, random: Random) -> None:
        await asyncio.gather(*(self.stream(random) for _ in range(3)))

    async def shared_prefix(self, random: Random) -> None:
        await self.stream_of(SHARED_PREFIX + random.choice(TOPICS), max_tokens=random.randint(8, 32), temperature=0.0)

    async def unary(self, random: Random) -> None:
        await self._unary(random.choice(OPENINGS) * random.randint(1, 12), max_tokens=16, temperature=0.0)

    async def chat(self, random: Random) -> None:
        messages = [{"role": "user", "text": f"Tell me about {random.choice(TOPICS)}."}]
        await self._unary(messages, max_tokens=random.randint(8, 48), temperature=0.7)

    async def schema(self, _random: Random) -> None:
        """Each has a grammar of its own, asked for twice."""
        schema = {"type": "object", "properties": {f"n{next(self._numbers)}": {"type": "integer"}}}
        constraint = sampling_pb2.Constraint(json_schema=json.dumps(schema))
        for _ in range(2):
            await self._unary("As JSON:", max_tokens=24, temperature=0.0, constraint=constraint)

    async def leave(self, random: Random) -> None:
        """A caller who has read enough. What was on its way is not in the tally."""
        await self.stream_of(random.choice(OPENINGS), max_read=random.randint(2, 8), max_tokens=256, temperature=0.8)

    async def refused(self, _random: Random) -> None:
        await self._unary("Hello", max_tokens=1, temperature=-1.0)

    async def _unary(self, prompt: Prompt, **sampling: Any) -> None:
        with self.tally.outcome_of_call():
            choice = await self._client.generate(prompt, **sampling)
            self.tally.add_end(choice)
            self.tally.num_generated_tokens += choice.usage.num_output_tokens

    async def stream_of(self, prompt: Prompt, max_read: int | None = None, **sampling: Any) -> None:
        """max_read: the caller leaves after so many tokens."""
        begun_s, num_read = time.perf_counter(), 0
        with self.tally.outcome_of_call():
            async with aclosing(self._client.generate_stream(prompt, **sampling)) as choices:
                async for choice in choices:
                    if not num_read and choice.token_ids:
                        self.tally.first_tokens_s.append(time.perf_counter() - begun_s)
                    num_read += len(choice.token_ids)
                    self.tally.num_generated_tokens += len(choice.token_ids)
                    if choice.HasField("finish"):
                        self.tally.add_end(choice)
                    elif max_read is not None and num_read >= max_read:
                        self.tally.requests["cancelled"] += 1
                        return
