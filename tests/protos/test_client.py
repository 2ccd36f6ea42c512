# SPDX-License-Identifier: Apache-2.0
"""The client: each kind of prompt reaches the wire, and a status comes back as the error that was raised."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from protos.client import Client, Prompt, generate_request
from protos.errors import InvalidRequest, Unavailable
from protos.packserve.v1 import sampling_pb2
from tests.fixtures.echo_service import EchoServicer, serve_echo


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with serve_echo(EchoServicer()) as address, Client(address) as client:
        yield client


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("hello", "hello"),
        ([{"role": "system", "text": "be "}, {"role": "user", "text": "kind"}], "be kind"),
        ([1, 2], "[1, 2]"),
    ],
)
async def test_stream_sums_to_the_unary_answer(client: Client, prompt: Prompt, text: str) -> None:
    choices = [choice async for choice in client.generate_stream(prompt)]
    assert "".join(choice.text for choice in choices) == text
    assert choices[-1].finish.reason == sampling_pb2.FINISH_REASON_STOP
    assert (await client.generate(prompt)).text == text


async def test_sampling_fields_keep_their_presence() -> None:
    servicer = EchoServicer()
    async with serve_echo(servicer) as address, Client(address) as client:
        await client.generate("a", stop=["b"], temperature=0, stop_token_ids=[7])
    (request,) = servicer.requests
    assert request.sampling == sampling_pb2.SamplingParameters(temperature=0, stop_token_ids=[7])
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("top_p")
    assert request.stop == ["b"]


async def test_tokenize_detokenize_and_model_info(client: Client) -> None:
    batch = await client.tokenize(["ab", "c"])
    assert [row.tolist() for _, row in batch] == [[97, 98], [99]]
    assert await client.detokenize(batch) == ["a", "a"]
    assert (await client.model_info()).name == "echo"


async def test_status_comes_back_as_the_servers_error(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens is -1, must be at least 1"):
        [_ async for _ in client.generate_stream("a", max_tokens=-1)]


async def test_no_server_is_unavailable() -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await client.model_info()


def test_fields_go_where_their_names_are() -> None:
    request = generate_request("a", "END", {"temperature": 0.5, "bad_words": ["x"], "priority": 3})
    assert (list(request.stop), list(request.bad_words), request.priority) == (["END"], ["x"], 3)
    assert request.sampling.temperature == 0.5
    with pytest.raises(ValueError, match="temperatur"):
        generate_request("a", (), {"temperatur": 0.5})
