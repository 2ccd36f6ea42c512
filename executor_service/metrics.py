# SPDX-License-Identifier: Apache-2.0
"""The executor's series: queue, steps, batch, KV use. What the tokenizer service sees (text, TTFT, outcomes) is there.

Gauges read the scheduler when scraped. Does not know the wire.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from executor_service.engine import Engine
from executor_service.grammar.grammars import Grammars
from executor_service.scheduling.step import RowOutput, Step
from protos.metrics import SECONDS_BUCKETS, Alias, AliasCollector, FunctionCounter, vllm_labels

TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.step_seconds = Histogram(
            "packserve_step_seconds", "Launch to commit of one step.", buckets=SECONDS_BUCKETS, registry=registry
        )
        self.step_tokens = Histogram(
            "packserve_step_tokens", "Tokens that one step computes.", buckets=TOKEN_BUCKETS, registry=registry
        )
        self.queue_seconds = Histogram(
            "packserve_queue_seconds", "Arrival of a row to its first step.", buckets=SECONDS_BUCKETS, registry=registry
        )

        self.grammar_seconds = Histogram(
            "packserve_grammar_compile_seconds",
            "A constraint that was not known yet, to its grammar or its refusal.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.steps = Counter("packserve_steps", "Steps committed.", registry=registry)

    def observe_step(self, step: Step, seconds: float) -> None:
        self.steps.inc()
        self.step_seconds.observe(seconds)
        self.step_tokens.observe(step.num_tokens)

    def observe_outputs(self, outputs: list[RowOutput]) -> None:
        for output in outputs:
            if output.start:
                self.queue_seconds.observe(output.start.queued_s)

    def watch(self, engine: Engine, grammars: Grammars, model_name: str) -> None:
        """Series that read the engine, and vLLM's names for what means the same there."""
        self._counter("packserve_grammar_hits", "Constraints that were known already.", lambda: grammars.num_hits)
        self._counter("packserve_grammar_failures", "Constraints without a grammar.", lambda: grammars.num_failed)
        scheduler = engine.scheduler
        running = self._gauge("packserve_running_sequences", "Sequences that hold blocks.")
        running.set_function(lambda: len(scheduler.running))
        waiting = self._gauge("packserve_waiting_sequences", "Rows that wait to run.")
        waiting.set_function(lambda: engine.num_queued)
        self._gauge("packserve_kv_blocks", "Blocks in the KV pools.").set(scheduler.num_blocks)
        used = self._gauge("packserve_kv_blocks_used", "Blocks in use; what is only remembered for later is not.")
        used.set_function(lambda: scheduler.num_used_blocks)
        usage = self._gauge("packserve_kv_usage_ratio", "Share of the fullest KV pool in use, 0 to 1.")
        usage.set_function(lambda: scheduler.usage)
        preemptions = self._counter(
            "packserve_preemptions", "Times a sequence gave its blocks to another.", lambda: scheduler.num_preemptions
        )
        queries = self._counter(
            "packserve_prefix_query_tokens",
            "Tokens of rows let in, looked up in the prefix cache.",
            lambda: scheduler.num_prefix_query_tokens,
        )
        hits = self._counter(
            "packserve_prefix_hit_tokens",
            "Tokens of rows let in that the prefix cache had.",
            lambda: scheduler.num_prefix_hit_tokens,
        )
        self._counter(
            "packserve_failed_rows", "Rows ended by logits that are not finite.", lambda: scheduler.num_failed_rows
        )
        aliases = (
            Alias("vllm:num_requests_running", running),
            Alias("vllm:num_requests_waiting", waiting),
            Alias("vllm:kv_cache_usage_perc", usage),
            Alias("vllm:num_preemptions", preemptions),
            Alias("vllm:prefix_cache_queries", queries),
            Alias("vllm:prefix_cache_hits", hits),
            Alias("vllm:request_queue_time_seconds", self.queue_seconds),
            Alias("vllm:iteration_tokens_total", self.step_tokens),
        )
        self.registry.register(AliasCollector(aliases, vllm_labels(model_name)))

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _counter(self, name: str, text: str, total: Callable[[], float]) -> FunctionCounter:
        return FunctionCounter(name, text, self.registry, total)
