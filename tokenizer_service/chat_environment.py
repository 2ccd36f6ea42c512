# SPDX-License-Identifier: Apache-2.0
"""The Jinja sandbox that chat templates are written for: what transformers 5 gives them, name for name.

Templates come with models and are not trusted: they cannot change what they are given or reach into Python.
Does not know messages or where a template was found.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment


def chat_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, jinja2.ext.loopcontrols],
        # A chat template renders plain text for a tokenizer, never HTML.
        autoescape=False,
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=strftime_now, dict=DictFactory(), namespace=Namespace
    )
    return environment


class GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks what a model is trained to say; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own, as the macro call of transformers is: what is set inside is not seen behind it.
        return [jinja2.nodes.Scope(body)]


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter writes < and ' as escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def strftime_now(pattern: str) -> str:
    """Local time: that is what templates were tried with."""
    return datetime.now().strftime(pattern)


class DictFactory:
    """The two uses of `dict` that templates have, without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Namespace(jinja2.utils.Namespace):
    """Keeps no name that begins with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that namespace(self=...) works
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no name with a leading underscore: {name!r}")
