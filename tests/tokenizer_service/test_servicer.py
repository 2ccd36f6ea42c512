# SPDX-License-Identifier: Apache-2.0
"""What the service refuses, by name and with both numbers; and its methods beside generation."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos.batch import TokenBatch
from protos.packserve.v1 import batch_pb2, tokenizer_pb2
from protos.packserve.v1.sampling_pb2 import Constraint, SamplingParameters
from protos.packserve.v1.tokenizer_pb2 import Chat, ChatMessage, GenerateRequest, Prompt
from protos.vocabulary import Vocabulary
from tests.fixtures.byte_tokenizer import BOS, NUM_PIECES, write_byte_tokenizer
from tests.fixtures.fake_executor import FakeExecutor
from tests.fixtures.tokenizer_app import RunningApp, app_with, running_app

INVALID, UNIMPLEMENTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED
TEMPLATE = "<|bos|>{% for message in messages %}{{ message.content }}{% endfor %}"
HI = [Prompt(text="hi")]
MAX_CONTEXT_TOKENS = 64


@pytest.fixture
def fake() -> FakeExecutor:
    return FakeExecutor(max_context_tokens=MAX_CONTEXT_TOKENS)


@pytest.fixture
async def it(tmp_path: Path, fake: FakeExecutor) -> AsyncIterator[RunningApp]:
    async with app_with(fake, write_byte_tokenizer(tmp_path / "tiny", bos=True, chat_template=TEMPLATE)) as running:
        yield running


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


def packed(*rows: list[int] | bytes) -> batch_pb2.TokenBatch:
    return TokenBatch.pack(range(len(rows)), [np.array(list(row), np.int32) for row in rows]).to_wire()


@pytest.mark.parametrize(
    ("code", "words", "fields"),
    [
        (UNIMPLEMENTED, "echo is not supported", {"echo": True}),
        (UNIMPLEMENTED, "tenant is not supported", {"tenant": "x"}),
        (UNIMPLEMENTED, "truncate_prompt_tokens is not supported", {"truncate_prompt_tokens": 1}),
        (UNIMPLEMENTED, "stream_interval_ms is not supported", {"stream_interval_ms": 1}),
        (UNIMPLEMENTED, "output_kind 1 is not supported", {"output_kind": tokenizer_pb2.OUTPUT_KIND_TEXT}),
        (INVALID, "sampling.logprobs is 21, must be in [0, 20]", {"sampling": SamplingParameters(logprobs=21)}),
        (INVALID, "sampling.logprobs is -1, must be in [0, 20]", {"sampling": SamplingParameters(logprobs=-1)}),
        (INVALID, "sampling.temperature is nan", {"sampling": SamplingParameters(temperature=math.nan)}),
        (INVALID, "sampling.max_tokens is 0", {"sampling": SamplingParameters(max_tokens=0)}),
        (INVALID, "sampling.stop_token_ids[0] is 320", {"sampling": SamplingParameters(stop_token_ids=[320])}),
        (INVALID, "sampling.logit_bias[-1]: the model's", {"sampling": SamplingParameters(logit_bias={-1: 1.0})}),
        (INVALID, "bad_words[1] has 0 bytes, must have 1 to 256", {"bad_words": ["x", ""]}),
        (INVALID, "bad_words[0] has 258 bytes, must have 1 to 256", {"bad_words": ["é" * 129]}),
        (
            INVALID,
            "bad_words has 200 entries, sampling.bad_bytes 57, together must be at most 256",
            {"bad_words": ["x"] * 200, "sampling": SamplingParameters(bad_bytes=[b"y"] * 57)},
        ),
        (INVALID, "sampling.constraint is empty", {"sampling": SamplingParameters(constraint=Constraint())}),
        (INVALID, "n is 0, must be 1 to 128", {"n": 0}),
        (INVALID, "n is 129, must be 1 to 128", {"n": 129}),
        (INVALID, "9 prompts x 128 choices exceed 1024", {"prompts": HI * 9, "n": 128}),
        (INVALID, "stop[0] is empty", {"stop": [""]}),
        (INVALID, "model is 'other', this server has 'tiny'", {"model": "other"}),
        (INVALID, "request_id has length 300, at most 256", {"request_id": "t" * 300}),
        (INVALID, "prompts is empty", {"prompts": []}),
        (INVALID, "prompts[1] has no text, chat or token_ids", {"prompts": [*HI, Prompt()]}),
        (INVALID, "prompts[0] has 0 tokens", {"prompts": [Prompt(token_ids=batch_pb2.TokenIds())]}),
        (INVALID, "prompts[0] has 0 tokens", {"prompts": [Prompt(text="", add_special_tokens=False)]}),
        (
            INVALID,
            "prompts[1].token_ids[1] is 320, the model's vocabulary is [0, 320)",
            {"prompts": [*HI, Prompt(token_ids=batch_pb2.TokenIds(token_ids=[1, 320]))]},
        ),
        (
            INVALID,
            "prompts[0].add_special_tokens is set beside token_ids, it is for text",
            {"prompts": [Prompt(token_ids=batch_pb2.TokenIds(token_ids=[1]), add_special_tokens=True)]},
        ),
        (
            INVALID,
            "prompts[1].add_special_tokens is set beside chat, it is for text",
            {"prompts": [*HI, Prompt(chat=Chat(), add_special_tokens=False)]},
        ),
        (INVALID, "messages is empty", {"prompts": [Prompt(chat=Chat())]}),
    ],
)
async def test_bad_request_is_refused_before_any_row(
    it: RunningApp, fake: FakeExecutor, code: grpc.StatusCode, words: str, fields: dict[str, Any]
) -> None:
    request = GenerateRequest(**{"prompts": HI, **fields})
    for call in (it.stub.Generate(request), it.stub.GenerateStream(request).read()):
        got_code, got_words = await refusal(call)
        assert got_code is code
        assert words in got_words
    assert not fake.requests


@pytest.mark.parametrize(
    "sampling",
    [
        {"stop_token_ids": [NUM_PIECES, 300, 319]},
        {"logit_bias": {300: 1.0}},
        {"allowed_token_ids": [300]},
        {"bad_token_ids": [batch_pb2.TokenIds(token_ids=[300, 1])]},
    ],
)
async def test_padding_ids_of_the_model_are_legal(it: RunningApp, sampling: dict[str, Any]) -> None:
    """B28, B36: the bound is the model's vocabulary, not the tokenizer's size."""
    await it.stub.Generate(GenerateRequest(prompts=HI, sampling=SamplingParameters(**sampling)))


async def test_bad_request_costs_no_encoding(it: RunningApp) -> None:
    sampling = SamplingParameters(stop_token_ids=[320])
    await refusal(it.stub.Generate(GenerateRequest(prompts=HI, sampling=sampling)))
    assert it.sample("packserve_tokenize_seconds_count") == 0


async def test_parameters_that_every_row_takes_along_are_bounded(it: RunningApp, fake: FakeExecutor) -> None:
    schema = Constraint(json_schema="x" * 131072)
    request = GenerateRequest(prompts=HI * 8, n=128, sampling=SamplingParameters(constraint=schema))
    code, words = await refusal(it.stub.Generate(request))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "1024 rows of it exceed 33554432 for one call" in words
    request = GenerateRequest(prompts=HI, n=128, sampling=SamplingParameters(constraint=schema))
    assert len((await it.stub.Generate(request)).choices) == 128
    assert len(fake.requests) > 3
    assert all(row.sampling.constraint == schema for row in fake.all_rows)


async def test_prompt_must_leave_room_for_one_token(it: RunningApp) -> None:
    """B37: L - 1 is served, L and above refused with both numbers."""
    for num_tokens in (MAX_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS + 1):
        prompt = Prompt(token_ids=batch_pb2.TokenIds(token_ids=[1] * num_tokens))
        code, words = await refusal(it.stub.Generate(GenerateRequest(prompts=[prompt])))
        assert code is INVALID
        assert words == f"prompts[0] has {num_tokens} tokens, the model's context is {MAX_CONTEXT_TOKENS}"
    prompt = Prompt(token_ids=batch_pb2.TokenIds(token_ids=[1] * (MAX_CONTEXT_TOKENS - 1)))
    assert len((await it.stub.Generate(GenerateRequest(prompts=[prompt]))).choices) == 1


async def test_empty_text_is_its_begin_token(it: RunningApp, fake: FakeExecutor) -> None:
    """B36."""
    await it.stub.Generate(GenerateRequest(prompts=[Prompt(text="")], model="tiny"))
    assert TokenBatch.from_wire(fake.requests[0].batch).token_ids.tolist() == [BOS]


async def test_chat_has_its_begin_token_once(it: RunningApp, fake: FakeExecutor) -> None:
    """B16."""
    chat = Chat(messages=[ChatMessage(role="user", text="hey")])
    await it.stub.Generate(GenerateRequest(prompts=[Prompt(chat=chat)]))
    assert TokenBatch.from_wire(fake.requests[0].batch).token_ids.tolist() == [BOS, *b"hey"]


async def test_tokenize_packs_texts_then_chats(it: RunningApp) -> None:
    chat = Chat(messages=[ChatMessage(role="user", text="hey")])
    answer = await it.stub.Tokenize(tokenizer_pb2.TokenizeRequest(texts=["ab", ""], chats=[chat]))
    rows = {request_id: row.tolist() for request_id, row in TokenBatch.from_wire(answer.batch)}
    assert rows == {0: [BOS, *b"ab"], 1: [BOS], 2: [BOS, *b"hey"]}
    assert answer.rendered_chats == ["<|bos|>hey"]
    plain = await it.stub.Tokenize(tokenizer_pb2.TokenizeRequest(texts=["ab"], add_special_tokens=False))
    assert TokenBatch.from_wire(plain.batch).token_ids.tolist() == [*b"ab"]


async def test_answer_too_large_for_a_message_says_so(it: RunningApp) -> None:
    """B42."""
    code, words = await refusal(it.stub.Tokenize(tokenizer_pb2.TokenizeRequest(texts=["x" * 2_000_000])))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert words.startswith("the response has 80")
    assert words.endswith("a message takes 4194304")


async def test_detokenize_knows_what_came_before(it: RunningApp) -> None:
    world = "世".encode()
    request = tokenizer_pb2.DetokenizeRequest(batch=packed(b"ab", world[2:]), context=packed(b"", world[:2]))
    assert (await it.stub.Detokenize(request)).texts == ["ab", "世"]
    visible = tokenizer_pb2.DetokenizeRequest(batch=packed([BOS, *b"a"]), skip_special_tokens=False)
    assert (await it.stub.Detokenize(visible)).texts == ["<|bos|>a"]


async def test_detokenize_refuses_what_has_no_meaning(it: RunningApp) -> None:
    request = tokenizer_pb2.DetokenizeRequest(batch=packed(b"a", b"b"), context=packed(b"a"))
    assert await refusal(it.stub.Detokenize(request)) == (INVALID, "context has 1 rows, batch has 2")
    code, _ = await refusal(it.stub.Detokenize(tokenizer_pb2.DetokenizeRequest(batch=packed([-1]))))
    assert code is INVALID


async def test_model_info_tells_both_halves(it: RunningApp) -> None:
    info = await it.stub.GetModelInfo(tokenizer_pb2.GetModelInfoRequest())
    assert (info.name, info.has_chat_template, info.tokenizer_vocabulary_size) == ("tiny", True, NUM_PIECES)
    assert info.model.max_context_tokens == MAX_CONTEXT_TOKENS
    assert info.fingerprint.vocabulary_sha256 == info.vocabulary_sha256
    assert info.num_executors == 1


async def test_without_an_executor_text_still_becomes_ids(tmp_path: Path) -> None:
    """B17 a: no template. No executor: UNAVAILABLE, and everything else answers."""
    model = write_byte_tokenizer(tmp_path / "tiny")
    async with running_app(model, "127.0.0.1:1") as it:
        code, words = await refusal(it.stub.Generate(GenerateRequest(prompts=HI)))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert words == "no executor is connected (0 of 1)"
        chat = Chat(messages=[ChatMessage(role="user", text="hey")])
        code, words = await refusal(it.stub.Tokenize(tokenizer_pb2.TokenizeRequest(chats=[chat])))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "send text or token_ids" in words
        answer = await it.stub.Tokenize(tokenizer_pb2.TokenizeRequest(texts=["ab"]))
        assert TokenBatch.from_wire(answer.batch).token_ids.tolist() == [*b"ab"]
        info = await it.stub.GetModelInfo(tokenizer_pb2.GetModelInfoRequest())
        assert not info.HasField("model")
        assert info.vocabulary_sha256 == Vocabulary.load(model).sha256
