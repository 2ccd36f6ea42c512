# SPDX-License-Identifier: Apache-2.0
"""The console script ``packserve``: a person's door to both services.

Starts the services as processes and speaks to them over gRPC; imports neither.
"""

from __future__ import annotations

import click

from tokenizer_service.cli.ask import chat, generate
from tokenizer_service.cli.quantize import quantize
from tokenizer_service.cli.services import executor, model, tokenizer
from tokenizer_service.cli.up import up


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="packserve")
def main() -> None:
    """LLM serving as two gRPC services: a tokenizer service packs text into token ids, an executor service runs the
    model on them.

    \b
    Start here:
      packserve up                         both services on this machine, with a small demo model
      packserve generate "Hello"           ask the running services from another terminal
      packserve chat                       talk with the model

    \b
    Each service alone, for a machine of its own:
      packserve executor --model DIR       owns the accelerator and the weights
      packserve tokenizer --model DIR --executors HOST:PORT,HOST:PORT
    """


for command in (up, generate, chat, executor, tokenizer, model, quantize):
    main.add_command(command)
