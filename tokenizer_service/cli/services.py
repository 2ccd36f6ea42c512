# SPDX-License-Identifier: Apache-2.0
"""The commands that become another program: one service alone, and the demo model.

Knows the programs' names only; their own ``--help`` says what they take.
"""

from __future__ import annotations

import os
import subprocess
import sys

import click

PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True}


@click.command(context_settings=PASS_ON, add_help_option=False, short_help="Run the executor service alone.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def executor(arguments: tuple[str, ...]) -> None:
    become("executor_service", "EXECUTOR_MODEL", arguments)


@click.command(context_settings=PASS_ON, add_help_option=False, short_help="Run the tokenizer service alone.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tokenizer(arguments: tuple[str, ...]) -> None:
    become("tokenizer_service", "TOKENIZER_MODEL", arguments)


@click.group()
def model() -> None:
    """Models on this machine. The services take any local directory in Hugging Face layout by --model DIR."""


@model.command()
def get() -> None:
    """Fetch the demo model where it is missing, and print its directory."""
    click.echo(demo_model())


def become(module: str, model_variable: str, arguments: tuple[str, ...]) -> None:
    """Replaces this process, so that signals and the exit status are the service's own."""
    if not names_a_model(arguments, model_variable):
        arguments = ("--model", demo_model(), *arguments)
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606


def names_a_model(arguments: tuple[str, ...], model_variable: str) -> bool:
    is_named = any(argument.split("=")[0] in ("--model", "--help", "-h") for argument in arguments)
    return is_named or model_variable in os.environ


def demo_model() -> str:
    """The demo model's directory, by a process of its own: making it belongs to the executor's side."""
    command = [sys.executable, "-m", "executor_service.conversion.demo_model"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    if result.returncode:
        raise click.exceptions.Exit(result.returncode)  # it has said why
    return result.stdout.strip()
