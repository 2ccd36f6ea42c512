# SPDX-License-Identifier: Apache-2.0
"""The stream to one executor, over loopback: what it carries, how rows end, and what happens when it breaks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from protos.errors import InvalidRequest, LimitReached, PackserveError, Unavailable
from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.server import PROTOCOL_VERSION
from tests.fixtures.fake_executor import LOGPROB, FakeExecutor, running_executor
from tests.fixtures.waiting import until
from tokenizer_service import link as link_module
from tokenizer_service.link import ExecutorLink
from tokenizer_service.rows import Arrivals, Outcome, RowRequest, RowStream

HELLO = executor_pb2.Hello(protocol_version=PROTOCOL_VERSION, instance_id="test", vocabulary_sha256="fake")


@dataclass
class Linked:
    link: ExecutorLink
    wire_seconds: list[float]
    # takes_rows at each change that was announced.
    took_rows: list[bool]

    def submit(
        self, *token_ids: int, arrivals: Arrivals | None = None, deadline_s: float | None = None, **row: object
    ) -> RowStream:
        request = RowRequest(np.array(token_ids, np.int32), executor_pb2.Row(**row), deadline_s)  # type: ignore[arg-type]
        return self.link.submit(request, arrivals or Arrivals())


@asynccontextmanager
async def linked(address: str) -> AsyncIterator[Linked]:
    wire_seconds: list[float] = []
    took_rows: list[bool] = []

    async def on_change() -> None:
        took_rows.append(link.takes_rows)

    link = ExecutorLink(address, HELLO, on_change, wire_seconds.append, lambda _: None)
    task = asyncio.create_task(link.run())
    try:
        yield Linked(link, wire_seconds, took_rows)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def linked_to(fake: FakeExecutor) -> AsyncIterator[Linked]:
    async with running_executor(fake) as executor, linked(executor.address) as it:
        await until(lambda: it.link.is_connected)
        yield it


async def finish(row: RowStream) -> tuple[list[int], Outcome]:
    """All ids, and how the row ended."""
    arrivals, token_ids = row._arrivals, []
    while True:
        await arrivals.next()
        update = row.take()
        token_ids += update.token_ids.tolist()
        if update.outcome is not None:
            return token_ids, update.outcome


async def test_hello_opens_the_stream_and_welcome_is_kept() -> None:
    fake = FakeExecutor()
    async with linked_to(fake) as it:
        assert fake.hellos == [HELLO]
        assert it.link.welcome is not None
        assert it.link.welcome.model.name == "fake"


async def test_row_brings_its_ids_and_one_outcome() -> None:
    async with linked_to(FakeExecutor()) as it:
        token_ids, outcome = await finish(it.submit(1, 2))
        assert bytes(token_ids) == b"hello"
        assert outcome == executor_pb2.Finished(reason=sampling_pb2.FINISH_REASON_STOP)
        assert it.link.num_open_rows == 0
        assert len(it.wire_seconds) == 1


async def test_rows_and_cancellations_that_wait_leave_as_one_message() -> None:
    fake = FakeExecutor()
    fake.runs.clear()
    async with linked_to(fake) as it:
        first = it.submit(1)
        await until(lambda: fake.requests)
        rows = [it.submit(i, i) for i in range(2, 7)]
        first.cancel()
        rows[0].cancel()  # not sent yet: never is
        await until(lambda: len(fake.requests) == 2)
        request = fake.requests[1]
        assert request.batch.request_ids == [row.request_id for row in rows[1:]]
        assert request.cancelled_request_ids == [first.request_id]


async def test_row_longer_than_a_message_arrives_whole() -> None:
    fake = FakeExecutor(output=lambda row: [len(row.token_ids) % 256], max_context_tokens=2**21)
    num_tokens = 1_200_003
    async with linked_to(fake) as it:
        token_ids, _ = await finish(it.submit(*([5] * num_tokens)))
        assert token_ids == [num_tokens % 256]
        assert len(fake.requests) == 2
        assert it.link.num_open_rows == 0


async def test_stalled_call_holds_up_nobody_and_finds_its_ids_merged() -> None:
    async with linked_to(FakeExecutor(output=lambda _: b"a long enough output")) as it:
        stalled = it.submit(1)
        for _ in range(3):
            token_ids, _ = await finish(it.submit(2))
            assert bytes(token_ids) == b"a long enough output"
        update = stalled.take()
        assert bytes(update.token_ids.tolist()) == b"a long enough output"
        assert isinstance(update.outcome, executor_pb2.Finished)


async def test_one_call_hears_of_all_its_rows_at_once() -> None:
    fake = FakeExecutor(output=lambda _: b"x")
    fake.runs.clear()
    async with linked_to(fake) as it:
        arrivals = Arrivals()
        rows = [it.submit(1, arrivals=arrivals) for _ in range(4)]
        await until(lambda: len(fake.rows) == 4)
        fake.runs.set()
        assert await arrivals.next() == rows


async def test_cancelled_row_is_silent_and_the_executor_hears_once() -> None:
    fake = FakeExecutor(output=lambda _: b"x" * 1000)
    async with linked_to(fake) as it:
        row = it.submit(1)
        await row._arrivals.next()
        row.cancel()
        row.cancel()
        row.take()
        await until(lambda: fake.cancelled)
        await asyncio.sleep(0.02)
        assert fake.cancelled == [row.request_id]
        assert not len(row.take().token_ids)


async def test_timeout_is_what_is_left_when_the_row_is_sent() -> None:
    fake = FakeExecutor()
    async with linked_to(fake) as it:
        await finish(it.submit(1, deadline_s=time.monotonic() + 60))
        await finish(it.submit(1))
        with_deadline, without = fake.all_rows
        assert 50_000 < with_deadline.timeout_ms <= 60_000
        assert not without.HasField("timeout_ms")


async def test_row_error_keeps_its_code_and_detail() -> None:
    error = executor_pb2.RowError(code=3, detail="sampling.top_p is 2")
    async with linked_to(FakeExecutor(refuse=lambda _: error)) as it:
        token_ids, outcome = await finish(it.submit(1))
        assert token_ids == []
        assert isinstance(outcome, InvalidRequest)
        assert str(outcome) == "sampling.top_p is 2"


async def test_logprobs_come_with_their_ids() -> None:
    fake = FakeExecutor(output=lambda _: b"abc")
    async with linked_to(fake) as it:
        row = it.submit(1, sampling=sampling_pb2.SamplingParameters(logprobs=0))
        await until(lambda: not it.link.num_open_rows)
        logprobs = row.take().logprobs
        assert logprobs is not None
        assert logprobs.logprobs.tolist() == [LOGPROB] * 3


async def test_gap_in_positions_ends_the_row_and_not_the_stream() -> None:
    fake = FakeExecutor(first_position=1, output=lambda _: b"x" * 1000)
    async with linked_to(fake) as it:
        _, outcome = await finish(it.submit(1))
        assert isinstance(outcome, PackserveError)
        assert "output position is 1, expected 0" in str(outcome)
        await until(lambda: fake.cancelled)
        assert it.link.is_connected


async def test_known_output_shifts_the_first_position() -> None:
    async with linked_to(FakeExecutor(first_position=2, output=lambda _: b"x")) as it:
        row = it.submit(1, 8, 9, num_output_known=2)
        assert (await finish(row))[0] == [ord("x")]


async def test_lost_executor_ends_open_rows_and_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "RETRY_S", 0.05)
    fake = FakeExecutor()
    fake.runs.clear()
    async with running_executor(fake) as executor, linked(executor.address) as it:
        await until(lambda: it.link.is_connected)
        rows = [it.submit(1), it.submit(2)]
        await until(lambda: len(fake.rows) == 2)
        await executor.server.stop(None)
        for row in rows:
            _, outcome = await finish(row)
            assert isinstance(outcome, Unavailable)
            assert executor.address in str(outcome)
        with pytest.raises(Unavailable):
            it.submit(3)
        again = FakeExecutor()
        async with running_executor(again, int(executor.address.rpartition(":")[2])):
            await until(lambda: it.link.is_connected, timeout_s=10)
            token_ids, _ = await finish(it.submit(4))
            assert bytes(token_ids) == b"hello"


async def test_silent_executor_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "LOST_AFTER_S", 0.2)
    fake = FakeExecutor(heartbeat_s=60)
    fake.runs.clear()
    async with linked_to(fake) as it:
        _, outcome = await finish(it.submit(1))
        assert isinstance(outcome, Unavailable)
        assert "nothing was heard for 0.2 s" in str(outcome)


async def test_heartbeats_keep_a_quiet_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "LOST_AFTER_S", 2.0)
    fake = FakeExecutor(heartbeat_s=0.05)
    async with linked_to(fake) as it:
        await asyncio.sleep(2.5)
        assert it.link.is_connected
        assert len(fake.hellos) == 1


async def test_other_vocabulary_is_refused_loudly(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeExecutor(vocabulary_sha256="another")
    async with running_executor(fake) as executor, linked(executor.address) as it:
        await until(lambda: it.link.is_refused)
        assert not it.link.is_connected
        assert any(record.levelno == logging.ERROR and "vocabulary" in record.message for record in caplog.records)


async def test_draining_executor_gets_no_new_rows_and_is_left_after_the_last() -> None:
    fake = FakeExecutor(heartbeat_s=0.02)
    fake.runs.clear()
    async with linked_to(fake) as it:
        row = it.submit(1)
        await until(lambda: fake.rows)
        fake.load = executor_pb2.Load(is_draining=True)
        await until(lambda: not it.link.takes_rows)
        assert it.link.is_connected
        fake.runs.set()
        token_ids, _ = await finish(row)
        assert bytes(token_ids) == b"hello"
        await until(lambda: fake.num_ended_streams)


async def test_executor_whose_step_does_not_end_gets_no_new_rows_until_it_does() -> None:
    fake = FakeExecutor(heartbeat_s=0.02)
    async with linked_to(fake) as it:
        fake.load = executor_pb2.Load(step_age_ms=29_000)
        await asyncio.sleep(0.1)
        assert it.link.takes_rows
        fake.load = executor_pb2.Load(step_age_ms=31_000)
        await until(lambda: not it.link.takes_rows)
        assert it.link.is_connected
        with pytest.raises(Unavailable):
            it.submit(1)
        fake.load = executor_pb2.Load()
        await until(lambda: it.link.takes_rows)
        assert it.took_rows == [True, False, True]


async def test_begin_of_a_drain_is_announced() -> None:
    fake = FakeExecutor(heartbeat_s=0.02)
    fake.runs.clear()
    async with linked_to(fake) as it:
        it.submit(1)
        await until(lambda: fake.rows)
        fake.load = executor_pb2.Load(is_draining=True)
        await until(lambda: it.took_rows == [True, False])
        assert it.link.is_connected


def with_bad_logprobs(step: executor_pb2.StepOutput) -> executor_pb2.StepOutput:
    step.logprobs.add(row=0, logprobs=b"123")
    return step


def without_positions(step: executor_pb2.StepOutput) -> executor_pb2.StepOutput:
    step.ClearField("first_positions")
    return step


@pytest.mark.parametrize("distort", [with_bad_logprobs, without_positions])
async def test_malformed_message_is_a_lost_stream_and_not_a_dead_link(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, distort: Any
) -> None:
    monkeypatch.setattr(link_module, "RETRY_S", 0.02)
    fake = FakeExecutor(distort=distort)
    async with linked_to(fake) as it:
        _, outcome = await finish(it.submit(1))
        assert isinstance(outcome, Unavailable)
        fake.distort = lambda step: step
        await until(lambda: it.link.is_connected and len(fake.hellos) == 2)
        token_ids, _ = await finish(it.submit(1))
        assert bytes(token_ids) == b"hello"
    assert any(str(outcome).endswith(record.message.partition(": ")[2]) for record in caplog.records)


async def test_writer_that_fails_ends_the_stream_and_not_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "RETRY_S", 0.02)
    fake = FakeExecutor()
    async with linked_to(fake) as it:
        bad = it.submit(1)
        bad.request.row = None  # type: ignore[assignment]
        _, outcome = await finish(bad)
        assert isinstance(outcome, Unavailable)
        assert "AttributeError: " in str(outcome)
        await until(lambda: it.link.is_connected and len(fake.hellos) == 2)
        token_ids, _ = await finish(it.submit(1))
        assert bytes(token_ids) == b"hello"


async def test_row_that_brings_more_than_it_may_ends_with_both_numbers() -> None:
    fake = FakeExecutor(output=lambda _: b"x" * 1000, max_context_tokens=8)
    async with linked_to(fake) as it:
        token_ids, outcome = await finish(it.submit(1))
        assert len(token_ids) == 8
        assert isinstance(outcome, LimitReached)
        assert str(outcome) == "the executor sent 9 output tokens, the row takes 8"
        await until(lambda: fake.cancelled)
        assert it.link.is_connected


async def test_rows_that_are_not_sent_yet_hide_nobody_elses() -> None:
    fake = FakeExecutor(load=executor_pb2.Load(num_running=5), heartbeat_s=0.02)
    fake.runs.clear()
    async with linked_to(fake) as it:
        for _ in range(3):
            it.submit(1)
        await it.link._receive(executor_pb2.ExecuteResponse(load=fake.load))
        assert it.link.work == 8
        await until(lambda: len(fake.rows) == 3)
        await until(lambda: it.link.work == 5)  # of the five that run three are ours


async def test_work_counts_our_rows_and_those_of_others() -> None:
    fake = FakeExecutor(load=executor_pb2.Load(num_running=3, num_waiting=2))
    async with linked_to(fake) as it:
        await until(lambda: it.link.work == 5)
        fake.runs.clear()
        it.submit(1)
        assert it.link.work == 6
