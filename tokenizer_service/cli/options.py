# SPDX-License-Identifier: Apache-2.0
"""What shapes an answer, as options of the commands that ask: each is a field of SamplingParameters.

Ranges are the service's to check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any, TypeVar

import click

from protos.packserve.v1 import sampling_pb2

Command = TypeVar("Command", bound=Callable[..., Any])
Sampling = dict[str, Any]

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_MAX_TOKENS = 256

TEXT_FILE = click.File(encoding="utf-8")
# What the fields can hold.
INT32 = click.IntRange(-(2**31), 2**31 - 1)
UINT64 = click.IntRange(0, 2**64 - 1)

SAMPLING_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("--address", default=DEFAULT_ADDRESS, show_default=True, help="Of the tokenizer service."),
    click.option(
        "--max-tokens", type=INT32, default=DEFAULT_MAX_TOKENS, show_default=True, help="End the answer there."
    ),
    click.option("--temperature", default=0.0, show_default=True, help="0 takes the likeliest token each time."),
    click.option("--top-k", type=INT32, help="Choose among the k likeliest tokens."),
    click.option("--top-p", type=float, help="Choose among the likeliest tokens that reach probability p."),
    click.option("--min-p", type=float, help="Choose among tokens at least p times as likely as the likeliest."),
    click.option("--repetition-penalty", type=float, help="Above 1, tokens of prompt and answer become less likely."),
    click.option("--presence-penalty", type=float, help="Above 0, tokens of the answer become less likely."),
    click.option("--frequency-penalty", type=float, help="The same, as often as the answer has them."),
    click.option("--seed", type=UINT64, help="The same seed gives the same answer."),
]
CONSTRAINT_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("--json-schema", type=TEXT_FILE, metavar="FILE", help="Answer in JSON that fits this schema."),
    click.option("--json", "json_object", is_flag=True, help="Answer with a JSON object."),
    click.option("--regex", help="Answer with a text that this expression describes."),
    click.option("--grammar", type=TEXT_FILE, metavar="FILE", help="Answer with a text of this EBNF grammar."),
    click.option("--choice", "choices", multiple=True, help="Answer with one of these texts. Given for each."),
]
CONSTRAINT_FIELDS = [field.name for field in sampling_pb2.Constraint.DESCRIPTOR.fields]


def sampling_options(command: Command) -> Command:
    """--address and the numbers, for every command that asks."""
    return _with_options(command, SAMPLING_OPTIONS)


def constraint_options(command: Command) -> Command:
    return _with_options(command, CONSTRAINT_OPTIONS)


def _with_options(command: Command, options: list[Callable[[Any], Any]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def given(sampling: Sampling) -> Sampling:
    """Without the fields that were left to the model."""
    return {name: value for name, value in sampling.items() if value is not None}


def constraint(
    json_schema: IO[str] | None,
    json_object: bool,
    regex: str | None,
    grammar: IO[str] | None,
    choices: tuple[str, ...],
) -> sampling_pb2.Constraint | None:
    """Of constraint_options, of which at most one can be given."""
    kinds: dict[str, Any] = {
        "json_schema": json_schema and _text(json_schema),
        "json_object": json_object or None,
        "regex": regex,
        "grammar": grammar and _text(grammar),
        "choices": sampling_pb2.Choices(choices=choices) if choices else None,
    }
    kinds = given(kinds)
    if len(kinds) > 1:
        raise click.UsageError(f"only one of {', '.join(kinds)} can be given")
    return sampling_pb2.Constraint(**kinds) if kinds else None


def _text(file: IO[str]) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file.name}: byte {error.start} is not UTF-8") from error
