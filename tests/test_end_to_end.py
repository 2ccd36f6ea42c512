# SPDX-License-Identifier: Apache-2.0
"""Text in, text out, through both services as they are deployed, on a model whose every next token is known."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.client import Client
from protos.errors import DeadlineExceeded, InvalidRequest
from protos.packserve.v1 import batch_pb2, sampling_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from tests.fixtures.byte_tokenizer import END, write_byte_tokenizer
from tests.fixtures.scripted_model import chain_law, write_scripted_model
from tests.fixtures.services import RunningServices, assert_idle, running_services
from tests.fixtures.spm_tokenizer import EOS, FIRST_BYTE, spm_token_id, write_spm_tokenizer

# Each byte has one follower, so these chains share none.
CHAINS = [
    b"\xb8\x96!",  # the last two bytes of a character whose first two are the prompt's
    b">Hi \xf0\x9f\x8c\xb6",
    b"=12345678",
]
# Without i, whose follower is taken.
RING = b"abcdefghjklmnopqrstuvwxyz"


def law() -> dict[int, dict[int, float]]:
    followers = {a: b for chain in CHAINS for a, b in zip(chain, [*chain[1:], END], strict=True)}
    followers |= dict(zip(RING, RING[1:] + RING[:1], strict=True))
    return {a: {b: 1.0} for a, b in followers.items()}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    """Small enough that rows queue, are chunked and are preempted."""
    folder: Path = tmp_path_factory.mktemp("services")
    write_scripted_model(folder / "model", law())
    write_byte_tokenizer(folder / "model", bos=True)
    settings = {"EXECUTOR_MAX_STEP_TOKENS": "32", "EXECUTOR_MAX_SEQUENCES": "6", "EXECUTOR_NUM_BLOCKS": "160"}
    with running_services(folder / "model", folder / "log", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def spm_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServices]:
    folder: Path = tmp_path_factory.mktemp("spm")
    words = [spm_token_id(word) for word in ("▁Hello", "▁world", "▁now", "▁a", "▁wolf")]
    stray = [*(FIRST_BYTE + byte for byte in b">\xec\x84\xac\xe1"), spm_token_id("lo")]
    chains = [chain_law([*words, EOS]), chain_law([*stray, EOS])]
    write_scripted_model(folder / "model", {**chains[0], **chains[1]}, eos=EOS)
    write_spm_tokenizer(folder / "model")
    with running_services(folder / "model", folder / "log") as running:
        yield running


async def unary_and_stream(services: RunningServices, prompt: Any, **options: Any) -> tokenizer_pb2.Choice:
    """The unary answer, after checking that the stream's sum is the same."""
    async with Client(services.address) as client:
        whole = await client.generate(prompt, temperature=0, **options)
        parts = [choice async for choice in client.generate_stream(prompt, temperature=0, **options)]
    assert "".join(part.text for part in parts) == whole.text
    assert [i for part in parts for i in part.token_ids] == list(whole.token_ids)
    assert parts[-1].finish == whole.finish
    usage = parts[-1].usage
    assert (usage.num_prompt_tokens, usage.num_output_tokens) == (whole.usage.num_prompt_tokens, len(whole.token_ids))
    assert whole.usage.num_output_tokens == len(whole.token_ids)
    return whole


async def test_character_that_begins_in_the_prompt_is_completed(services: RunningServices) -> None:
    """B01."""
    choice = await unary_and_stream(services, list(b"Hello \xe4\xb8"), max_tokens=2)
    assert choice.text == "世!"
    assert list(choice.token_ids) == [0x96, 0x21]


async def test_stray_byte_is_one_replacement(spm_services: RunningServices) -> None:
    """B03."""
    choice = await unary_and_stream(spm_services, [FIRST_BYTE + ord(">")])
    assert choice.text == "섬\ufffdlo"


async def test_words_keep_their_spaces_behind_the_prompt(spm_services: RunningServices) -> None:
    """B07."""
    assert (await unary_and_stream(spm_services, "Hello")).text == " world now a wolf"
    assert (await unary_and_stream(spm_services, "Hello world")).text == " now a wolf"


@pytest.mark.parametrize(
    ("max_tokens", "text"), [(3, "Hi "), (4, "Hi \ufffd"), (5, "Hi \ufffd"), (6, "Hi \ufffd"), (7, "Hi 🌶")]
)
async def test_cut_inside_a_character(services: RunningServices, max_tokens: int, text: str) -> None:
    """B04: an unfinished character at the end is one U+FFFD; every id is returned and counted."""
    choice = await unary_and_stream(services, ">", max_tokens=max_tokens)
    assert choice.text == text
    assert bytes(choice.token_ids) == b"Hi \xf0\x9f\x8c\xb6"[:max_tokens]
    assert choice.finish.reason == sampling_pb2.FINISH_REASON_LENGTH


async def test_stop_string_over_token_boundaries(services: RunningServices) -> None:
    """B09: the prompt's own text never counts, nothing of a match is shown."""
    choice = await unary_and_stream(services, "456=", stop=["456"], max_tokens=20)
    assert (choice.text, choice.finish.reason, choice.finish.stop) == ("123", sampling_pb2.FINISH_REASON_STOP, "456")
    assert bytes(choice.token_ids) == b"123456"


async def test_stop_string_that_never_matches_holds_nothing_back(services: RunningServices) -> None:
    """B09: the model's own end stops the row; all eight digits arrive."""
    choice = await unary_and_stream(services, "456=", stop=["457"], max_tokens=20)
    assert (choice.text, choice.finish.stop_token_id) == ("12345678", END)
    assert list(choice.token_ids) == [*b"12345678", END]


async def test_stop_match_cancels_its_row_at_once(services: RunningServices) -> None:
    before, max_tokens = services.scrape(services.executor)["packserve_steps_total"], 1000
    async with Client(services.address) as client:
        choice = await client.generate("a", temperature=0, stop=["def"], max_tokens=max_tokens)
    assert choice.text == "bc"
    assert services.scrape(services.executor)["packserve_steps_total"] - before < max_tokens


async def test_many_prompts_and_choices_in_one_call(services: RunningServices) -> None:
    prompts = [tokenizer_pb2.Prompt(text="a"), tokenizer_pb2.Prompt(token_ids=batch_pb2.TokenIds(token_ids=b"="))]
    sampling = sampling_pb2.SamplingParameters(temperature=0, max_tokens=4)
    request = tokenizer_pb2.GenerateRequest(prompts=prompts, sampling=sampling, n=2)
    async with grpc.aio.insecure_channel(services.address) as channel:
        response = await tokenizer_pb2_grpc.TokenizerServiceStub(channel).Generate(request)
    found = [(c.prompt_index, c.choice_index, c.text) for c in response.choices]
    assert found == [(0, 0, "bcde"), (0, 1, "bcde"), (1, 0, "1234"), (1, 1, "1234")]
    assert response.usage.num_output_tokens == 16


async def test_logprob_of_the_chosen_id_is_that_of_the_law(services: RunningServices) -> None:
    choice = await unary_and_stream(services, "a", max_tokens=3, logprobs=0)
    assert [entry.token_id for entry in choice.logprobs] == list(choice.token_ids)
    assert all(abs(entry.logprob) < 1e-4 for entry in choice.logprobs)
    assert [entry.token_bytes for entry in choice.logprobs] == [b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ([], {}, "prompts[0] has 0 tokens"),
        ([-1], {}, "[0] is -1"),
        ([320], {}, "[0] is 320, the model's vocabulary is [0, 320)"),
        ([2**31 - 1], {}, "[0] is 2147483647"),
        ([97] * 2048, {}, "prompts[0] has 2048 tokens, the model's context is 2048"),
        ("a", {"max_tokens": 0}, "sampling.max_tokens is 0"),
        ("a", {"max_tokens": -1}, "sampling.max_tokens is -1"),
        ("a", {"temperature": float("inf")}, "sampling.temperature is inf"),
        ("a", {"stop": [""]}, "stop[0]"),
    ],
)
async def test_bad_input_is_refused_with_its_name(
    services: RunningServices, prompt: Any, options: dict[str, Any], words: str
) -> None:
    """B36, B37; a good call after it is answered."""
    async with Client(services.address) as client:
        with pytest.raises(InvalidRequest) as error:
            await client.generate(prompt, **options)
        assert words in str(error.value)
        assert (await client.generate("a", temperature=0, max_tokens=2)).text == "bc"


async def test_padding_id_is_a_legal_prompt(services: RunningServices) -> None:
    """B36: 300 is a row of the model's table without text: allowed."""
    assert len((await unary_and_stream(services, [300, 97], max_tokens=2)).token_ids) == 2


async def test_context_ends_with_length(services: RunningServices) -> None:
    """B37: a prompt of L - 1 gives one id."""
    choice = await unary_and_stream(services, [97] * 2047)
    assert (list(choice.token_ids), choice.finish.reason) == ([98], sampling_pb2.FINISH_REASON_LENGTH)


async def test_field_not_honoured_is_refused_by_name(services: RunningServices) -> None:
    request = tokenizer_pb2.GenerateRequest(prompts=[tokenizer_pb2.Prompt(text="a")], tenant="blue")
    async with grpc.aio.insecure_channel(services.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="tenant is not supported"):
            await tokenizer_pb2_grpc.TokenizerServiceStub(channel).Generate(request)


async def test_empty_text_with_a_begin_token_is_one_token(services: RunningServices) -> None:
    """B36."""
    async with Client(services.address) as client:
        assert (await client.generate("", max_tokens=1)).usage.num_prompt_tokens == 1


async def test_deadline_ends_unary_and_stream(services: RunningServices) -> None:
    """B41: counted as expired; the executor drops the row."""
    async with Client(services.address) as client:
        with pytest.raises(DeadlineExceeded):
            await client.generate([97] * 1900, temperature=0, timeout_s=0.1)
        with pytest.raises(DeadlineExceeded):
            async for _ in client.generate_stream("a", temperature=0, timeout_s=0.2):
                pass
    await assert_idle(services)
    assert services.scrape(services.tokenizer)['packserve_requests_total{outcome="expired"}'] >= 2


async def test_cancelled_calls_leave_nothing(services: RunningServices) -> None:
    """B38, B41: 200 calls cancelled while queued, mid chunk, decoding and finishing, some of them with four choices."""
    chance = random.Random(0)
    before = services.scrape(services.tokenizer)['packserve_requests_total{outcome="cancelled"}']

    async def cancelled_call(client: Client, i: int) -> None:
        prompt = [97] * chance.choice([1, 40, 400])
        if i % 5 == 4:
            await cancelled_choices(prompt, chance.random() * 0.3)
        elif i % 4 == 0:  # unary, at any time
            task = asyncio.create_task(client.generate(prompt, temperature=0, max_tokens=300))
            await asyncio.sleep(chance.random() * 0.3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif i % 4 == 1:  # before anything can have come
            stream = client.generate_stream(prompt, temperature=0, max_tokens=300)
            task = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.001 * (i % 5))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.aclose()
        else:  # while decoding, or at the last token
            max_tokens = 8
            stream = client.generate_stream(prompt, temperature=0, max_tokens=max_tokens)
            for _ in range(chance.choice([1, 3, max_tokens])):
                await anext(stream, None)  # ids that came together share a message
            await stream.aclose()

    async def cancelled_choices(prompt: list[int], after_s: float) -> None:
        prompts = [tokenizer_pb2.Prompt(token_ids=batch_pb2.TokenIds(token_ids=prompt))]
        sampling = sampling_pb2.SamplingParameters(max_tokens=300)
        call = stub.GenerateStream(tokenizer_pb2.GenerateRequest(prompts=prompts, sampling=sampling, n=4))
        task = asyncio.create_task(anext(aiter(call), None))
        await asyncio.sleep(after_s)
        call.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async with Client(services.address) as client, grpc.aio.insecure_channel(services.address) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        for start in range(0, 200, 20):
            await asyncio.gather(*(cancelled_call(client, i) for i in range(start, start + 20)))
    client = Client(services.address)
    lost = asyncio.create_task(client.generate("a", temperature=0, max_tokens=1500))
    await asyncio.sleep(0.1)
    await client.close()  # the channel goes away under its call
    await asyncio.gather(lost, return_exceptions=True)
    await assert_idle(services)
    assert services.scrape(services.tokenizer)['packserve_requests_total{outcome="cancelled"}'] > before + 50


async def test_each_series_is_exported_by_one_service(services: RunningServices) -> None:
    def names(series: dict[str, float]) -> set[str]:
        return {name.split("{")[0] for name in series if name.startswith(("packserve_", "vllm:"))}

    tokenizer, executor = names(services.scrape(services.tokenizer)), names(services.scrape(services.executor))
    assert tokenizer
    assert executor
    # What every process tells of itself, under its own job.
    assert tokenizer & executor == {"packserve_ready", "packserve_build_info"}
