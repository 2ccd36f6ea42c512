# SPDX-License-Identifier: Apache-2.0
"""Calls end to end through the service, over loopback, with an executor whose ids are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos.metrics import new_registry
from protos.packserve.v1 import batch_pb2, executor_pb2, sampling_pb2, tokenizer_pb2
from protos.server import MAX_MESSAGE_BYTES
from protos.vocabulary import Vocabulary
from tests.fixtures.byte_tokenizer import B_COMMA_C, END, write_byte_tokenizer
from tests.fixtures.fake_executor import LOGPROB, TOP_STEP, FakeExecutor
from tests.fixtures.spm_tokenizer import BOS, FIRST_BYTE, spm_token_id, write_spm_tokenizer
from tests.fixtures.tokenizer_app import RunningApp, app_with
from tests.fixtures.waiting import until
from tokenizer_service.choice import ChoiceStream
from tokenizer_service.generation import _advance, _messages
from tokenizer_service.metrics import CallRecord, Metrics
from tokenizer_service.rows import MAX_TAKE_TOKENS, Arrivals, RowRequest, RowStream

STOP, LENGTH = sampling_pb2.FINISH_REASON_STOP, sampling_pb2.FINISH_REASON_LENGTH


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_byte_tokenizer(tmp_path / "tiny")


def asks(*texts: str, sampling: dict[str, Any] | None = None, **fields: Any) -> tokenizer_pb2.GenerateRequest:
    prompts = [tokenizer_pb2.Prompt(text=text) for text in texts or ("hi",)]
    return tokenizer_pb2.GenerateRequest(
        prompts=prompts, sampling=sampling_pb2.SamplingParameters(**(sampling or {})), **fields
    )


async def parts(it: RunningApp, request: tokenizer_pb2.GenerateRequest) -> list[tokenizer_pb2.Choice]:
    return [choice async for message in it.stub.GenerateStream(request) for choice in message.choices]


async def both(it: RunningApp, request: tokenizer_pb2.GenerateRequest) -> tokenizer_pb2.Choice:
    """The one choice of the unary call, once the stream has been found to sum to it."""
    streamed = await parts(it, request)
    (choice,) = (await it.stub.Generate(request)).choices
    assert "".join(part.text for part in streamed) == choice.text
    assert [token_id for part in streamed for token_id in part.token_ids] == choice.token_ids
    assert [entry for part in streamed for entry in part.logprobs] == list(choice.logprobs)
    assert [entry for part in streamed for entry in part.prompt_logprobs] == list(choice.prompt_logprobs)
    assert streamed[-1].finish == choice.finish
    assert streamed[-1].usage == choice.usage
    assert not any(part.HasField("finish") for part in streamed[:-1])
    return choice


def scripted(output: bytes | Sequence[int], **fields: Any) -> FakeExecutor:
    return FakeExecutor(output=lambda _: list(output), **fields)


async def test_stream_sums_to_the_unary_answer(model: Path) -> None:
    async with app_with(scripted("grüße 世界".encode()), model) as it:
        choice = await both(it, asks("hello"))
        assert choice.text == "grüße 世界"
        assert bytes(choice.token_ids) == "grüße 世界".encode()
        assert choice.finish == tokenizer_pb2.Finish(reason=STOP)
        assert choice.usage == tokenizer_pb2.Usage(num_prompt_tokens=5, num_cached_tokens=1, num_output_tokens=14)


@pytest.mark.parametrize("num_tokens", [3, 4, 5, 6, 7])
async def test_cut_character_has_one_rule(model: Path, num_tokens: int) -> None:
    """B04."""
    output = b"Hi \xf0\x9f\x8c\xb6" + b"!"
    async with app_with(scripted(output), model) as it:
        choice = await both(it, asks(sampling={"max_tokens": num_tokens}))
        assert choice.text == output[:num_tokens].decode(errors="replace")
        assert bytes(choice.token_ids) == output[:num_tokens]
        assert choice.finish.reason == LENGTH
        assert choice.usage.num_output_tokens == num_tokens


async def test_prompt_character_never_comes_back(model: Path) -> None:
    """B01."""
    prompt = tokenizer_pb2.Prompt(token_ids=batch_pb2.TokenIds(token_ids=b"Hello \xe4\xb8"))
    async with app_with(scripted(b"\x96!"), model) as it:
        choice = await both(it, tokenizer_pb2.GenerateRequest(prompts=[prompt]))
        assert choice.text == "世!"


async def test_stop_string_ends_the_choice_and_is_never_shown(model: Path) -> None:
    """B09."""
    fake = scripted(b"12345678" * 100)
    async with app_with(fake, model) as it:
        choice = await both(it, asks("say 456", stop=["456"]))
        assert choice.text == "123"
        assert bytes(choice.token_ids) == b"123456"
        assert choice.finish == tokenizer_pb2.Finish(reason=STOP, stop="456")
        assert choice.usage.num_output_tokens == 6
        await until(lambda: len(fake.cancelled) == 2)
        assert it.app.pool.pick().num_open_rows == 0


async def test_stop_string_that_is_not_completed_loses_nothing(model: Path) -> None:
    """B09."""
    async with app_with(scripted(b"12345678"), model) as it:
        choice = await both(it, asks("say 457", stop=["457"]))
        assert choice.text == "12345678"
        assert not choice.finish.HasField("matched")


@pytest.mark.parametrize(("include_stop", "text"), [(False, "ab"), (True, "ab,")])
async def test_nothing_behind_a_stop_inside_one_id(model: Path, include_stop: bool, text: str) -> None:
    """B11."""
    async with app_with(scripted([ord("a"), B_COMMA_C, ord("d")]), model) as it:
        choice = await both(it, asks(stop=[","], include_stop=include_stop))
        assert choice.text == text
        assert choice.token_ids == [ord("a"), B_COMMA_C]


async def test_stop_id_is_counted_named_and_not_shown(model: Path) -> None:
    async with app_with(scripted([*b"ok", END], stop_token_id=END), model) as it:
        for skip in (True, False):
            choice = await both(it, asks(skip_special_tokens=skip))
            assert choice.text == "ok"
            assert choice.token_ids == [*b"ok", END]
            assert choice.finish == tokenizer_pb2.Finish(reason=STOP, stop_token_id=END)
            assert choice.usage.num_output_tokens == 3


async def test_logprobs_have_the_bytes_of_each_id(model: Path) -> None:
    async with app_with(scripted("é".encode()), model) as it:
        choice = await both(it, asks(sampling={"logprobs": 0}))
        assert [(entry.token_id, entry.logprob, entry.token_bytes) for entry in choice.logprobs] == [
            (0xC3, LOGPROB, b"\xc3"),
            (0xA9, LOGPROB, b"\xa9"),
        ]


def table(entries: Any) -> list[tuple[int, float, bytes, list[tuple[int, float, bytes]]]]:
    return [
        (e.token_id, e.logprob, e.token_bytes, [(t.token_id, t.logprob, t.token_bytes) for t in e.top]) for e in entries
    ]


TOP_2 = [(0, LOGPROB, b"\0"), (1, LOGPROB - TOP_STEP, b"\1")]


async def test_alternatives_come_likeliest_first_with_their_bytes(model: Path) -> None:
    """B30, the tokenizer service's part: the id that was chosen has its own logprob, whether among them or not."""
    async with app_with(scripted([*b"ok", 300], stop_token_id=300), model) as it:
        choice = await both(it, asks(sampling={"logprobs": 2}))
        assert table(choice.logprobs) == [
            (ord("o"), LOGPROB, b"o", TOP_2),
            (ord("k"), LOGPROB, b"k", TOP_2),
            (300, LOGPROB, b"", TOP_2),
        ]


@pytest.mark.parametrize("scores_per_step", [1, 3, 100])
async def test_prompt_logprobs_are_of_the_second_id_on_and_come_before_output(
    model: Path, scores_per_step: int
) -> None:
    fake = scripted(b"ok", scores_per_step=scores_per_step)
    async with app_with(fake, model) as it:
        request = asks("hello", sampling={"prompt_logprobs": 2})
        choice = await both(it, request)
        assert table(choice.prompt_logprobs) == [(ord(c), LOGPROB, c.encode(), TOP_2) for c in "ello"]
        assert not choice.logprobs
        streamed = await parts(it, request)
        last_scored = max(i for i, part in enumerate(streamed) if part.prompt_logprobs)
        assert not any(part.token_ids for part in streamed[:last_scored])
        assert not (await both(it, asks("x", sampling={"prompt_logprobs": 0}))).prompt_logprobs


async def test_prompt_logprobs_are_asked_of_the_first_choice_alone(model: Path) -> None:
    fake = scripted(b"ok")
    async with app_with(fake, model) as it:
        answer = await it.stub.Generate(asks("abc", "de", n=3, sampling={"prompt_logprobs": 0}))
        assert [len(choice.prompt_logprobs) for choice in answer.choices] == [2, 0, 0, 1, 0, 0]
        asked = [row.sampling.HasField("prompt_logprobs") for row in fake.all_rows]
        assert asked == [True, False, False] * 2


async def test_stalled_caller_gets_all_logprobs_in_bounded_messages(model: Path) -> None:
    fake = scripted(b"x" * 400, step_s=0)
    async with app_with(fake, model) as it:
        request = asks("y" * 3000, n=4, sampling={"logprobs": 20, "prompt_logprobs": 20})
        call = it.stub.GenerateStream(request)
        await asyncio.sleep(0.5)
        messages = [message async for message in call]
        assert max(message.ByteSize() for message in messages) < MAX_MESSAGE_BYTES
        firsts = [part for message in messages for part in message.choices if part.choice_index == 0]
        assert sum(len(part.prompt_logprobs) for part in firsts) == 2999
        assert sum(len(part.logprobs) for part in firsts) == 400
        assert all(len(entry.top) == 20 for part in firsts for entry in (*part.logprobs, *part.prompt_logprobs))


async def test_answer_that_no_message_takes_is_given_up_early(model: Path) -> None:
    """B42: the stream has it all."""
    fake = scripted(b"x" * 100_000, step_s=0)
    async with app_with(fake, model) as it:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.stub.Generate(asks("y" * 20_000, sampling={"prompt_logprobs": 20}))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (error.value.details() or "").endswith("a message takes 4194304")
        await until(lambda: not fake.rows)


@pytest.mark.parametrize(
    ("min_tokens", "stop", "text", "num_ids"),
    [
        (0, "123", "", 3),
        (2, "123", "", 3),
        (3, "123", "123", 6),
        (6, "123", "123123", 9),
        (9, "123", "1231231231", 10),
        (3, "231", "1", 4),
    ],
)
async def test_no_stop_string_is_completed_by_the_first_ids(
    model: Path, min_tokens: int, stop: str, text: str, num_ids: int
) -> None:
    """One that is completed by a later id ends the row, also where it began before."""
    async with app_with(scripted(b"1231231231"), model) as it:
        choice = await both(it, asks(stop=[stop], sampling={"min_tokens": min_tokens}))
        assert (choice.text, len(choice.token_ids)) == (text, num_ids)
        assert choice.finish.stop == (stop if num_ids < 10 else "")


async def test_bad_words_are_bytes_of_every_row(model: Path) -> None:
    fake = scripted(b"x")
    async with app_with(fake, model) as it:
        await it.stub.Generate(asks("a", "b", n=2, bad_words=["né", " x"], sampling={"bad_bytes": [b"\xff"]}))
        assert [list(row.sampling.bad_bytes) for row in fake.all_rows] == [[b"\xff", "né".encode(), b" x"]] * 4


async def test_choices_of_every_prompt_come_with_their_own_indices_and_its_seed(model: Path) -> None:
    """B26, the tokenizer service's part."""
    fake = FakeExecutor(output=lambda row: [row.token_ids[0], ord("0") + row.row.choice_index])
    async with app_with(fake, model) as it:
        answer = await it.stub.Generate(asks("a", "b", n=3))
        assert [(choice.prompt_index, choice.choice_index, choice.text) for choice in answer.choices] == [
            *((0, 0, "a0"), (0, 1, "a1"), (0, 2, "a2")),
            *((1, 0, "b0"), (1, 1, "b1"), (1, 2, "b2")),
        ]
        assert answer.usage == tokenizer_pb2.Usage(num_prompt_tokens=2, num_cached_tokens=2, num_output_tokens=12)
        seeds = [row.sampling.seed for row in fake.all_rows]
        assert seeds == [seeds[0]] * 3 + [seeds[3]] * 3
        assert seeds[0] != seeds[3]

        await it.stub.Generate(asks("a", "b", sampling={"seed": 7}))
        assert [row.sampling.seed for row in fake.all_rows[-2:]] == [7, 7]
        await it.stub.Generate(asks("a"))
        assert fake.all_rows[-1].sampling.seed not in seeds


async def test_several_choices_share_a_message(model: Path) -> None:
    fake = scripted(b"abc", step_s=0.02)
    async with app_with(fake, model) as it:
        sizes = [len(message.choices) async for message in it.stub.GenerateStream(asks(n=4))]
        assert set(sizes) == {4}  # fewer messages where steps were merged
        assert len(sizes) <= 3


def test_message_is_split_before_it_is_too_large() -> None:
    """Choices of the largest share that one look at a row can give."""
    entry = tokenizer_pb2.TokenLogprob(token_id=2**31 - 1, logprob=-1.0, token_bytes=bytes(128))
    choices = [
        tokenizer_pb2.Choice(
            choice_index=i,
            text="x" * 128 * MAX_TAKE_TOKENS,
            token_ids=[2**31 - 1] * MAX_TAKE_TOKENS,
            logprobs=[entry] * MAX_TAKE_TOKENS,
        )
        for i in range(5)
    ]
    small = [tokenizer_pb2.Choice(choice_index=i, text="x") for i in range(5, 1024)]
    messages = list(_messages([*choices, *small]))
    assert [choice for message in messages for choice in message.choices] == [*choices, *small]
    assert max(message.ByteSize() for message in messages) < MAX_MESSAGE_BYTES
    assert len(messages) == 6
    assert list(_messages([])) == []


def test_row_whose_text_ended_it_is_passed_over_when_it_is_listed_again(model: Path) -> None:
    row = RowStream(1, RowRequest(np.array([1], np.int32), executor_pb2.Row()), Arrivals(), 10_000, lambda _: None)
    row.feed(np.full(2 * MAX_TAKE_TOKENS, ord("x"), np.int32), 0, None)
    choice = ChoiceStream(0, 0, np.array([1], np.int32), asks(stop=["xx"]), Vocabulary.load(model))
    open_choices, record = {row: choice}, CallRecord(Metrics(new_registry(), "tiny"), None)
    (ended,), _ = _advance([row], open_choices, record)
    assert ended.finish.stop == "xx"
    assert _advance([row], open_choices, record) == ([], None)


async def test_stray_byte_hurts_neither_its_stream_nor_another(tmp_path: Path) -> None:
    """B03."""
    stray = [*(FIRST_BYTE + byte for byte in (0xEC, 0x84, 0xAC, 0xE1)), spm_token_id("lo")]
    healthy = [spm_token_id(word) for word in ("▁a", "▁wolf", "▁now")]
    fake = FakeExecutor(output=lambda row: stray if len(row.token_ids) == 1 else healthy)
    async with app_with(fake, write_spm_tokenizer(tmp_path / "spm", bos=False)) as it:
        other = asks("Hello world")
        first, second = await asyncio.gather(both(it, asks("Hello")), both(it, other))
        assert (first.text, second.text) == ("섬\ufffdlo", " a wolf now")


async def test_id_that_has_no_text_at_all_ends_its_stream_and_no_other(model: Path) -> None:
    """B03: an error, where dropping the id would blind the stops behind it."""
    fake = FakeExecutor(output=lambda row: [*b"ab", -1, *b"cd"] if len(row.token_ids) == 1 else b"abcd")
    async with app_with(fake, model) as it:
        (texts, error), good = await asyncio.gather(parts_until_error(it, asks("x")), both(it, asks("xy")))
        assert "".join(texts) == "ab"
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "output token id is -1, must be 0 or more"
        assert good.text == "abcd"


async def parts_until_error(it: RunningApp, request: tokenizer_pb2.GenerateRequest) -> tuple[list[str], Any]:
    texts: list[str] = []

    async def read() -> None:
        async for message in it.stub.GenerateStream(request):
            texts.extend(choice.text for choice in message.choices)

    with pytest.raises(grpc.aio.AioRpcError) as error:
        await read()
    return texts, error.value


async def test_words_keep_their_spaces_behind_the_prompt(tmp_path: Path) -> None:
    """B07."""
    words = [spm_token_id(word) for word in ("▁world", "▁now", "▁a", "▁wolf", "▁world", "▁now")]
    async with app_with(scripted(words), write_spm_tokenizer(tmp_path / "spm")) as it:
        assert (await both(it, asks("Hello"))).text == " world now a wolf world now"
        bos = tokenizer_pb2.Prompt(token_ids=batch_pb2.TokenIds(token_ids=[BOS]))
        choice = await both(it, tokenizer_pb2.GenerateRequest(prompts=[bos]))
        assert choice.text == "world now a wolf world now"


async def test_ready_is_who_has_an_executor_that_takes_rows(model: Path) -> None:
    fake = scripted(b"x" * 1000, heartbeat_s=0.02)
    async with app_with(fake, model) as it:
        health = it.app.server.health
        await until(lambda: health.is_serving)
        for load in (executor_pb2.Load(step_age_ms=60_000), executor_pb2.Load(is_draining=True)):
            fake.load = load
            await until(lambda: not health.is_serving)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await it.stub.Generate(asks())
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            fake.load = executor_pb2.Load()
            await until(lambda: health.is_serving)


async def test_row_carries_what_the_caller_gave(model: Path) -> None:
    fake = scripted(b"x")
    async with app_with(fake, model) as it:
        constraint = sampling_pb2.Constraint(regex="a+")
        sampling = {"top_k": 4, "logit_bias": {300: -1.0}, "constraint": constraint}
        await it.stub.Generate(asks(cache_salt=b"s", request_id="r", priority=-3, sampling=sampling), timeout=60)
        (row,) = fake.all_rows
        assert row.priority == -3
        assert row.sampling.logit_bias == {300: -1.0}
        assert row.sampling.constraint == constraint
        assert (row.cache_salt, row.caller_request_id) == (b"s", "r")
        assert row.sampling.top_k == 4
        assert 50_000 < row.timeout_ms < 61_000  # gRPC rounds what is left up


async def test_caller_that_goes_away_cancels_its_rows(model: Path) -> None:
    """B41."""
    fake = scripted(b"x" * 100_000)
    async with app_with(fake, model) as it:
        num_tasks = len(asyncio.all_tasks())
        for method in (it.stub.GenerateStream, it.stub.Generate):
            call = method(asks(n=2))
            await until(lambda: len(fake.rows) == 2)
            call.cancel()
            await until(lambda: not fake.rows)
        await until(lambda: it.sample("packserve_requests_total", outcome="cancelled") == 2)
        await until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        assert it.app.pool.pick().num_open_rows == 0


async def test_caller_that_reads_nothing_and_goes_away_cancels_its_rows(model: Path) -> None:
    fake = scripted(b"x" * 1_000_000, step_s=0)
    async with app_with(fake, model) as it:
        call = it.stub.GenerateStream(asks(n=100))
        await call.read()
        await asyncio.sleep(0.5)
        call.cancel()
        await until(lambda: not fake.rows)
        await until(lambda: it.sample("packserve_requests_total", outcome="cancelled") == 1)


async def test_deadline_cancels_the_rows_and_counts_as_expired(model: Path) -> None:
    """B41."""
    fake = scripted(b"x" * 100_000)
    async with app_with(fake, model) as it:
        for answer in (read_all(it.stub.GenerateStream(asks(), timeout=0.2)), it.stub.Generate(asks(), timeout=0.2)):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await answer
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: not fake.rows)
        await until(lambda: it.sample("packserve_requests_total", outcome="expired") == 2)


async def read_all(call: Any) -> None:
    async for _ in call:
        pass


async def test_row_error_reaches_the_caller_and_cancels_the_other_rows(model: Path) -> None:
    error = executor_pb2.RowError(code=8, detail="9 rows wait, the limit is 8")
    fake = scripted(b"x" * 1000, refuse=lambda row: error if row.row.choice_index == 1 else None)
    async with app_with(fake, model) as it:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await it.stub.Generate(asks(n=3))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert raised.value.details() == "9 rows wait, the limit is 8"
        await until(lambda: not fake.rows)
        assert it.sample("packserve_requests_total", outcome="error") == 1


async def test_callers_mistakes_are_counted_apart(model: Path) -> None:
    async with app_with(scripted(b"x"), model) as it:
        for request in (asks(n=0), asks(tenant="blue")):
            with pytest.raises(grpc.aio.AioRpcError):
                await it.stub.Generate(request)
        assert it.sample("packserve_requests_total", outcome="refused") == 2
        assert it.sample("packserve_requests_total", outcome="error") == 0


async def test_hops_and_outcomes_are_measured_under_both_names(model: Path) -> None:
    async with app_with(scripted(b"abcd"), model) as it:
        before = it.scrape()
        assert 'packserve_requests_total{outcome="expired"} 0.0' in before
        assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 0.0' in before
        await it.stub.Generate(asks("xyz"))
        await it.stub.Generate(asks("xyz", sampling={"max_tokens": 2}))
        for name in ("tokenize", "wire", "detokenize", "time_to_first_token", "request"):
            assert it.sample(f"packserve_{name}_seconds_count") == 2, name
        assert it.sample("packserve_inter_token_latency_seconds_count") >= 1
        assert it.sample("packserve_prompt_tokens_total") == 6
        assert it.sample("packserve_generation_tokens_total") == 6
        assert it.sample("packserve_executors_connected") == 1
        labels = {"model_name": "tiny", "engine": "0"}
        assert it.sample("vllm:request_success_total", finished_reason="length", **labels) == 1
        assert it.sample("vllm:generation_tokens_total", **labels) == 6
        assert it.sample("vllm:e2e_request_latency_seconds_count", **labels) == 2
