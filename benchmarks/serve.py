# SPDX-License-Identifier: Apache-2.0
"""How fast are both services together, and how does that compare with transformers' batched generate?

python -m benchmarks.serve --model DIR [--streams 1,8,32] [--peer-streams 8] [--rounds 3]

Same weights in float32, greedy, ends of text ignored, 2 threads, all prompts at once; ours over gRPC on loopback
through both services. Rounds alternate between us and the peer; medians are printed. With --scripted a model whose
compute is near zero shows what the services themselves cost.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.services import Load, Services, median, percentile, run_load, running_services

TEXT = (
    "The ferry left at six, and by then the baker on the quay had sold his last loaf. Number {i} on her list was to "
    "ask why the tide tables disagreed: one said {i} minutes, the other said later. She wrote both down and waited. "
)
COLUMNS = ("tok/s", "TTFT p50 ms", "p99", "gap p50 ms", "p99", "exec CPU s/1k tok", "tok CPU s/1k tok", "tokenize/TTFT")


def make_prompts(model: Path, number: int, num_tokens: int, salt: int) -> list[str]:
    """Texts that encode to num_tokens ids each and differ from their first word on."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [
        _cut(tokenizer, f"{salt * 977 + i} " + TEXT.format(i=i) * (num_tokens // 30 + 2), num_tokens)
        for i in range(number)
    ]


def _cut(tokenizer: Tokenizer, text: str, num_tokens: int) -> str:
    """At the end of a word, where the text before encodes as it did within the whole."""
    for _, end in tokenizer.encode(text, add_special_tokens=False).offsets[num_tokens - 1 :]:
        if len(tokenizer.encode(text[:end], add_special_tokens=False).ids) == num_tokens:
            return text[:end]
    raise AssertionError("no cut gives the length that was asked for")


class Transformers:
    """AutoModelForCausalLM.generate on a static batch, as a user would call it."""

    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        torch.set_num_threads(2)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def run(self, prompts: list[str], num_output_tokens: int) -> float:
        """Output tokens per second."""
        ids = self.torch.tensor([self.tokenizer.encode(text, add_special_tokens=False).ids for text in prompts])
        start_s = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=self.torch.ones_like(ids),
                max_new_tokens=num_output_tokens,
                do_sample=False,
            )
        assert out.shape[1] == ids.shape[1] + num_output_tokens
        return len(prompts) * num_output_tokens / (time.perf_counter() - start_s)


def row(load: Load) -> list[str]:
    ttfts, gaps, per_thousand = load.ttfts_s, load.gaps_s, 1000 / load.num_tokens
    return [
        f"{load.tokens_per_s:.1f}",
        f"{1e3 * percentile(ttfts, 50):.0f}",
        f"{1e3 * percentile(ttfts, 99):.0f}",
        f"{1e3 * percentile(gaps, 50):.1f}",
        f"{1e3 * percentile(gaps, 99):.1f}",
        f"{load.cpu_s['executor'] * per_thousand:.3f}",
        f"{load.cpu_s['tokenizer'] * per_thousand:.3f}",
        f"{load.tokenize_s / sum(ttfts):.2%}",
    ]


async def measure(services: Services, prompts: Callable[[int], list[Any]], rounds: int, **sampling: Any) -> Load:
    """The round of median throughput."""
    loads = [await run_load(services, prompts(salt), **sampling) for salt in range(1, rounds + 1)]
    return sorted(loads, key=lambda load: load.tokens_per_s)[rounds // 2]


async def serve_real_model(
    model: Path, streams: list[int], peer_streams: int, sizes: tuple[int, int], rounds: int
) -> None:
    num_prompt, num_output = sizes
    sampling = {"temperature": 0.0, "max_tokens": num_output, "ignore_eos": True}
    table = Table(
        "streams", *COLUMNS, title=f"{model.name}: {num_prompt} prompt and {num_output} output tokens a stream"
    )
    with tempfile.TemporaryDirectory() as folder:
        async with running_services(model, Path(folder, "log"), EXECUTOR_THREADS="2") as services:
            await run_load(services, make_prompts(model, 2, num_prompt, 0), **sampling)
            for number in streams:
                load = await measure(
                    services, lambda salt, n=number: make_prompts(model, n, num_prompt, salt), rounds, **sampling
                )
                table.add_row(str(number), *row(load))
            Console().print(table)
            if peer_streams:
                await compare(services, model, peer_streams, sizes, rounds, sampling)


async def compare(
    services: Services, model: Path, streams: int, sizes: tuple[int, int], rounds: int, sampling: dict[str, Any]
) -> None:
    """Alternating pairs in one run."""
    peer = await asyncio.to_thread(Transformers, model)
    ours, theirs = [], []
    for salt in range(rounds + 1):
        prompts = make_prompts(model, streams, sizes[0], 100 + salt)
        theirs.append(await asyncio.to_thread(peer.run, prompts, sizes[1]))
        ours.append((await run_load(services, prompts, **sampling)).tokens_per_s)
    ours, theirs = ours[1:], theirs[1:]  # the first pair warms up
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(
        f"{streams} streams, output tokens/s, medians of {rounds} pairs: both services {median(ours):.1f}, "
        f"transformers generate {median(theirs):.1f}, ratio {median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


async def serve_scripted_model(streams: int, num_output: int, rounds: int) -> None:
    """Compute near zero: what is left is the services' own work."""
    from tests.fixtures.byte_tokenizer import write_byte_tokenizer
    from tests.fixtures.scripted_model import write_scripted_model

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "scripted")
        write_scripted_model(model, {i: {97 + (i + 1) % 26: 1.0} for i in range(320)})
        write_byte_tokenizer(model)
        async with running_services(model, Path(folder, "log"), EXECUTOR_THREADS="1") as services:
            sampling = {"temperature": 0.0, "max_tokens": num_output, "ignore_eos": True}
            load = await measure(services, lambda salt: [f"{salt} {i}" for i in range(streams)], rounds + 1, **sampling)
    print(
        f"scripted model, {streams} streams x {num_output} tokens: {load.tokens_per_s:.0f} tokens/s through both "
        f"services on this machine"
    )
    for name, seconds in load.cpu_s.items():
        print(
            f"  {name}: {load.num_tokens / seconds:.0f} tokens per CPU second ({seconds / load.wall_s:.2f} cores busy)"
        )


@click.command()
@click.option("--model", type=Path, help="A model directory with tokenizer.json.")
@click.option("--streams", default="1,8,32", show_default=True)
@click.option("--peer-streams", default=8, show_default=True, help="0 leaves the peer out.")
@click.option("--prompt-tokens", default=128, show_default=True)
@click.option("--output-tokens", default=128, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--scripted", default=0, help="Streams of the scripted model; 0 leaves it out.")
def main(
    model: Path | None,
    streams: str,
    peer_streams: int,
    prompt_tokens: int,
    output_tokens: int,
    rounds: int,
    scripted: int,
) -> None:
    if model:
        numbers = [int(number) for number in streams.split(",") if number]
        asyncio.run(serve_real_model(model, numbers, peer_streams, (prompt_tokens, output_tokens), rounds))
    if scripted:
        asyncio.run(serve_scripted_model(scripted, output_tokens, rounds))


if __name__ == "__main__":
    main()
