# SPDX-License-Identifier: Apache-2.0
"""TokenizerService: from the wire, call, to the wire. Errors become statuses around it (protos/calls.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from google.protobuf.message import Message

from protos.batch import TokenBatch
from protos.calls import Context
from protos.errors import InvalidRequest, LimitReached
from protos.packserve.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from protos.presence import is_true_or_unset
from protos.server import MAX_MESSAGE_BYTES
from protos.vocabulary import Vocabulary
from tokenizer_service.detokenizer import Detokenizer
from tokenizer_service.generation import Generator, collect

MessageT = TypeVar("MessageT", bound=Message)


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """The port is there before the tokenizer is loaded: no call may reach a method before `open`."""

    def open(self, generator: Generator) -> None:
        self._generator = generator
        self._prompts = generator.prompts
        self._vocabulary = generator.vocabulary

    async def Generate(
        self, request: tokenizer_pb2.GenerateRequest, context: Context
    ) -> tokenizer_pb2.GenerateResponse:
        async with aclosing(self._generator.stream(request, context.time_remaining())) as responses:
            return _bounded(await collect(responses))

    async def GenerateStream(
        self, request: tokenizer_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[tokenizer_pb2.GenerateStreamResponse]:
        async with aclosing(self._generator.stream(request, context.time_remaining())) as responses:
            async for response in responses:
                yield response

    async def Tokenize(
        self, request: tokenizer_pb2.TokenizeRequest, _context: Context
    ) -> tokenizer_pb2.TokenizeResponse:
        is_framed = is_true_or_unset(request, "add_special_tokens")
        rendered = [await self._prompts.render(chat) for chat in request.chats]
        rows = await self._prompts.encode_texts(request.texts, is_framed)
        rows += await self._prompts.encode_texts(rendered, False)
        batch = TokenBatch.pack(range(len(rows)), rows)
        return _bounded(tokenizer_pb2.TokenizeResponse(batch=batch.to_wire(), rendered_chats=rendered))

    async def Detokenize(
        self, request: tokenizer_pb2.DetokenizeRequest, _context: Context
    ) -> tokenizer_pb2.DetokenizeResponse:
        texts = await asyncio.to_thread(_detokenize, request, self._vocabulary)
        return _bounded(tokenizer_pb2.DetokenizeResponse(texts=texts))

    async def GetModelInfo(
        self, _request: tokenizer_pb2.GetModelInfoRequest, _context: Context
    ) -> tokenizer_pb2.GetModelInfoResponse:
        pool = self._generator.pool
        welcome = pool.welcome
        return tokenizer_pb2.GetModelInfoResponse(
            name=self._generator.model_name,
            has_chat_template=self._prompts.has_chat_template,
            tokenizer_vocabulary_size=len(self._vocabulary),
            vocabulary_sha256=self._vocabulary.sha256,
            model=welcome.model if welcome else None,
            fingerprint=welcome.fingerprint if welcome else None,
            num_executors=pool.num_connected,
            version=_version(),
        )


def _detokenize(request: tokenizer_pb2.DetokenizeRequest, vocabulary: Vocabulary) -> list[str]:
    batch = TokenBatch.from_wire(request.batch)
    context = TokenBatch.from_wire(request.context) if request.HasField("context") else None
    if context is not None and len(context) != len(batch):
        raise InvalidRequest(f"context has {len(context)} rows, batch has {len(batch)}")
    is_hidden = is_true_or_unset(request, "skip_special_tokens")
    texts = []
    for i in range(len(batch)):
        before = context.row(i) if context is not None else ()
        detokenizer = Detokenizer(vocabulary, context=before, skip_special_tokens=is_hidden)
        texts.append(detokenizer.push(batch.row(i)) + detokenizer.finish())
    return texts


def _bounded(response: MessageT) -> MessageT:
    """Raises LimitReached here, with both numbers, rather than as a transport's words."""
    if response.ByteSize() > MAX_MESSAGE_BYTES:
        raise LimitReached(f"the response has {response.ByteSize()} bytes, a message takes {MAX_MESSAGE_BYTES}")
    return response


def _version() -> str:
    try:
        return version("packserve")
    except PackageNotFoundError:  # run from its sources
        return ""
