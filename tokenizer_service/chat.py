# SPDX-License-Identifier: Apache-2.0
"""Chats to text, by the model's own template. The template writes the control tokens: what it renders is encoded
without adding any.

Knows where a model directory keeps templates and what variables they read. Does not know ids or calls. Variables that
a template does not read are of no effect, as in transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from protos.errors import ConfigError, InvalidRequest
from protos.packserve.v1 import tokenizer_pb2
from protos.presence import is_true_or_unset
from protos.vocabulary import Json, read_json
from tokenizer_service.chat_environment import chat_environment
from tokenizer_service.chat_messages import (
    ContentFormat,
    Message,
    arguments_from_wire,
    documents_from_wire,
    messages_from_wire,
)

DEFAULT, TOOL_USE = "default", "tool_use"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")

# What a template's own expressions raise, given a chat that it was not written for.
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """sources: templates by name; "tool_use" is taken where tools are given, else "default"."""

    def __init__(self, sources: dict[str, str], special_tokens: dict[str, str]) -> None:
        environment = chat_environment()
        self._special_tokens = special_tokens
        try:
            self._templates = {name: environment.from_string(source) for name, source in sources.items()}
            self._formats = {name: ContentFormat.of(source, environment) for name, source in sources.items()}
        except jinja2.TemplateError as error:
            raise ConfigError(f"chat template: {error}") from error

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate | None:
        """None where the model has no template."""
        sources = _sources(directory)
        return cls(sources, _special_tokens(directory)) if sources else None

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[Message] | None = None,
        add_generation_prompt: bool = True,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        """arguments: further variables; they may replace special tokens."""
        if not messages:
            raise InvalidRequest("messages is empty, a chat has at least 1")
        arguments = arguments or {}
        for name in OWN_VARIABLES:
            if name in arguments:
                raise InvalidRequest(f"template_arguments.{name} is a field of its own")
        own = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        variables = {"documents": None, **self._special_tokens, **arguments, **own}
        try:
            return self._templates[self._name(tools is not None)].render(variables)
        except TEMPLATE_ERRORS as error:
            raise InvalidRequest(f"chat template: {error}") from error

    def messages_from_wire(self, chat: tokenizer_pb2.Chat) -> list[Message]:
        """In the form that the template for this chat reads."""
        return messages_from_wire(chat.messages, self._formats[self._name(bool(chat.tools))])

    def render_wire(self, chat: tokenizer_pb2.Chat) -> str:
        return self.render(
            self.messages_from_wire(chat),
            tools=documents_from_wire(chat.tools, "tools") or None,
            add_generation_prompt=is_true_or_unset(chat, "add_generation_prompt"),
            arguments=arguments_from_wire(chat),
        )

    def _name(self, has_tools: bool) -> str:
        name = TOOL_USE if has_tools and TOOL_USE in self._templates else DEFAULT
        if name not in self._templates:
            raise InvalidRequest(f"the model has no {name!r} chat template, only {', '.join(sorted(self._templates))}")
        return name


def _sources(directory: Path) -> dict[str, str]:
    """Files of their own win over tokenizer_config.json."""
    files = {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    if (path := directory / "chat_template.jinja").is_file():
        files = {DEFAULT: path} | files
    if files:
        return {name: path.read_text("utf-8") for name, path in files.items()}
    template = read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return {} if template is None else {DEFAULT: template}


def _special_tokens(directory: Path) -> dict[str, str]:
    config = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
    return {name: _content(config[name]) for name in SPECIAL_TOKENS if config.get(name) is not None}


def _content(token: str | Json) -> str:
    return token if isinstance(token, str) else token["content"]
