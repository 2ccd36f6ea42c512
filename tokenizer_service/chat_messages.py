# SPDX-License-Identifier: Apache-2.0
"""Chats from the wire, as the plain lists and dicts that templates read, in the form that a template reads them in.

Knows how a template treats a message's content by looking at its source. Does not render.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from google.protobuf.json_format import MessageToDict
from jinja2 import nodes

from protos.errors import InvalidRequest
from protos.packserve.v1 import tokenizer_pb2

Message = dict[str, Any]


@dataclass(frozen=True)
class ContentFormat:
    """takes_parts: the template loops over a content's parts. takes_text: it also, or only, takes a string."""

    takes_parts: bool
    takes_text: bool

    @classmethod
    def of(cls, source: str, environment: jinja2.Environment) -> ContentFormat:
        tree = environment.parse(source)
        named = {
            node.target.name
            for node in tree.find_all(nodes.Assign)
            if isinstance(node.target, nodes.Name) and _is_content(node.node, frozenset())
        }
        names = frozenset(named | {"content"})
        takes_parts = any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
        tests = [test for test in tree.find_all(nodes.Test) if test.name == "string"]
        return cls(takes_parts, not takes_parts or any(_is_content(test.node, names) for test in tests))


def _is_content(node: nodes.Node, names: frozenset[str]) -> bool:
    """Whether an expression is some message's content itself, perhaps filtered; or a variable that holds one."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    match node:
        case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Name(name=name):
            return name in names
    return False


def messages_from_wire(messages: Iterable[tokenizer_pb2.ChatMessage], content_format: ContentFormat) -> list[Message]:
    return [_message(message, content_format, f"messages[{i}]") for i, message in enumerate(messages)]


def documents_from_wire(documents: Iterable[str], field: str) -> list[Message]:
    """JSON objects, such as tools."""
    return [_json_object(text, f"{field}[{i}]") for i, text in enumerate(documents)]


def arguments_from_wire(chat: tokenizer_pb2.Chat) -> dict[str, Any]:
    """A Struct has only floats; a whole one is meant as an integer, and is printed as one."""
    try:
        arguments: dict[str, Any] = _whole(MessageToDict(chat.template_arguments))
    except ValueError as error:
        raise InvalidRequest(f"chat.template_arguments: {error}") from error
    return arguments


def _message(message: tokenizer_pb2.ChatMessage, content_format: ContentFormat, field: str) -> Message:
    if not message.role:
        raise InvalidRequest(f"{field}.role is empty")
    plain: Message = {"role": message.role, "content": _content(message, content_format, field)}
    if message.name:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = documents_from_wire(message.tool_calls, f"{field}.tool_calls")
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.reasoning:  # templates know it by either name
        plain |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    return plain


def _content(message: tokenizer_pb2.ChatMessage, content_format: ContentFormat, field: str) -> str | list[Message]:
    """Nothing is an empty text. Parts stay parts only for a template that loops over them."""
    for i, part in enumerate(message.parts.parts):
        if part.WhichOneof("kind") != "text":
            raise InvalidRequest(f"{field}.parts[{i}] is not a text; other parts are not understood")
    is_parts = message.WhichOneof("content") == "parts"
    texts = [part.text for part in message.parts.parts] if is_parts else [message.text]
    if content_format.takes_parts and (is_parts or not content_format.takes_text):
        return [{"type": "text", "text": text} for text in texts]
    return "".join(texts)


def _json_object(text: str, field: str) -> Message:
    try:
        document = json.loads(text)
        # An escape can stand for half a character, which no tokenizer takes.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{field} is a JSON {type(document).__name__}, must be an object")
    return document


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
