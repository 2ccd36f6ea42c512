# SPDX-License-Identifier: Apache-2.0
"""The commands that ask running services and show the answer as it comes: ``generate`` and ``chat``.

Does not start anything.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from protos.client import Client, Prompt
from protos.errors import PackserveError
from protos.packserve.v1 import sampling_pb2
from tokenizer_service.cli.options import (
    CONSTRAINT_FIELDS,
    Sampling,
    constraint,
    constraint_options,
    given,
    sampling_options,
)


@click.command()
@click.argument("prompt")
@sampling_options
@constraint_options
@click.option("--stop", multiple=True, help="End the answer before this text. Can be given more than once.")
@click.option("--chat", "is_chat", is_flag=True, help="PROMPT is a message to answer, by the model's chat template.")
def generate(prompt: str, address: str, stop: tuple[str, ...], is_chat: bool, **sampling: Any) -> None:
    """Continue the text PROMPT, streamed to the terminal. PROMPT - reads the standard input."""
    text = sys.stdin.read() if prompt == "-" else prompt
    sampling["constraint"] = constraint(**{name: sampling.pop(name) for name in CONSTRAINT_FIELDS})
    with shown_errors():
        asyncio.run(answer(address, text, is_chat, stop=stop, **given(sampling)))


@click.command()
@sampling_options
@click.option("--system", help="An instruction that stands before the conversation.")
def chat(address: str, system: str | None, **sampling: Any) -> None:
    """Talk with the model. Ctrl-C ends an answer, Ctrl-D ends the conversation."""
    messages = [{"role": "system", "text": system}] if system else []
    with shown_errors(), asyncio.Runner() as runner:
        while (text := read_line()) is not None:
            messages.append({"role": "user", "text": text})
            messages.append({"role": "assistant", "text": take_turn(runner, address, messages, given(sampling))})


def read_line() -> str | None:
    try:
        return str(click.prompt(click.style(">", bold=True), prompt_suffix=" "))
    except click.Abort:
        click.echo()
        return None


def take_turn(runner: asyncio.Runner, address: str, messages: list[dict[str, str]], sampling: Sampling) -> str:
    """The answer, or as much of it as came before Ctrl-C."""
    said: list[str] = []
    try:
        runner.run(show(address, messages, said, **sampling))
    except KeyboardInterrupt:
        click.echo()
    return "".join(said)


async def answer(address: str, text: str, is_chat: bool, **options: Any) -> None:
    await show(address, [{"role": "user", "text": text}] if is_chat else text, [], **options)


async def show(address: str, prompt: Prompt, said: list[str], **options: Any) -> None:
    """Each piece goes to the terminal as it comes, and to ``said``."""
    is_cut = False
    try:
        async with Client(address) as client:
            async for choice in client.generate_stream(prompt, **options):
                click.echo(choice.text, nl=False)
                said.append(choice.text)
                is_cut = choice.finish.reason == sampling_pb2.FINISH_REASON_LENGTH
    finally:
        click.echo()
    if is_cut:
        click.secho(f"[cut after {choice.usage.num_output_tokens} tokens]", dim=True, err=True)


@contextmanager
def shown_errors() -> Iterator[None]:
    """An error of ours becomes one line and status 1."""
    try:
        yield
    except PackserveError as error:
        raise click.ClickException(str(error)) from error
