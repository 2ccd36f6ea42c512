# SPDX-License-Identifier: Apache-2.0
"""What does structured output cost: compiling, a mask, and a token of the whole service?

python -m benchmarks.grammars --model DIR [--streams 8] [--output-tokens 96] [--rounds 3]

Libraries: milliseconds to compile, then microseconds to mask and accept each token of a document, for 1 row and for 8
together; xgrammar is left out where it is not installed. Services: time from token to token with a schema and without,
rounds alternate; --streams 0 leaves them out.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.serve import make_prompts
from benchmarks.services import Services, median, percentile, run_load, running_services
from executor_service.grammar.compiler import GrammarTokenizer, grammar_of
from executor_service.grammar.matcher_grammar import MatcherGrammar
from executor_service.grammar.prototype import OwnLexers, Prototype
from protos.packserve.v1 import sampling_pb2
from protos.vocabulary import Vocabulary

NUM_ROWS = 8
ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string"}},
    "required": ["street", "city", "zip"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = {
    "person": (
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "age": {"type": "integer", "minimum": 0, "maximum": 130},
                "tags": {"type": "array", "items": {"enum": ["new", "vip", "late"]}, "maxItems": 3},
                "address": {"$ref": "#/$defs/address"},
            },
            "required": ["name", "age", "tags", "address"],
            "additionalProperties": False,
            "$defs": {"address": ADDRESS},
        },
        {
            "name": "Ada Lovelace",
            "age": 36,
            "tags": ["vip", "new"],
            "address": {"street": "12 St James's Square", "city": "London", "zip": "SW1Y 4JH"},
        },
    ),
    "tool call": (
        {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"tool": {"const": name}, "arguments": ADDRESS},
                    "required": ["tool", "arguments"],
                    "additionalProperties": False,
                }
                for name in ("find", "ship", "bill")
            ]
        },
        {"tool": "ship", "arguments": {"street": "221b Baker Street", "city": "London", "zip": "NW1 6XE"}},
    ),
    "any object": (
        {"type": "object"},
        {"title": "The tide tables", "pages": [1, 2.5, {"note": None}], "is_read": True, "text": "One said 5 minutes."},
    ),
}
# Longer than a round's output: no stream ends early.
SERVED = {
    "type": "object",
    "properties": {f"field_{i}": {"type": "string", "minLength": 400} for i in range(2)},
    "required": ["field_0", "field_1"],
    "additionalProperties": False,
}


class Row(Protocol):
    def mask(self) -> object: ...
    def accept(self, token_id: int) -> object: ...


class Llguidance:
    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        special = vocabulary.special_token_ids
        pieces = [b"" if i in special else piece for i, piece in enumerate(vocabulary.pieces)]
        self.tokenizer = GrammarTokenizer(pieces, len(pieces))

    def compile(self, schema: dict[str, Any]) -> Callable[[], Row]:
        grammar = grammar_of(sampling_pb2.Constraint(json_schema=json.dumps(schema)))
        prototype = Prototype(self.tokenizer, grammar, "json_schema", OwnLexers())
        return lambda: MatcherGrammar(prototype, frozenset({0}))


class Xgrammar:
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self.xgrammar = xgrammar
        special = vocabulary.special_token_ids
        pieces = [b"" if i in special else piece for i, piece in enumerate(vocabulary.pieces)]
        self.information = xgrammar.TokenizerInfo(pieces, vocab_size=len(pieces), stop_token_ids=[0])

    def compile(self, schema: dict[str, Any]) -> Callable[[], Row]:
        compiler = self.xgrammar.GrammarCompiler(self.information, max_threads=1, cache_enabled=False)
        compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)
        return lambda: XgrammarRow(self.xgrammar, compiled, self.information.vocab_size)


class XgrammarRow:
    def __init__(self, xgrammar: Any, compiled: Any, vocabulary_size: int) -> None:
        self.matcher = xgrammar.GrammarMatcher(compiled)
        self.bits = xgrammar.allocate_token_bitmask(1, vocabulary_size)

    def mask(self) -> object:
        self.matcher.fill_next_token_bitmask(self.bits)
        return self.bits

    def accept(self, token_id: int) -> object:
        return self.matcher.accept_token(token_id)


def time_masks(make_row: Callable[[], Row], token_ids: Sequence[int], num_rows: int) -> list[float]:
    """Microseconds for each token, of all rows together."""
    rows = [make_row() for _ in range(num_rows)]
    times = []
    for token_id in token_ids:
        start_s = time.perf_counter()
        for row in rows:
            row.mask()
            assert row.accept(token_id)
        times.append(1e6 * (time.perf_counter() - start_s))
    return times


def compare_libraries(model: Path) -> None:
    vocabulary = Vocabulary.load(model)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    table = Table("schema", "library", "compile ms", "mask us, 1 row", "p99", "8 rows", "p99", title="median")
    for library_class in (Llguidance, Xgrammar):
        try:
            library = library_class(vocabulary)
        except ImportError as error:
            print(f"{library_class.name} is left out: {error}")
            continue
        for name, (schema, document) in SCHEMAS.items():
            token_ids = tokenizer.encode(json.dumps(document), add_special_tokens=False).ids
            table.add_row(name, library.name, *measure(partial(library.compile, schema), token_ids))
    Console().print(table)


def measure(compile_once: Callable[[], Callable[[], Row]], token_ids: Sequence[int]) -> list[str]:
    compile_times = []
    for _ in range(5):
        start_s = time.perf_counter()
        make_row = compile_once()
        compile_times.append(1e3 * (time.perf_counter() - start_s))
    cells = [f"{statistics.median(compile_times):.1f}"]
    for num_rows in (1, NUM_ROWS):
        times = [value for _ in range(5) for value in time_masks(make_row, token_ids, num_rows)]
        cells += [f"{median(times):.0f}", f"{percentile(times, 99):.0f}"]
    return cells


async def compare_services(model: Path, streams: int, num_output: int, rounds: int) -> None:
    constraint = sampling_pb2.Constraint(json_schema=json.dumps(SERVED))
    with tempfile.TemporaryDirectory() as folder:
        async with running_services(model, Path(folder, "log"), EXECUTOR_THREADS="2") as services:
            free, bound = [], []
            for salt in range(rounds + 1):  # the first warms up
                prompts = make_prompts(model, streams, 64, salt)
                sampling = {"temperature": 0.0, "max_tokens": num_output}
                free.append(await token_s(services, prompts, ignore_eos=True, **sampling))
                bound.append(await token_s(services, prompts, constraint=constraint, **sampling))
    extra = [b / a - 1 for a, b in zip(free[1:], bound[1:], strict=True)]
    print(
        f"{streams} streams, ms from token to token, medians of {rounds} pairs: {1e3 * median(free[1:]):.2f} without,"
        f" {1e3 * median(bound[1:]):.2f} with a schema, {median(extra):+.1%} ({min(extra):+.1%} to {max(extra):+.1%})"
    )


async def token_s(services: Services, prompts: list[str], **sampling: Any) -> float:
    """Median over all streams' gaps."""
    return float(np.median((await run_load(services, prompts, **sampling)).gaps_s))


@click.command()
@click.option("--model", type=Path, required=True, help="A model directory with tokenizer.json.")
@click.option("--streams", default=8, show_default=True, help="0 leaves the services out.")
@click.option("--output-tokens", default=96, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(model: Path, streams: int, output_tokens: int, rounds: int) -> None:
    compare_libraries(model)
    if streams:
        asyncio.run(compare_services(model, streams, output_tokens, rounds))


if __name__ == "__main__":
    main()
