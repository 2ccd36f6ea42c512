# SPDX-License-Identifier: Apache-2.0
"""The executor's series: queue, steps, batch, KV use. What the tokenizer service sees (text, TTFT, outcomes) is there.

Gauges read the scheduler when scraped. Does not know the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from executor_service.engine import Engine
from executor_service.grammar.grammars import Grammars
from executor_service.scheduling.step import RowOutput, Step
from protos.metrics import SECONDS_BUCKETS, Alias, AliasCollector, FunctionCounter, vllm_labels

SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """Every series is there from the start, and 0 until an engine is watched."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self.registry = registry
        self._engine: Engine | None = None
        self._grammars: Grammars | None = None
        self.step_seconds = self._seconds("packserve_step_seconds", "Launch to commit of one step.")
        self.step_tokens = self._sizes("packserve_step_tokens", "Tokens that one step computes.")
        self.step_rows = self._sizes("packserve_step_rows", "Sequences that take part in one step.")
        self.queue_seconds = self._seconds("packserve_queue_seconds", "Arrival of a row to its first step.")
        self.grammar_seconds = self._seconds(
            "packserve_grammar_compile_seconds", "A constraint that was not known yet, to its grammar or its refusal."
        )
        self.steps = Counter("packserve_steps", "Steps committed.", registry=registry)
        self._model = Info("packserve_model", "What is served, once it is loaded.", registry=registry)
        registry.register(AliasCollector(self._watched(), vllm_labels(model_name)))

    def observe_step(self, step: Step, seconds: float) -> None:
        self.steps.inc()
        self.step_seconds.observe(seconds)
        self.step_tokens.observe(step.num_tokens)
        self.step_rows.observe(len(step.rows))

    def observe_outputs(self, outputs: list[RowOutput]) -> None:
        for output in outputs:
            if output.start:
                self.queue_seconds.observe(output.start.queued_s)

    def watch(self, engine: Engine, grammars: Grammars, model: Mapping[str, str]) -> None:
        """model: labels of packserve_model_info."""
        self._engine, self._grammars = engine, grammars
        self._model.info(dict(model))

    def _watched(self) -> tuple[Alias, ...]:
        """Series that read the engine when scraped; returns vLLM's names for what means the same there."""
        running = self._gauge("running_sequences", "Sequences that hold blocks.", lambda e: len(e.scheduler.running))
        waiting = self._gauge("waiting_sequences", "Rows that wait to run.", lambda e: e.num_queued)
        self._gauge("step_age_seconds", "Since the last step ended, while there is work.", lambda e: e.step_age_s)
        self._gauge("kv_blocks", "Blocks in the KV pools.", lambda e: e.scheduler.num_blocks)
        self._gauge(
            "kv_blocks_used",
            "Blocks in use; what is only remembered for later is not.",
            lambda e: e.scheduler.num_used_blocks,
        )
        usage = self._gauge(
            "kv_usage_ratio", "Share of the fullest KV pool in use, 0 to 1.", lambda e: e.scheduler.usage
        )
        preemptions = self._counter(
            "preemptions", "Times a sequence gave its blocks to another.", lambda e: e.scheduler.num_preemptions
        )
        queries = self._counter(
            "prefix_query_tokens",
            "Tokens of rows let in, looked up in the prefix cache.",
            lambda e: e.scheduler.num_prefix_query_tokens,
        )
        hits = self._counter(
            "prefix_hit_tokens",
            "Tokens of rows let in that the prefix cache had.",
            lambda e: e.scheduler.num_prefix_hit_tokens,
        )
        self._counter("failed_rows", "Rows ended by logits that are not finite.", lambda e: e.scheduler.num_failed_rows)
        self._grammar_counter("grammar_hits", "Constraints that were known already.", lambda g: g.num_hits)
        self._grammar_counter("grammar_failures", "Constraints without a grammar.", lambda g: g.num_failed)
        return (
            Alias("vllm:num_requests_running", running),
            Alias("vllm:num_requests_waiting", waiting),
            Alias("vllm:kv_cache_usage_perc", usage),
            Alias("vllm:num_preemptions", preemptions),
            Alias("vllm:prefix_cache_queries", queries),
            Alias("vllm:prefix_cache_hits", hits),
            Alias("vllm:request_queue_time_seconds", self.queue_seconds),
            Alias("vllm:iteration_tokens_total", self.step_tokens),
        )

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=SECONDS_BUCKETS, registry=self.registry)

    def _sizes(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=SIZE_BUCKETS, registry=self.registry)

    def _gauge(self, name: str, text: str, read: Callable[[Engine], float]) -> Gauge:
        gauge = Gauge(f"packserve_{name}", text, registry=self.registry)
        gauge.set_function(lambda: read(self._engine) if self._engine else 0)
        return gauge

    def _counter(self, name: str, text: str, read: Callable[[Engine], float]) -> FunctionCounter:
        return FunctionCounter(
            f"packserve_{name}", text, self.registry, lambda: read(self._engine) if self._engine else 0
        )

    def _grammar_counter(self, name: str, text: str, read: Callable[[Grammars], float]) -> None:
        FunctionCounter(f"packserve_{name}", text, self.registry, lambda: read(self._grammars) if self._grammars else 0)
