# SPDX-License-Identifier: Apache-2.0
"""``packserve quantize``: a model written again with int8 weights.

Becomes the program that does it: weights belong to the executor's side.
"""

from __future__ import annotations

import os
import sys

import click


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False))
@click.argument("target", type=click.Path())
def quantize(source: str, target: str) -> None:
    """Write the model in directory SOURCE as W8A8 into TARGET, a new directory that --model takes.

    The weights of the layers' products become int8 with a scale for each output, embedding, norms and head stay as they
    are. TARGET appears whole or not at all.
    """
    module = "executor_service.conversion.quantize"
    os.execv(sys.executable, [sys.executable, "-m", module, "--", source, target])  # noqa: S606
