# SPDX-License-Identifier: Apache-2.0
"""What does W8A8 cost in accuracy, and what does it take on this CPU?

python -m benchmarks.quantization [--rows 64] [--rounds 5]

Gaussian weights and rows: the error of the outputs against float32, as the root of mean squares, of all rows together
and of the worst row, and the milliseconds of one product, the best of all rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from kernels.int8_weight import Int8Weight
from kernels.reference.int8_linear import quantize_rows
from kernels.reference.linear import linear

SIZES = [(576, 1536), (4096, 4096), (5120, 17408)]
COLUMNS = ["outputs x inputs", "error", "of the worst row", "float32 ms", "W8A8 ms"]


def root_mean_square(x: Tensor) -> Tensor:
    """Of each row."""
    return x.square().mean(1).sqrt()


def best_ms(work: Callable[[], Tensor], rounds: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - start)

    work()
    return min(once() for _ in range(rounds))


def measured(num_rows: int, num_outputs: int, num_inputs: int, rounds: int) -> list[str]:
    weight, x = torch.randn(num_outputs, num_inputs), torch.randn(num_rows, num_inputs)
    int8_weight = Int8Weight(*quantize_rows(weight))
    expected = x @ weight.t()
    error = linear(x, int8_weight, None) - expected
    of_all = root_mean_square(error.view(1, -1)) / root_mean_square(expected.view(1, -1))
    of_rows = root_mean_square(error) / root_mean_square(expected)
    times = [best_ms(lambda w=w: linear(x, w, None), rounds) for w in (weight, int8_weight)]
    return [
        f"{num_outputs} x {num_inputs}",
        f"{of_all.item():.2%}",
        f"{of_rows.max():.2%}",
        *(f"{t:.2f}" for t in times),
    ]


@click.command()
@click.option("--rows", default=64, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(rows: int, rounds: int) -> None:
    torch.manual_seed(0)
    table = Table(*COLUMNS, title=f"{rows} rows, {torch.get_num_threads()} threads")
    for size in SIZES:
        table.add_row(*measured(rows, *size, rounds))
    Console().print(table)


if __name__ == "__main__":
    main()
