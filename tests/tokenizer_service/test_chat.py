# SPDX-License-Identifier: Apache-2.0
"""Chats to text: byte for byte as transformers renders them, and errors in the template's own words."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from transformers import PreTrainedTokenizerFast

from protos.errors import ConfigError, InvalidRequest
from protos.packserve.v1 import tokenizer_pb2
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tokenizer_service.chat import ChatTemplate
from tokenizer_service.chat_messages import arguments_from_wire, documents_from_wire

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- "\\n" + (tool | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{% for message in messages %}
    {%- if message.role == 'system' and not loop.first %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
    {{- message.content | trim }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>' ~ call.function | tojson(indent=2) ~ '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
LAYOUT = """\
{% set ns = namespace(count=0) %}
{{ bos_token }}
    {% for message in messages %}
  {% set ns.count = ns.count + 1 %}
  {% set x = 1 %}
  {{ ns.count }}. {{ message['role'] }}: {% generation %}{{ loop.index ~ message['content'] }}{% set x = 2 %}
    {% endgeneration %}{{ x }}

    {% endfor %}
{{ eos_token }}{{ pad_token }}{{ documents }}
"""
TURNS = """\
{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate') }}{% endif %}{{ message.content }}{% endfor %}"""
PARTS = """\
{% for message in messages %}{{ message.role }}:{% if message.content is string %}{{ message.content }}{% else %}\
{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"""
PARTS_ONLY = "{% for m in messages %}{% for part in m['content'] | list %}[{{ part['text'] }}]{% endfor %}{% endfor %}"
TEXT = "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}"

TOOL = {"type": "function", "function": {"name": "f", "description": "a < b & 'c' 世"}}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": "<b>"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "1 < 2 & 'é' 世?"},
    {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "system", "content": "again"},
    {"role": "user", "content": "thanks"},
]


def load(directory: Path, chat_template: Any = None, **config: Any) -> ChatTemplate:
    template = ChatTemplate.load(write_byte_tokenizer(directory, chat_template=chat_template, **config))
    assert template is not None
    return template


def oracle(directory: Path, messages: list[dict[str, Any]], **options: Any) -> str:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory))
    rendered: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return rendered


def wire(*messages: dict[str, Any], **fields: Any) -> tokenizer_pb2.Chat:
    return ParseDict({"messages": list(messages), **fields}, tokenizer_pb2.Chat())


def parts(*texts: str) -> dict[str, Any]:
    return {"role": "user", "parts": {"parts": [{"text": text} for text in texts]}}


@pytest.mark.parametrize("source", [CHATML, LAYOUT, TEXT, PARTS])
@pytest.mark.parametrize("tools", [None, [TOOL, TOOL]])
@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}, {"enable_thinking": True, "unknown": 1}])
def test_rendered_as_transformers_does(
    tmp_path: Path, source: str, tools: Any, add_generation_prompt: bool, arguments: dict[str, Any]
) -> None:
    template = load(tmp_path, source)
    options = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    rendered = template.render(MESSAGES, arguments=arguments, **options)
    assert rendered == oracle(tmp_path, MESSAGES, **options, **arguments)


def test_b21_date_is_the_whole_pattern(tmp_path: Path) -> None:
    template = load(tmp_path, "{{ strftime_now('%d %b %Y %H:%M') }}")
    assert re.fullmatch(r"\d\d \w{3} \d{4} \d\d:\d\d", template.render(MESSAGES))


def test_b21_template_speaks_in_its_own_words(tmp_path: Path) -> None:
    template = load(tmp_path, TURNS)
    with pytest.raises(InvalidRequest, match="Conversation roles must alternate"):
        template.render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace(__init__=1) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ messages | tojson(indent=messages) }}",
    ],
)
def test_any_failure_of_a_template_is_the_requests(tmp_path: Path, source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"chat template: \w"):
        load(tmp_path, source).render(MESSAGES)


def test_broken_template_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chat template"):
        load(tmp_path, "{% if %}")


def test_b17_model_without_template(tmp_path: Path) -> None:
    assert ChatTemplate.load(write_byte_tokenizer(tmp_path)) is None


def test_b17_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    template = load(tmp_path, named)
    assert template.render(MESSAGES) == oracle(tmp_path, MESSAGES) == "plain"
    assert template.render(MESSAGES, tools=[TOOL]) == oracle(tmp_path, MESSAGES, tools=[TOOL]) == "tools"
    assert load(tmp_path, named[:1]).render(MESSAGES, tools=[TOOL]) == "plain"
    with pytest.raises(InvalidRequest, match="only tool_use"):
        load(tmp_path, named[1:]).render(MESSAGES)


def test_b17_template_files_win(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, chat_template="from config")
    (tmp_path / "chat_template.jinja").write_text("from file\n", "utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("from tools file", "utf-8")
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render(MESSAGES) == oracle(tmp_path, MESSAGES) == "from file"
    assert template.render(MESSAGES, tools=[TOOL]) == oracle(tmp_path, MESSAGES, tools=[TOOL]) == "from tools file"


def test_special_tokens_are_variables_and_may_be_objects(tmp_path: Path) -> None:
    template = load(tmp_path, "{{ bos_token }}{{ eos_token }}{{ unk_token }}|", bos_token={"content": "<|bos|>"})
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "x", "unk_token": "<u>"}), "utf-8")
    assert template.render(MESSAGES) == "<|bos|><|end|>|"
    assert template.render(MESSAGES, arguments={"bos_token": "B"}) == "B<|end|>|"
    again = ChatTemplate.load(tmp_path)
    assert again is not None
    assert again.render(MESSAGES) == "<|bos|><|end|><u>|"


def test_arguments_are_no_second_way_to_a_field(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"template_arguments\.messages"):
        load(tmp_path, TEXT).render(MESSAGES, arguments={"messages": []})


def test_empty_chat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="messages is empty"):
        load(tmp_path, TEXT).render_wire(wire())


@pytest.mark.parametrize(
    ("source", "rendered"), [(TEXT, "user:ab;"), (PARTS, "user:[a][b]"), (PARTS_ONLY, "[a][b]"), (CHATML, None)]
)
def test_b19_parts_as_the_template_reads_them(tmp_path: Path, source: str, rendered: str | None) -> None:
    chat = wire(parts("a", "b"), add_generation_prompt=False)
    assert load(tmp_path, source).render_wire(chat) == (rendered or "<|im_start|>user\nab<|im_end|>\n")


@pytest.mark.parametrize(("source", "rendered"), [(TEXT, "user:a;"), (PARTS, "user:a"), (PARTS_ONLY, "[a]")])
def test_b19_text_as_the_template_reads_it(tmp_path: Path, source: str, rendered: str) -> None:
    assert load(tmp_path, source).render_wire(wire({"role": "user", "text": "a"})) == rendered


@pytest.mark.parametrize(
    "source",
    [
        "{% macro show(content) %}{% for c in content %}{{ c.text }}{% endfor %}{% endmacro %}"
        "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
        "{% for m in messages %}{% set c = m['content'] %}{% for p in c | selectattr('type', 'equalto', 'text') %}"
        "{{ p.text }}{% endfor %}{% endfor %}",
    ],
)
def test_b19_loops_over_parts_are_seen_through_names(tmp_path: Path, source: str) -> None:
    template = load(tmp_path, source)
    assert template.messages_from_wire(wire(parts("a")))[0]["content"] == [{"type": "text", "text": "a"}]


def test_b19_loop_over_pieces_of_a_text_is_no_loop_over_parts(tmp_path: Path) -> None:
    template = load(
        tmp_path, "{% for m in messages %}{% for l in m.content.split('\\n') %}{{ l }}{% endfor %}{% endfor %}"
    )
    assert template.render_wire(wire(parts("a\n", "b"))) == "ab"


def test_b19_unset_content_is_empty_and_unknown_parts_are_refused(tmp_path: Path) -> None:
    template = load(tmp_path, TEXT)
    assert template.render_wire(wire({"role": "user"}, parts())) == "user:;user:;"
    chat = wire({"role": "user"}, {"role": "user", "parts": {"parts": [{"text": "a"}, {}]}})
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.parts\[1\]"):
        template.render_wire(chat)
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.role is empty"):
        template.render_wire(wire({"text": "a"}))


def test_wire_chat_is_rendered_as_transformers_renders_the_same_messages(tmp_path: Path) -> None:
    template = load(tmp_path, CHATML)
    messages = [{"role": m["role"], "text": m["content"]} for m in MESSAGES]
    messages[2] |= {"reasoning": "hm", "tool_calls": [json.dumps(CALL)]}
    chat = wire(*messages, tools=[json.dumps(TOOL)], template_arguments={"enable_thinking": False})
    expected = oracle(tmp_path, MESSAGES, tools=[TOOL], add_generation_prompt=True, enable_thinking=False)
    assert template.render_wire(chat) == expected


def test_every_field_of_a_message_arrives(tmp_path: Path) -> None:
    message = {"role": "tool", "text": "4", "name": "f", "tool_call_id": "7", "reasoning": "hm", "tool_calls": ["{}"]}
    assert load(tmp_path, TEXT).messages_from_wire(wire(message)) == [
        {
            "role": "tool",
            "content": "4",
            "name": "f",
            "tool_call_id": "7",
            "tool_calls": [{}],
            "reasoning_content": "hm",
            "thinking": "hm",
        }
    ]


def test_whole_numbers_of_template_arguments_are_integers(tmp_path: Path) -> None:
    arguments = {"a": 3, "b": [1, {"c": 2.5}], "d": True, "e": None}
    template = load(tmp_path, "{{ a }} {{ b }} {{ d }} {{ e }}")
    assert template.render_wire(wire({"role": "user"}, template_arguments=arguments)) == "3 [1, {'c': 2.5}] True None"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": ["{"]}, r"tools\[0\] is not JSON"),
        ({"tools": ["{}", "[1]"]}, r"tools\[1\] is a JSON list"),
    ],
)
def test_bad_tools_are_named(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        load(tmp_path, TEXT).render_wire(wire({"role": "user"}, **fields))


def test_bad_tool_calls_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.tool_calls\[0\] is not JSON"):
        load(tmp_path, TEXT).render_wire(wire({"role": "assistant", "tool_calls": ["x"]}))


def test_values_that_no_text_can_hold_are_the_callers_mistake() -> None:
    chat = tokenizer_pb2.Chat(messages=[tokenizer_pb2.ChatMessage(role="user", text="hi")])
    chat.template_arguments["x"] = float("nan")
    with pytest.raises(InvalidRequest, match=r"chat\.template_arguments"):
        arguments_from_wire(chat)
    with pytest.raises(InvalidRequest, match=r"tools\[0\]"):
        documents_from_wire(['{"a": "\\ud800"}'], "tools")
