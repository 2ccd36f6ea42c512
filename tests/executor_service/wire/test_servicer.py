# SPDX-License-Identifier: Apache-2.0
"""The executor's stream over real gRPC: handshake, packing, terminals, and bad input that harms nobody else."""

from __future__ import annotations

import asyncio
import threading
import time

import grpc
import pytest

from executor_service.scheduling.sequence import RowKey
from executor_service.scheduling.step import Step
from protos.packserve.v1 import executor_pb2, sampling_pb2
from tests.fixtures.executor_server import HELLO, RunningExecutor, connected, open_stream, running_executor
from tests.fixtures.sequences import CountingLaunch, CountingRunner

INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


def sampling(**fields: object) -> dict[str, object]:
    return {"sampling": sampling_pb2.SamplingParameters(**fields)}  # type: ignore[arg-type]


class SlowRunner(CountingRunner):
    """Gives the test time to act between steps."""

    def forward(self, step: Step) -> CountingLaunch:
        time.sleep(0.02)
        return super().forward(step)


async def is_idle(executor: RunningExecutor) -> bool:
    """Within a step or two nothing waits, runs or holds a block."""
    for _ in range(50):
        load = executor.streams.load()
        if (load.num_running, load.num_waiting) == (0, 0) and load.num_free_blocks == load.num_blocks:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_rows_are_answered_with_ids_and_one_terminal_each() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [5], 2: [7, 8]}, **sampling(max_tokens=3))
        await client.read_until_ended(1, 2)
        assert client.rows[1].token_ids == [6, 7, 8]
        assert client.rows[2].token_ids == [9, 10, 11]
        assert client.rows[1].terminals[0].finished.reason == sampling_pb2.FINISH_REASON_LENGTH
        assert await is_idle(executor)


@pytest.mark.parametrize("num_rows", [1, 32])
async def test_one_message_for_each_step_whatever_the_number_of_rows(num_rows: int) -> None:
    runner = SlowRunner()
    async with running_executor(runner) as executor, connected(executor) as client:
        await client.send({i: [i] for i in range(num_rows)}, **sampling(max_tokens=10))
        await client.read_until_ended(*range(num_rows))
        with_news = [message for message in client.messages if message.HasField("step")]
        assert len(with_news) == len(runner.steps) == 10
        assert [message.step.step for message in with_news] == list(range(1, 11))


async def test_two_streams_may_use_the_same_request_ids() -> None:
    async with running_executor() as executor, connected(executor) as first, connected(executor) as second:
        await first.send({1: [10]}, **sampling(max_tokens=2))
        await second.send({1: [20]}, **sampling(max_tokens=2))
        await first.read_until_ended(1)
        await second.read_until_ended(1)
        assert (first.rows[1].token_ids, second.rows[1].token_ids) == ([11, 12], [21, 22])


@pytest.mark.parametrize(
    ("token_ids", "words"),
    [
        ([], "the prompt is empty: 0 ids"),
        ([3, -1], "token_ids[1] is -1, the model's vocabulary is [0, 1000)"),
        ([1000], "token_ids[0] is 1000, the model's vocabulary is [0, 1000)"),
        ([2**31 - 1], "token_ids[0] is 2147483647"),
        ([1] * 512, "the row has 512 tokens, the context is 512"),
        ([1] * 513, "the row has 513 tokens, the context is 512"),
    ],
)
async def test_bad_row_is_refused_and_its_batch_mates_are_not(token_ids: list[int], words: str) -> None:
    """B36, B37."""
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [5], 2: token_ids, 3: [7], 4: [9]}, **sampling(max_tokens=2))
        await client.read_until_ended(1, 2, 3, 4)
        error = client.rows[2].terminals[0].error
        assert error.code == INVALID
        assert words in error.detail
        assert [client.rows[i].token_ids for i in (1, 3, 4)] == [[6, 7], [8, 9], [10, 11]]
        assert await is_idle(executor)


async def test_prompt_of_context_less_one_gives_one_id() -> None:
    """B37: L - 1 gives one id, then finish=length; a huge max_tokens is clipped."""
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [1] * 511}, **sampling(max_tokens=2**31 - 1))
        await client.send({2: [1] * 500})
        await client.read_until_ended(1, 2)
        assert (len(client.rows[1].token_ids), len(client.rows[2].token_ids)) == (1, 12)
        assert client.rows[1].terminals[0].finished.reason == sampling_pb2.FINISH_REASON_LENGTH


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "sampling.max_tokens is 0, must be >= 1"),
        ({"max_tokens": -1}, "sampling.max_tokens is -1, must be >= 1"),
        ({"temperature": float("nan")}, "sampling.temperature is nan"),
        ({"temperature": -1.0}, "sampling.temperature is -1"),
        ({"top_p": float("nan")}, "sampling.top_p is nan"),
        ({"top_p": 1.5}, "sampling.top_p is 1.5"),
        ({"top_k": -2}, "sampling.top_k is -2"),
        ({"stop_token_ids": [1000]}, "sampling.stop_token_ids[0] is 1000"),
        ({"stop_token_ids": [-1]}, "sampling.stop_token_ids[0] is -1"),
    ],
)
async def test_bad_parameters_are_named_with_value_and_bound(fields: dict[str, object], words: str) -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [5]}, **sampling(**fields))
        await client.read_until_ended(1)
        assert client.rows[1].terminals[0].error.code == INVALID
        assert words in client.rows[1].terminals[0].error.detail


async def test_field_not_honoured_is_refused_by_name() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [5]}, tenant="blue")
        await client.read_until_ended(1)
        error = client.rows[1].terminals[0].error
        assert error.code == grpc.StatusCode.UNIMPLEMENTED.value[0]
        assert error.detail == "tenant is not supported"


@pytest.mark.parametrize(
    ("offsets", "num_ids", "words"),
    [
        ([0, 2, 1, 3], 3, "offsets[2] is 1, below offsets[1] = 2"),
        ([0, 1, 2, 9], 3, "offsets[3] is 9, token_ids has 3 ids"),
        ([1, 1, 2, 3], 3, "offsets[0] is 1, must be 0"),
        ([0, 3], 3, "offsets has 2 entries, 3 rows take 4"),
    ],
)
async def test_batch_that_contradicts_itself_is_refused_whole(offsets: list[int], num_ids: int, words: str) -> None:
    """B36: each of its requests gets the error; the stream goes on."""
    async with running_executor() as executor, connected(executor) as client:
        request = executor_pb2.ExecuteRequest(rows=[executor_pb2.Row()] * 3)
        request.batch.request_ids.extend([1, 2, 3])
        request.batch.token_ids = bytes(4 * num_ids)
        request.batch.offsets.extend(offsets)
        await client.call.write(request)
        await client.read_until_ended(1, 2, 3)
        assert {row.terminals[0].error.detail for row in client.rows.values()} == {words}
        await client.send({4: [5]}, **sampling(max_tokens=1))
        await client.read_until_ended(4)
        assert client.rows[4].token_ids == [6]


async def test_request_id_used_twice_ends_that_row_only() -> None:
    async with running_executor(SlowRunner()) as executor, connected(executor) as client:
        await client.send({1: [5], 2: [6]}, **sampling(max_tokens=20))
        await client.send({1: [5]}, **sampling(max_tokens=20))
        await client.read_until_ended(1, 2)
        assert client.rows[1].terminals[0].error.detail == "request_ids: 1 is open already in this stream"
        assert len(client.rows[2].token_ids) == 20
        assert await is_idle(executor)


async def test_long_row_comes_in_parts() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [1, 2]}, continues=True)
        await client.send({1: [3], 2: [9]}, continues=True)
        await client.send({1: [4]}, **sampling(max_tokens=2))
        await client.read_until_ended(1)
        assert client.rows[1].token_ids == [5, 6]
        await client.send({}, cancel=[2])
        await client.read_until_ended(2)
        assert client.rows[2].outcome == "cancelled"


async def test_row_refused_in_parts_is_refused_once_and_whole() -> None:
    async with running_executor() as executor, connected(executor) as client:
        for _ in range(3):
            await client.send({1: [1] * 300}, continues=True)
        await client.send({1: [4]}, **sampling(max_tokens=2))  # its last part: not a row of its own
        await client.send({2: []}, continues=True)
        await client.send({3: [5]}, **sampling(max_tokens=2))
        await client.read_until_ended(1, 2, 3)
        assert [len(row.terminals) for row in client.rows.values()] == [1, 1, 1]
        assert "the row has 600 tokens so far, the context is 512" in client.rows[1].terminals[0].error.detail
        assert "a part of 0 ids" in client.rows[2].terminals[0].error.detail
        assert client.rows[1].token_ids == []
        await client.send({1: [7]}, **sampling(max_tokens=1))  # the id is free again
        while len(client.rows[1].token_ids) < 1:
            client.rows[1].terminals.clear()
            await client.read()


async def test_half_close_ends_a_row_whose_last_part_never_came() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [1]}, continues=True)
        await client.call.done_writing()
        while await client.read():
            pass
        assert client.rows[1].outcome == "cancelled"


async def test_burst_of_refused_rows_is_answered_in_several_messages() -> None:
    async with running_executor() as executor, connected(executor) as client:
        rows = {i: [] for i in range(8_000)}
        rows[5] = [5]
        await client.send(rows, **sampling(max_tokens=2))
        await client.read_until_ended(*rows)
        assert client.rows[5].token_ids == [6, 7]
        assert len(client.messages) > 2


async def test_request_of_too_many_rows_or_cancellations_ends_its_stream() -> None:
    async with running_executor() as executor, connected(executor) as good:
        for request in (
            executor_pb2.ExecuteRequest(rows=[executor_pb2.Row()] * 8193),
            executor_pb2.ExecuteRequest(cancelled_request_ids=range(8193)),
        ):
            async with connected(executor) as client:
                await client.call.write(request)
                assert await client.call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "has 8193 entries, a request takes 8192" in await client.call.details()
        await good.send({1: [5]}, **sampling(max_tokens=1))
        await good.read_until_ended(1)


async def test_bytes_that_are_no_message_are_refused() -> None:
    async with running_executor() as executor, grpc.aio.insecure_channel(executor.address) as channel:
        call = channel.stream_stream("/packserve.v1.ExecutorService/Execute")()
        await call.write(HELLO.SerializeToString())
        await call.read()
        await call.write(b"\xff\xff\xff")
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "the request's 3 bytes are no message of its type"


async def test_stream_without_hello_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.wire.servicer.HELLO_TIMEOUT_S", 0.1)
    async with running_executor() as executor, open_stream(executor.address) as client:
        assert await client.call.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert await client.call.details() == "hello did not come within 0.1 s"


async def test_rows_in_parts_are_bounded() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({i: [1] for i in range(17)}, continues=True)
        await client.read_until_ended(16)
        assert "16 rows wait for their last parts" in client.rows[16].terminals[0].error.detail


async def test_reader_that_stops_reading_loses_its_stream_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.wire.outbox.MAX_BYTES", 2**18)
    async with running_executor(num_blocks=10_000, max_step_tokens=4096) as executor:
        async with connected(executor) as slow, connected(executor) as client:
            for start in range(0, 40_000, 200):
                if not executor.streams._streams.get(1):
                    break
                await slow.send({i: [1] for i in range(start, start + 200)}, **sampling(max_tokens=500))
                await client.send({start: [5]}, **sampling(max_tokens=2))
                await client.read_until_ended(start)
                await asyncio.sleep(0.05)
            assert not executor.streams._streams.get(1)
            await client.send({99_999: [5]}, **sampling(max_tokens=2))
            await client.read_until_ended(99_999)
        assert await is_idle(executor)


async def test_burst_of_cancellations_is_no_queue() -> None:
    async with running_executor(SlowRunner(), max_queued=2) as executor, connected(executor) as client:
        await client.send({}, cancel=range(100))
        await client.send({1: [5]}, **sampling(max_tokens=1))
        await client.read_until_ended(1)
        assert client.rows[1].token_ids == [6]


async def test_logprobs_come_where_asked() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [5]}, **sampling(max_tokens=3, logprobs=0))
        await client.send({2: [5]}, **sampling(max_tokens=3))
        await client.read_until_ended(1, 2)
        assert (len(client.rows[1].logprobs), len(client.rows[2].logprobs)) == (3, 0)


async def test_cancel_ends_the_row_by_the_next_step() -> None:
    runner = SlowRunner()
    async with running_executor(runner) as executor, connected(executor) as client:
        await client.send({1: [5], 2: [6]}, **sampling(max_tokens=400))
        await client.read()
        num_steps = len(runner.steps)
        await client.send({}, cancel=[1])
        await client.read_until_ended(1)
        assert client.rows[1].outcome == "cancelled"
        last = max(i for i, step in enumerate(runner.steps) if RowKey(1, 1) in [row.key for row in step.rows])
        assert last <= num_steps + 2
        await client.send({}, cancel=[1, 77])  # ended, unknown: passed over
        await client.send({}, cancel=[2])
        await client.read_until_ended(2)
        assert await is_idle(executor)


async def test_stream_end_cancels_its_rows() -> None:
    """B41: a closed channel."""
    async with running_executor(SlowRunner()) as executor:
        async with connected(executor) as client:
            await client.send({1: [5], 2: [6]}, **sampling(max_tokens=400))
            await client.read()
        assert await is_idle(executor)


async def test_deadline_ends_queued_and_running_rows() -> None:
    """B41: the rest of the caller's time rides on the row."""
    async with running_executor(SlowRunner()) as executor, connected(executor) as client:
        await client.send({1: [5]}, timeout_ms=200, **sampling(max_tokens=400))
        await client.send({2: [5]}, timeout_ms=0)
        await client.read_until_ended(1, 2)
        expired = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert [client.rows[i].terminals[0].error.code for i in (1, 2)] == [expired, expired]
        assert client.rows[2].token_ids == []
        assert await is_idle(executor)


async def test_half_close_lets_open_rows_end() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [5]}, **sampling(max_tokens=5))
        await client.call.done_writing()
        while await client.read():
            pass
        assert client.rows[1].token_ids == [6, 7, 8, 9, 10]
        assert await client.call.code() == grpc.StatusCode.OK


async def test_queue_is_bounded() -> None:
    async with (
        running_executor(SlowRunner(), max_queued=2, max_step_tokens=1) as executor,
        connected(executor) as client,
    ):
        await client.send({i: [5, 6] for i in range(20)}, **sampling(max_tokens=2))
        await client.read_until_ended(*range(20))
        details = {row.terminals[0].error.detail for row in client.rows.values() if row.outcome == "error"}
        assert details
        assert all("rows wait already, the limit is 2" in text for text in details)


async def test_draining_executor_takes_no_rows_and_finishes_its_own() -> None:
    async with running_executor(SlowRunner()) as executor, connected(executor) as client:
        await client.send({1: [5]}, **sampling(max_tokens=10))
        await client.read()
        executor.streams.drain()
        await client.send({2: [5]})
        while await client.read():
            pass
        assert len(client.rows[1].token_ids) == 10
        assert client.rows[2].terminals[0].error.detail == "the executor is draining"
        assert await client.call.code() == grpc.StatusCode.OK


async def test_idle_stream_gets_a_heartbeat_with_the_load() -> None:
    async with running_executor() as executor, connected(executor) as client:
        async with asyncio.timeout(5):
            await client.read()
        assert not client.messages[0].HasField("step")
        assert client.messages[0].load.num_blocks == client.messages[0].load.num_free_blocks == 64


async def test_hello_stands_alone_and_comes_once() -> None:
    async with running_executor() as executor:
        async with open_stream(executor.address) as client:
            request = executor_pb2.ExecuteRequest(cancelled_request_ids=[1])
            request.hello.CopyFrom(HELLO.hello)
            await client.call.write(request)
            assert await client.call.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "it stands alone" in await client.call.details()
        async with connected(executor) as client:
            await client.call.write(HELLO)
            assert await client.call.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "hello came again" in await client.call.details()


@pytest.mark.parametrize(
    ("hello", "code", "words"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "hello is missing"),
        ({"protocol_version": 99}, grpc.StatusCode.FAILED_PRECONDITION, "hello.protocol_version is 99"),
        (
            {"protocol_version": 1, "vocabulary_sha256": "w"},
            grpc.StatusCode.FAILED_PRECONDITION,
            "is w, this executor's is v",
        ),
    ],
)
async def test_wrong_hello_is_refused_at_connect(hello: dict[str, object], code: grpc.StatusCode, words: str) -> None:
    async with running_executor() as executor, open_stream(executor.address) as client:
        request = executor_pb2.ExecuteRequest()
        if hello:
            request.hello.CopyFrom(executor_pb2.Hello(**hello))  # type: ignore[arg-type]
        await client.call.write(request)
        assert await client.call.code() == code
        assert words in await client.call.details()


async def test_no_stream_before_the_warm_up() -> None:
    class WarmingRunner(CountingRunner):
        release = threading.Event()

        def warm_up(self, max_step_tokens: int) -> None:
            self.release.wait(10)

    async with running_executor(WarmingRunner(), is_warm=False) as executor:
        async with open_stream(executor.address) as client:
            assert await client.call.code() == grpc.StatusCode.UNAVAILABLE
            assert await client.call.details() == "the model is loading"
        WarmingRunner.release.set()


async def test_engine_failure_ends_every_row_and_says_so() -> None:
    class FailingRunner(CountingRunner):
        def forward(self, step: Step) -> CountingLaunch:
            if len(self.steps) == 3:
                raise RuntimeError("a kernel failed")
            return super().forward(step)

    async with running_executor(FailingRunner()) as executor, connected(executor) as client:
        await client.send({1: [5], 2: [6]}, **sampling(max_tokens=100))
        await client.read_until_ended(1, 2)
        assert client.rows[1].terminals[0].error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert not executor.engine.can_serve(60)
        await client.send({3: [5]})
        await client.read_until_ended(3)
        assert "the engine has stopped" in client.rows[3].terminals[0].error.detail
        async with open_stream(executor.address) as late:
            assert await late.call.code() == grpc.StatusCode.UNAVAILABLE
            assert "the engine has stopped" in await late.call.details()
