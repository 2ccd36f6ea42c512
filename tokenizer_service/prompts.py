# SPDX-License-Identifier: Apache-2.0
"""Prompts of every kind to token ids: texts encoded together, chats rendered first, ids taken as they are.

Off the event loop. Does not know the model's limits; admission.py does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from protos.batch import Int32Array
from protos.errors import NotReady
from protos.packserve.v1 import tokenizer_pb2
from protos.presence import is_true_or_unset
from tokenizer_service.chat import ChatTemplate
from tokenizer_service.encoder import Encoder


class PromptEncoder:
    def __init__(self, encoder: Encoder, chat_template: ChatTemplate | None) -> None:
        self._encoder = encoder
        self._chat_template = chat_template

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    async def encode(self, prompts: Sequence[tokenizer_pb2.Prompt]) -> list[Int32Array]:
        """One row for each prompt."""
        rows: list[Int32Array] = [np.empty(0, np.int32)] * len(prompts)
        # (place, text), without and with the tokenizer's own begin and end tokens.
        plain: list[tuple[int, str]] = []
        framed: list[tuple[int, str]] = []
        for i, prompt in enumerate(prompts):
            if prompt.HasField("token_ids"):
                rows[i] = np.array(prompt.token_ids.token_ids, np.int32)
            elif prompt.HasField("chat"):
                plain.append((i, await self.render(prompt.chat)))
            else:
                is_framed = is_true_or_unset(prompt, "add_special_tokens")
                (framed if is_framed else plain).append((i, prompt.text))
        for texts, is_framed in ((plain, False), (framed, True)):
            for (i, _), row in zip(texts, await self.encode_texts([text for _, text in texts], is_framed), strict=True):
                rows[i] = row
        return rows

    async def encode_texts(self, texts: Sequence[str], add_special_tokens: bool) -> list[Int32Array]:
        return await self._encoder.encode(texts, add_special_tokens) if texts else []

    async def render(self, chat: tokenizer_pb2.Chat) -> str:
        """By the model's own template. What it gives is encoded without special tokens: the template wrote them."""
        if self._chat_template is None:
            raise NotReady("the model has no chat template: send text or token_ids, or add a chat_template.jinja to it")
        return await asyncio.to_thread(self._chat_template.render_wire, chat)
