# SPDX-License-Identifier: Apache-2.0
"""Compiling in a worker: once for each constraint, within time and memory, and never at another row's cost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor_service.grammar import grammars as grammars_module
from executor_service.grammar.grammars import Grammars
from executor_service.grammar.process import GrammarProcess
from executor_service.scheduling.sequence import Grammar
from protos.errors import InvalidRequest, LimitReached, Unavailable
from protos.packserve.v1.sampling_pb2 import Constraint
from tests.fixtures.byte_tokenizer import END, VOCABULARY_SIZE
from tests.fixtures.grammars import BYTE_VOCABULARY, allowed_ids, choices_constraint, feed, schema_constraint
from tests.fixtures.waiting import until
from tests.test_layers import reached, top

NOTHING = np.zeros(0, np.int32)
# One alternative for each property that may be the one it needs: quadratic in time and memory.
HUGE = {
    "type": "object",
    "properties": {f"p{i}": {"type": "integer"} for i in range(2500)},
    "additionalProperties": False,
    "minProperties": 1,
}


@asynccontextmanager
async def open_grammars(**settings: Any) -> AsyncIterator[Grammars]:
    grammars = Grammars(BYTE_VOCABULARY, VOCABULARY_SIZE, **settings)
    try:
        yield grammars
    finally:
        await grammars.aclose()


async def get(grammars: Grammars, constraint: Constraint, output: bytes = b"") -> Grammar:
    return await grammars.get(constraint, frozenset({END}), np.frombuffer(output, np.uint8).astype(np.int32))


def worker_pid(grammars: Grammars) -> int:
    assert grammars._process
    assert grammars._process.pid
    return grammars._process.pid


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def open_files(pid: int) -> list[str]:
    return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]


async def test_rows_with_one_constraint_share_a_compilation_and_have_grammars_of_their_own() -> None:
    seconds: list[float] = []
    async with open_grammars(on_compiled=seconds.append) as grammars:
        constraint = choices_constraint("ab", "ac")
        first, second = await asyncio.gather(get(grammars, constraint), get(grammars, constraint))
        third = await get(grammars, constraint)
        assert first.accept(ord("a"))
        assert allowed_ids(first.mask()) == [ord("b"), ord("c")]
        assert allowed_ids(second.mask()) == allowed_ids(third.mask()) == [ord("a")]
        assert (grammars.num_hits, grammars.num_failed, len(seconds)) == (1, 0, 1)


async def test_known_output_is_replayed() -> None:
    async with open_grammars() as grammars:
        constraint = Constraint(regex="a*b")
        for length in (3, 1000):
            grammar = await get(grammars, constraint, b"a" * length)
            assert allowed_ids(grammar.mask()) == [ord("a"), ord("b")]
        with pytest.raises(InvalidRequest, match="id 99 at position 1 breaks the constraint"):
            await get(grammars, constraint, b"ac")


async def test_refusal_is_kept_too() -> None:
    async with open_grammars() as grammars:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="keyword uniqueItems at # is not enforced"):
                await get(grammars, schema_constraint({"uniqueItems": True}))
        assert (grammars.num_failed, grammars.num_hits) == (1, 1)


async def test_only_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars_module, "MAX_CACHED", 2)
    async with open_grammars() as grammars:
        for regex in ("a", "b", "a", "c", "a", "b"):
            await get(grammars, Constraint(regex=regex))
        assert grammars.num_hits == 2


async def test_constraint_that_takes_too_long_is_that_rows_error_only() -> None:
    async with open_grammars(max_compile_s=0.5) as grammars:
        await get(grammars, Constraint(regex="a"))
        before = worker_pid(grammars)
        huge, small = await asyncio.gather(
            get(grammars, schema_constraint(HUGE)), get(grammars, Constraint(regex="b")), return_exceptions=True
        )
        assert isinstance(huge, LimitReached)
        assert str(huge) == "the constraint takes more than 0.5 s to compile"
        assert not isinstance(small, BaseException)
        assert feed(small, "b")
        assert not is_running(before)
        with pytest.raises(LimitReached):  # time depends on the machine's load: it is tried again
            await get(grammars, schema_constraint(HUGE))


async def test_constraint_that_takes_too_much_memory_is_that_rows_error_only() -> None:
    async with open_grammars(max_compile_bytes=32 * 2**20, max_compile_s=60.0) as grammars:
        with pytest.raises(LimitReached, match="takes more than 32 MiB of memory"):
            await get(grammars, schema_constraint(HUGE))
        assert feed(await get(grammars, Constraint(regex="b")), "b")


async def test_worker_that_was_killed_is_started_again() -> None:
    async with open_grammars() as grammars:
        await get(grammars, Constraint(regex="a"))
        before = worker_pid(grammars)
        os.kill(before, signal.SIGKILL)
        await until(lambda: grammars._process is not None and grammars._process._process.returncode is not None)
        await get(grammars, Constraint(regex="b"))
        assert worker_pid(grammars) != before


async def test_worker_that_somebody_kills_costs_no_row() -> None:
    """Idle or at work: once it is tried again."""
    slow = schema_constraint({"properties": {f"p{i}": {"type": "integer"} for i in range(1000)}})
    async with open_grammars(max_compile_s=60.0) as grammars:
        await get(grammars, Constraint(regex="a"))
        os.kill(worker_pid(grammars), signal.SIGKILL)
        assert feed(await get(grammars, Constraint(regex="b")), "b")
        at_work = asyncio.create_task(get(grammars, slow))
        await asyncio.sleep(0.05)
        os.kill(worker_pid(grammars), signal.SIGKILL)
        assert feed(await at_work, "{")


async def test_worker_that_is_killed_again_is_the_constraints_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.grammar.process._PROGRAM", "tests.executor_service.grammar.dying_worker")
    with pytest.raises(LimitReached, match="takes more than 512 MiB of memory, or too deep a stack"):
        await GrammarProcess(b"").compile(b"")


async def test_row_that_is_cancelled_leaves_the_compilation_to_others() -> None:
    seconds: list[float] = []
    async with open_grammars(on_compiled=seconds.append) as grammars:
        constraint = Constraint(regex="a")
        waiting = [asyncio.create_task(get(grammars, constraint)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert feed(await waiting[1], "a")
        assert waiting[0].cancelled()
        assert len(seconds) == 1


async def test_constraint_that_was_given_up_can_be_asked_for_again_at_once() -> None:
    async with open_grammars() as grammars:
        given_up = asyncio.create_task(get(grammars, Constraint(regex="a")))
        await asyncio.sleep(0.05)
        given_up.cancel()
        await asyncio.sleep(0)
        assert feed(await get(grammars, Constraint(regex="a")), "a")


async def test_constraint_that_nobody_waits_for_makes_room_at_once() -> None:
    """Queued or at work: the worker that is at it ends, and the next one's turn comes."""
    async with open_grammars(max_compile_s=30.0) as grammars:
        await get(grammars, Constraint(regex="a"))
        before = worker_pid(grammars)
        slow = [schema_constraint({**HUGE, "title": f"{i}"}) for i in range(3)]
        waiting = [asyncio.create_task(get(grammars, constraint)) for constraint in slow]
        await asyncio.sleep(0.2)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert feed(await asyncio.wait_for(get(grammars, Constraint(regex="b")), 10), "b")
        assert not is_running(before)


async def test_closing_ends_the_worker_at_work() -> None:
    async with open_grammars() as grammars:
        await get(grammars, Constraint(regex="a"))
        pid = worker_pid(grammars)
        waiting = asyncio.create_task(get(grammars, schema_constraint(HUGE)))
        await asyncio.sleep(0.05)
    assert not is_running(pid)
    assert (await asyncio.gather(waiting, return_exceptions=True))[0] is not None


async def test_waiting_constraints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.grammar.process.MAX_WAITING", 2)
    async with open_grammars() as grammars:
        results = await asyncio.gather(
            *(get(grammars, Constraint(regex=regex)) for regex in "abc"), return_exceptions=True
        )
        refused = [str(result) for result in results if isinstance(result, LimitReached)]
        assert refused == ["2 constraints wait to be compiled, the limit is 2"]


async def test_worker_that_does_not_start_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.grammar.process._PROGRAM", "executor_service.no_such_module")
    process = GrammarProcess(b"")
    with pytest.raises(Unavailable, match="the process that compiles constraints does not start"):
        await process.compile(b"")


async def test_constraint_with_too_many_ways_to_go_on_is_refused_once() -> None:
    """Where the first id shows it, before a row runs."""
    wide = " | ".join(f'"a" r{i}' for i in range(700)) + "".join(f'\nr{i} ::= "a" root?' for i in range(700))
    async with open_grammars() as grammars:
        for _ in range(2):
            with pytest.raises(LimitReached, match=r"^constraint.grammar: has [0-9]+ ways to go on at one place, the"):
                await get(grammars, Constraint(grammar=f"root ::= {wide}"))
        assert (grammars.num_failed, grammars.num_hits) == (1, 1)


async def test_row_after_one_whose_lexer_was_full_begins_with_another() -> None:
    seconds: list[float] = []
    async with open_grammars(on_compiled=seconds.append) as grammars:
        constraint = Constraint(regex="(([a-z]{1,50}){1,50}){1,50}")
        with pytest.raises(LimitReached, match=r"^constraint: lexer error"):
            feed(await get(grammars, constraint), "abcdefgh" * 100)
        assert feed(await get(grammars, constraint), "abc")
        assert len(seconds) == 1


async def test_matcher_that_takes_long_to_make_is_not_shared_and_only_so_many_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("executor_service.grammar.prototype.MAX_SHARED_S", 0.0)
    monkeypatch.setattr("executor_service.grammar.prototype.MAX_OWN_LEXERS", 1)
    async with open_grammars() as grammars:
        first = await get(grammars, Constraint(regex="ab"))
        second = asyncio.create_task(get(grammars, Constraint(regex="ab")))
        await asyncio.sleep(0.1)
        assert feed(first, "ab")
        assert not second.done()
        del first
        assert feed(await second, "ab")


PARENT = """
import asyncio, sys
from executor_service.grammar.grammars import Grammars
from protos.packserve.v1.sampling_pb2 import Constraint
from tests.fixtures.grammars import BYTE_VOCABULARY, schema_constraint
from tests.executor_service.grammar.test_grammars import HUGE, NOTHING, worker_pid

async def main():
    grammars = Grammars(BYTE_VOCABULARY, 320, max_compile_s=60.0)
    await grammars.get(Constraint(regex="a"), frozenset(), NOTHING)
    working = asyncio.create_task(grammars.get(schema_constraint(HUGE), frozenset(), NOTHING))
    await asyncio.sleep(0.05)
    print(worker_pid(grammars), flush=True)
    await working

asyncio.run(main())
"""


async def test_worker_ends_with_its_parent_also_at_work() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=subprocess.PIPE)
    assert parent.stdout
    pid = int(await parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not is_running(pid))


async def test_worker_holds_no_socket_of_its_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.set_inheritable(True)
        inode = os.fstat(server.fileno()).st_ino
        async with open_grammars() as grammars:
            await get(grammars, Constraint(regex="a"))
            links = open_files(worker_pid(grammars))
    assert links
    assert f"socket:[{inode}]" not in links


def test_worker_starts_without_tensors_and_wire() -> None:
    assert {top(name) for name in reached("executor_service.grammar.worker")} & {"torch", "grpc", "tokenizers"} == set()
