# SPDX-License-Identifier: Apache-2.0
"""How near does a device come to its own ceilings, in prefill and in decode?

python -m benchmarks.gpu [--device cuda:0] [--shapes 0.6B,4B,14B] [--batches 1,16,128] [--context 1024]

Random weights in the shapes of Qwen3, made on the device; steps go straight to the runner, no service and no scheduler.
Prefill: operations per second against a large matrix product's. Decode: bytes of weights, keys and values per second
against a copy's. Both ceilings are measured in the same run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, product

import click
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.decoders import SHAPES, Rows, num_bytes, num_operations, random_model
from benchmarks.services import median
from executor_service.config import DEVICES, MAX_DEPTH
from executor_service.device.accelerator import module_of, open_device
from executor_service.device.runner import Capacity, DeviceRunner, Launched
from executor_service.models.decoder import Decoder
from executor_service.scheduling.step import Step

COLUMNS = ("prefill TFLOP/s", "of product", "decode ms", "tok/s", "GB/s", "of copy")
# What is short is done so often in one measurement.
TIMES = 8


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        module_of(device).synchronize()


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median, with the device idle before and after; the first warms up."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start_s = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start_s)
    return median(times[1:])


def run(runner: DeviceRunner, steps: Sequence[Step]) -> None:
    """As the engine does: at depth 2 a step is launched before the last one's ids are waited for, and sampled after."""
    waiting: deque[Launched] = deque()
    for step in steps:
        launched = runner.forward(step)
        if waiting:
            runner.sampled(waiting.popleft())
        runner.sample(launched, [None] * len(step.rows))
        waiting.append(launched)
        if runner.capacity.depth == 1:
            runner.sampled(waiting.popleft())
    if waiting:
        runner.sampled(waiting.popleft())


def ceilings(dtype: torch.dtype, device: torch.device, repeats: int) -> tuple[float, float]:
    """Operations per second of a square product; bytes per second, read and written, of a copy."""
    size, length = (512, 1 << 24) if device.type == "cpu" else (8192, 1 << 30)
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    source = torch.zeros(length, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    out = torch.empty_like(a)
    multiply_s = seconds(lambda: [torch.mm(a, b, out=out) for _ in range(TIMES)], device, repeats)
    copy_s = seconds(lambda: [target.copy_(source) for _ in range(TIMES)], device, repeats)
    return TIMES * 2 * size**3 / multiply_s, TIMES * 2 * length / copy_s


@dataclass(frozen=True)
class Measurement:
    """context: tokens of each row when decode steps begin, of which there are steps in a row."""

    device: torch.device
    dtype: torch.dtype
    context: int
    steps: int
    repeats: int

    @property
    def block_tokens(self) -> int:
        return DEVICES[self.device.type].block_tokens

    def prompts(self, batch: int) -> tuple[Rows, int]:
        """Rows and how many tokens of each make a step as large as the executor's."""
        tokens = DEVICES[self.device.type].max_step_tokens // batch
        return Rows(batch, tokens, self.block_tokens), tokens

    def contexts(self, batch: int) -> Rows:
        return Rows(batch, self.context + self.steps, self.block_tokens)

    def num_blocks(self, batches: Sequence[int]) -> int:
        return max(max(self.prompts(batch)[0].num_blocks, self.contexts(batch).num_blocks) for batch in batches)

    def of_shape(self, shape: str, batches: Sequence[int]) -> Table:
        limits = ceilings(self.dtype, self.device, self.repeats)
        title = f"Qwen3-{shape}, {self.dtype}, context {self.context}; measured: product {limits[0] / 1e12:.3g} TFLOP/s"
        table = Table("batch", "graphs", "depth", *COLUMNS, title=f"{title}, copy {limits[1] / 1e9:.3g} GB/s")
        model = random_model(shape, self.block_tokens, self.dtype, self.device)
        for has_graphs, depth in product((True, False) if model.ops.can_graph else (False,), range(1, MAX_DEPTH + 1)):
            runner = self.runner(model, batches, depth, has_graphs)
            for batch in batches:
                cells = self.of_batch(model, runner, batch, limits)
                table.add_row(str(batch), "on" if has_graphs else "off", str(depth), *cells)
        return table

    def runner(self, model: Decoder, batches: Sequence[int], depth: int, has_graphs: bool) -> DeviceRunner:
        """Ready to run, with a cache of random values."""
        capacity = Capacity(self.block_tokens, max(batches), model.config.max_position_embeddings, depth)
        runner = DeviceRunner(model, model.ops, capacity, self.device, has_graphs)
        runner.allocate([self.num_blocks(batches)])
        runner.warm_up(DEVICES[self.device.type].max_step_tokens)
        for values in chain.from_iterable(runner.cache):
            values.normal_()
        return runner

    def of_batch(self, model: Decoder, runner: DeviceRunner, batch: int, limits: tuple[float, float]) -> list[str]:
        """Cells of COLUMNS. limits: the ceilings."""
        prompts, tokens = self.prompts(batch)
        prefill = [prompts.step(0, tokens)] * TIMES
        prefill_s = seconds(lambda: run(runner, prefill), self.device, self.repeats)
        rows = self.contexts(batch)
        run(runner, [rows.step(self.context - 1, self.context, named=0)])
        decode = [rows.step(first, first + 1) for first in range(self.context, self.context + self.steps)]
        decode_s = seconds(lambda: run(runner, decode), self.device, self.repeats)
        operations_per_s = sum(num_operations(model.config, step) for step in prefill) / prefill_s
        bytes_per_s = sum(num_bytes(model, step) for step in decode) / decode_s
        return [
            f"{operations_per_s / 1e12:.1f}",
            f"{operations_per_s / limits[0]:.0%}",
            f"{1e3 * decode_s / self.steps:.1f}",
            f"{batch * self.steps / decode_s:.0f}",
            f"{bytes_per_s / 1e9:.0f}",
            f"{bytes_per_s / limits[1]:.0%}",
        ]


@click.command()
@click.option("--device", "device_name", default="cuda:0", show_default=True)
@click.option("--shapes", default="0.6B,4B,14B", show_default=True, help=f"Of {', '.join(SHAPES)}.")
@click.option("--batches", default="1,16,128", show_default=True, help="Rows of a step.")
@click.option("--context", default=1024, show_default=True, help="Tokens of each row when decode steps begin.")
@click.option("--steps", default=32, show_default=True, help="Decode steps in a row.")
@click.option("--repeats", default=5, show_default=True, help="Medians of so many are printed.")
@click.option("--dtype", default="bfloat16", show_default=True)
def main(device_name: str, shapes: str, batches: str, context: int, steps: int, repeats: int, dtype: str) -> None:
    device = open_device(device_name)
    if device.type == "cpu":
        print("On a CPU these ratios mean nothing: this only shows that the program runs.")
    measurement = Measurement(device, getattr(torch, dtype), context, steps, repeats)
    for shape in shapes.split(","):
        Console().print(measurement.of_shape(shape, [int(batch) for batch in batches.split(",")]))


if __name__ == "__main__":
    main()
