# SPDX-License-Identifier: Apache-2.0
"""A client of the tokenizer service, for asyncio: prompts in, text and ids out, errors of protos/errors.py.

    async with Client("127.0.0.1:50051") as client:
        async for choice in client.generate_stream("The capital of France is", max_tokens=16):
            print(choice.text, end="")

Does not retry, and does not know which executors answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import grpc

from protos.batch import TokenBatch
from protos.packserve.v1 import batch_pb2, sampling_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from protos.rpc import error_from_code

# A text, chat messages with `role` and `text`, or token ids.
Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]


class Client:
    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stub = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def generate(
        self, prompt: Prompt, *, stop: str | Sequence[str] = (), timeout_s: float | None = None, **fields: Any
    ) -> tokenizer_pb2.Choice:
        """The whole answer, of the first choice. ``fields`` are those of SamplingParameters (max_tokens=16) and of
        GenerateRequest (bad_words, priority, cache_salt)."""
        with domain_errors():
            response = await self._stub.Generate(generate_request(prompt, stop, fields), timeout=timeout_s)
        return response.choices[0]

    async def generate_stream(
        self, prompt: Prompt, *, stop: str | Sequence[str] = (), timeout_s: float | None = None, **fields: Any
    ) -> AsyncGenerator[tokenizer_pb2.Choice, None]:
        """What is new, as it comes; the last one carries `finish`. Closing the iterator cancels the call."""
        call = self._stub.GenerateStream(generate_request(prompt, stop, fields), timeout=timeout_s)
        try:
            with domain_errors():
                async for response in call:
                    for choice in response.choices:
                        yield choice
        finally:
            call.cancel()

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool | None = None) -> TokenBatch:
        request = tokenizer_pb2.TokenizeRequest(texts=texts, add_special_tokens=add_special_tokens)
        with domain_errors():
            return TokenBatch.from_wire((await self._stub.Tokenize(request)).batch)

    async def detokenize(self, batch: TokenBatch, *, skip_special_tokens: bool | None = None) -> list[str]:
        request = tokenizer_pb2.DetokenizeRequest(batch=batch.to_wire(), skip_special_tokens=skip_special_tokens)
        with domain_errors():
            return list((await self._stub.Detokenize(request)).texts)

    async def model_info(self) -> tokenizer_pb2.GetModelInfoResponse:
        with domain_errors():
            return await self._stub.GetModelInfo(tokenizer_pb2.GetModelInfoRequest())


def generate_request(
    prompt: Prompt, stop: str | Sequence[str], fields: Mapping[str, Any]
) -> tokenizer_pb2.GenerateRequest:
    """Each field goes where its name is. Raises ValueError for one that is nowhere."""
    own = fields.keys() & tokenizer_pb2.GenerateRequest.DESCRIPTOR.fields_by_name.keys()
    return tokenizer_pb2.GenerateRequest(
        prompts=[wire_prompt(prompt)],
        stop=[stop] if isinstance(stop, str) else stop,
        sampling=sampling_pb2.SamplingParameters(**{name: fields[name] for name in fields.keys() - own}),
        **{name: fields[name] for name in own},
    )


def wire_prompt(prompt: Prompt) -> tokenizer_pb2.Prompt:
    if isinstance(prompt, str):
        return tokenizer_pb2.Prompt(text=prompt)
    messages = [chat_message(message) for message in prompt if isinstance(message, Mapping)]
    if messages:
        return tokenizer_pb2.Prompt(chat=tokenizer_pb2.Chat(messages=messages))
    token_ids = [token_id for token_id in prompt if not isinstance(token_id, Mapping)]
    return tokenizer_pb2.Prompt(token_ids=batch_pb2.TokenIds(token_ids=token_ids))


def chat_message(message: Mapping[str, str]) -> tokenizer_pb2.ChatMessage:
    return tokenizer_pb2.ChatMessage(role=message["role"], text=message["text"])


@contextmanager
def domain_errors() -> Iterator[None]:
    """A status becomes the error that the server raised."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_from_code(error.code().value[0], error.details() or error.code().name) from error
