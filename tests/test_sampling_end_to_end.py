# SPDX-License-Identifier: Apache-2.0
"""Sampling fields through both services, on a model whose every probability is known."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.packserve.v1 import sampling_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from tests.fixtures.byte_tokenizer import END, write_byte_tokenizer
from tests.fixtures.scripted_model import write_scripted_model
from tests.fixtures.services import RunningServices, running_services

A, B, C, D = b"abcd"
EVEN_ODDS = {B: 0.5, C: 0.5}
# From "x" on, three odds; "1" to "4" follow each other and then end; "a" to "c" toss a coin for ever.
LAW: dict[int, dict[int, float]] = {
    **dict.fromkeys((A, B, C), EVEN_ODDS),
    **{ord(x): {ord("x"): 0.6, ord("y"): 0.3, ord("z"): 0.1} for x in "xyz"},
    49: {50: 1.0},
    50: {51: 1.0},
    51: {52: 1.0},
    52: {END: 0.9, 49: 0.1},
}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    folder: Path = tmp_path_factory.mktemp("services")
    write_scripted_model(folder / "model", LAW, eos=END)
    write_byte_tokenizer(folder / "model")
    with running_services(folder / "model", folder / "log", EXECUTOR_NUM_BLOCKS="256") as running:
        yield running


@pytest.fixture
async def stub(services: RunningServices) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(services.address) as channel:
        yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)


def request(prompt: str, n: int | None = None, **fields: Any) -> tokenizer_pb2.GenerateRequest:
    top = {
        name: fields.pop(name)
        for name in list(fields)
        if name in tokenizer_pb2.GenerateRequest.DESCRIPTOR.fields_by_name
    }
    sampling = sampling_pb2.SamplingParameters(**{"max_tokens": 16} | fields)
    prompts = [tokenizer_pb2.Prompt(text=prompt)]
    return tokenizer_pb2.GenerateRequest(prompts=prompts, sampling=sampling, n=n, **top)


async def choices(stub: Any, prompt: str, n: int | None = None, **fields: Any) -> list[tokenizer_pb2.Choice]:
    """What the unary call answers, checked against the stream's sum where a seed makes them comparable."""
    whole = await stub.Generate(request(prompt, n, **fields))
    if "seed" in fields or fields.get("temperature") == 0:
        texts = [""] * len(whole.choices)
        async for response in stub.GenerateStream(request(prompt, n, **fields)):
            for part in response.choices:
                texts[part.choice_index] += part.text
        assert texts == [choice.text for choice in whole.choices]
    return list(whole.choices)


async def refusal(stub: Any, prompt: str = "a", **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub.Generate(request(prompt, **fields))
    return error.value.code(), error.value.details() or ""


async def test_choices_of_a_seed_differ_and_repeat(stub: Any) -> None:
    """B26."""
    first = await choices(stub, "a", n=4, temperature=1.0, seed=7)
    again = await choices(stub, "a", n=4, temperature=1.0, seed=7)
    assert [choice.choice_index for choice in first] == [0, 1, 2, 3]
    assert all(len(choice.token_ids) == 16 and choice.finish.reason for choice in first)
    assert len({choice.text for choice in first}) == 4
    assert [choice.text for choice in first] == [choice.text for choice in again]


async def test_temperature_one_samples(stub: Any) -> None:
    """B26: 30 seeds give both ids; five calls without a seed are not all alike."""
    seeds = [choices(stub, "a", temperature=1.0, seed=seed, max_tokens=1) for seed in range(30)]
    assert {found[0].text for found in await asyncio.gather(*seeds)} == {"b", "c"}
    unseeded = await asyncio.gather(*(choices(stub, "a", temperature=1.0) for _ in range(5)))
    assert len({found[0].text for found in unseeded}) > 1


async def test_every_kind_of_row_in_one_batch_is_as_alone(stub: Any) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 1, "top_k": 2},
        {"temperature": 1.3, "seed": 2, "min_p": 0.3},
        {"temperature": 0.7, "seed": 3, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 4, "logit_bias": {ord("q"): 9.0}, "logprobs": 2},
        {"temperature": 1.0, "seed": 5, "constraint": {"regex": "[xyz]{3}q+"}},
        {"temperature": 1.0, "seed": 6, "bad_words": ["xx", "yz"]},
        {"temperature": 1.0, "seed": 7, "allowed_token_ids": list(b"xz")},
    ]
    alone = [(await choices(stub, "x", **kind))[0] for kind in kinds]
    together = await asyncio.gather(*(choices(stub, "x", n=1, **kind) for kind in kinds * 3))
    assert [found[0] for found in together] == alone * 3
    assert len({choice.text for choice in alone}) == len(kinds)


@pytest.mark.parametrize(
    "fields", [{"top_p": 0.0}, {"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 1e-6}]
)
async def test_settings_that_leave_one_id_are_greedy(stub: Any, fields: dict[str, Any]) -> None:
    """B24, B27."""
    assert (await choices(stub, "x", seed=1, **{"temperature": 1.0} | fields))[0].text == "x" * 16


@pytest.mark.parametrize("top_k", [0, -1, 320, 321, 2**31 - 1])
async def test_top_k_that_keeps_all(stub: Any, top_k: int) -> None:
    """B27."""
    plain = await choices(stub, "x", temperature=1.0, seed=5)
    assert (await choices(stub, "x", temperature=1.0, seed=5, top_k=top_k))[0].text == plain[0].text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": math.nan}, "sampling.temperature is nan"),
        ({"temperature": math.inf}, "sampling.temperature is inf"),
        ({"temperature": -1.0}, "sampling.temperature is -1"),
        ({"top_p": math.nan}, "sampling.top_p is nan"),
        ({"stop_token_ids": [320], "min_tokens": 1}, "320"),
        ({"stop_token_ids": [-1], "min_tokens": 1}, "-1"),
        ({"stop_token_ids": [151645], "min_tokens": 1}, "151645"),
        ({"logit_bias": {320: 1.0}}, "320"),
        ({"logit_bias": {-1: 1.0}}, "-1"),
        ({"logprobs": 321}, "sampling.logprobs is 321"),
        ({"logprobs": -1}, "sampling.logprobs is -1"),
    ],
)
async def test_bad_value_is_refused_beside_good_streams(stub: Any, fields: dict[str, Any], words: str) -> None:
    """B24, B28, B30: three good rows run on, as if alone."""
    good = {"temperature": 1.0, "seed": 3, "max_tokens": 64}
    alone = await choices(stub, "x", **good)
    running = [stub.Generate(request("x", **good)) for _ in range(3)]
    await asyncio.sleep(0.02)
    code, detail = await refusal(stub, **fields)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert words in detail
    assert [(await call).choices[0] for call in running] == alone * 3


async def test_bias_on_a_padding_id_is_legal(stub: Any) -> None:
    """B28: 300 is a row of the model's table."""
    (choice,) = await choices(stub, "q", temperature=0, logit_bias={300: 100.0}, max_tokens=3)
    assert list(choice.token_ids) == [300, 300, 300]
    assert choice.text == ""


async def test_logprobs_are_of_the_law_whatever_the_temperature(stub: Any) -> None:
    """B30: also where the chosen id is outside the reported ones."""
    (choice,) = await choices(stub, "x", temperature=0.5, seed=2, logprobs=5, max_tokens=400)
    law = {ord("x"): 0.6, ord("y"): 0.3, ord("z"): 0.1}
    assert {entry.token_id for entry in choice.logprobs} == set(law)
    for entry in choice.logprobs:
        assert entry.logprob == pytest.approx(math.log(law[entry.token_id]), abs=1e-4)
        assert [top.token_id for top in entry.top][:3] == [ord("x"), ord("y"), ord("z")]
        assert sum(math.exp(top.logprob) for top in entry.top) <= 1 + 1e-5
    (narrow,) = await choices(stub, "x", temperature=1.0, seed=4, logprobs=1, max_tokens=64)
    assert any(entry.token_id != entry.top[0].token_id for entry in narrow.logprobs)


async def test_prompt_logprobs_are_the_same_cold_and_warm(stub: Any) -> None:
    """B30: 40 ids are two full blocks, which the second call finds and does not need."""
    prompt = "abcbc" * 8
    cold, warm = [(await choices(stub, prompt, n=2, temperature=0, prompt_logprobs=1, max_tokens=1)) for _ in range(2)]
    assert cold[0].prompt_logprobs == warm[0].prompt_logprobs
    assert not cold[1].prompt_logprobs
    assert [entry.token_id for entry in cold[0].prompt_logprobs] == list(prompt.encode()[1:])
    assert cold[0].prompt_logprobs[0].logprob == pytest.approx(math.log(0.5), abs=1e-4)


async def test_prompt_is_shared_and_counted(stub: Any) -> None:
    prompt = "abcb" * 10
    await choices(stub, prompt, temperature=0, max_tokens=1)
    (warm,) = await choices(stub, prompt, temperature=0, max_tokens=1)
    assert warm.usage.num_cached_tokens == 32
    salted = request(prompt, temperature=0, max_tokens=1, cache_salt=b"other")
    assert (await stub.Generate(salted)).usage.num_cached_tokens == 0
    assert (await stub.Generate(salted)).usage.num_cached_tokens == 32


async def test_min_tokens_holds_every_end_back(stub: Any) -> None:
    (plain,) = await choices(stub, "1", temperature=0)
    assert (plain.text, plain.finish.stop_token_id) == ("234", END)
    (patient,) = await choices(stub, "1", temperature=0, min_tokens=6)
    assert patient.text == "2341234"
    (longer,) = await choices(stub, "1", temperature=0, min_tokens=6, stop=["34"], max_tokens=12)
    assert longer.text == "23412"


async def test_ignored_end_runs_on(stub: Any) -> None:
    (choice,) = await choices(stub, "1", temperature=0, ignore_eos=True, max_tokens=8)
    assert choice.finish.reason == sampling_pb2.FINISH_REASON_LENGTH
    assert END in choice.token_ids


async def test_bad_words_never_appear(stub: Any) -> None:
    many = await choices(stub, "a", n=16, temperature=1.0, seed=1, bad_words=["bb", "cbc"], max_tokens=32)
    assert not any("bb" in choice.text or "cbc" in choice.text for choice in many)


async def test_nothing_left_to_choose_is_an_error_of_that_row(stub: Any) -> None:
    code, detail = await refusal(stub, allowed_token_ids=[B], bad_token_ids=[{"token_ids": [B]}])
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "nothing is allowed at output position 0" in detail


@pytest.mark.parametrize(
    ("constraint", "texts"),
    [
        ({"choices": {"choices": ["xyz", "zyx"]}}, {"xyz", "zyx"}),
        ({"regex": "x[yz]{2}"}, {"xyy", "xyz", "xzy", "xzz"}),
        ({"grammar": 'root ::= "x" tail\ntail ::= "yy" | "zz"'}, {"xyy", "xzz"}),
    ],
)
async def test_constraint_is_kept_and_ends_the_row(stub: Any, constraint: dict[str, Any], texts: set[str]) -> None:
    found = await choices(stub, "x", n=16, temperature=1.0, seed=3, constraint=constraint)
    assert {choice.text for choice in found} <= texts
    assert len({choice.text for choice in found}) > 1
    assert {choice.finish.reason for choice in found} == {sampling_pb2.FINISH_REASON_STOP}


async def test_keyword_that_is_not_enforced_is_refused_by_name(stub: Any) -> None:
    code, detail = await refusal(stub, constraint={"json_schema": '{"type": "array", "uniqueItems": true}'})
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "uniqueItems" in detail


def test_higher_priority_runs_first(tmp_path: Path) -> None:
    """One place to run: of two calls that wait, the later and more urgent one is answered first."""
    write_scripted_model(tmp_path / "model", LAW, eos=END)
    write_byte_tokenizer(tmp_path / "model")
    with running_services(tmp_path / "model", tmp_path / "log", EXECUTOR_MAX_SEQUENCES="1") as running:
        assert asyncio.run(order_of_ends(running.address)) == ["first", "urgent", "late"]


async def order_of_ends(address: str) -> list[str]:
    ended: list[str] = []

    async def call(stub: Any, name: str, priority: int, max_tokens: int) -> None:
        await stub.Generate(request("x", temperature=0, max_tokens=max_tokens, priority=priority))
        ended.append(name)

    async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as tasks:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        for name, priority, max_tokens in (("first", 5, 400), ("late", 0, 5), ("urgent", 1, 5)):
            tasks.create_task(call(stub, name, priority, max_tokens))
            await asyncio.sleep(0.05)
    return ended
