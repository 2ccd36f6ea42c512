# SPDX-License-Identifier: Apache-2.0
"""The dashboard "packserve engine": batch, steps, KV cache and device of the executors."""

from __future__ import annotations

from typing import Any

from k8s.monitoring.grafana import Json, dashboard
from k8s.monitoring.knobs import Knobs
from k8s.monitoring.panels import AT_LEAST_ONE, WINDOW, Board, Panel, Row, stat
from k8s.monitoring.promql import mean, series, sum_by

MODEL_LABELS = ("model", "architecture", "dtype", "quantization", "device")


class EngineBoard(Board):
    def rows(self) -> tuple[Row, ...]:
        return self.now(), self.batch(), self.steps(), self.cache(), self.process(), self.npu()

    def mean(self, title: str, text: str, histogram: str) -> Panel:
        return self.by_replica(title, text, mean(histogram, self.scope.replica, "instance", WINDOW))

    def now(self) -> Row:
        waiting, age = (f"max({self.of(f'packserve_{name}')})" for name in ("waiting_sequences", "step_age_seconds"))
        usage, tokens = f"max({self.of('packserve_kv_usage_ratio')})", f"sum({self.rate('packserve_step_tokens_sum')})"
        most, oldest = "Rows that wait where most do.", "Since the last step ended, with work to do; the oldest."
        full = self.limits_of("KVSaturated")
        return Row(
            "Now",
            (
                stat("Running", "Sequences that hold blocks.", f"sum({self.of('packserve_running_sequences')})"),
                stat("Waiting", most, waiting, thresholds=self.limits_of("QueueGrowing")),
                stat("KV in use", "Share of the fullest pool.", usage, "percentunit", maximum=1, thresholds=full),
                stat("Tokens", "Computed a second.", tokens),
                stat("Step age", oldest, age, "s", thresholds=self.limits_of("EngineStuck")),
                stat(
                    "Ready", "Executors that take rows.", f"sum({self.of('packserve_ready')})", thresholds=AT_LEAST_ONE
                ),
            ),
        )

    def batch(self) -> Row:
        sequences = {
            "running, {{instance}}": self.of("packserve_running_sequences"),
            "waiting, {{instance}}": self.of("packserve_waiting_sequences"),
        }
        tokens, failed = self.rate("packserve_step_tokens_sum"), self.rate("packserve_failed_rows_total")
        return Row(
            "Batch",
            (
                Panel("Sequences", "Those that hold blocks, and rows that wait to run.", sequences, "short"),
                self.mean("Rows a step", "Sequences in a step, on average.", "packserve_step_rows"),
                self.mean("Tokens a step", "Tokens that a step computes, on average.", "packserve_step_tokens"),
                self.by_replica("Tokens computed", "Of prompts and new ones, a second.", tokens),
                self.quantiles("Queue", "Arrival of a row to its first step.", "packserve_queue_seconds"),
                self.by_replica("Failed rows", "Ended by logits that are not finite, a second.", failed),
            ),
        )

    def steps(self) -> Row:
        age_text, age = "Since the last step ended, with work to do.", self.of("packserve_step_age_seconds")
        compile_text = "A constraint that was not known yet, to its grammar or its refusal."
        constraints = {
            "known": f"sum({self.rate('packserve_grammar_hits_total')})",
            "compiled": f"sum({self.rate('packserve_grammar_compile_seconds_count')})",
            "without a grammar": f"sum({self.rate('packserve_grammar_failures_total')})",
        }
        return Row(
            "Steps",
            (
                self.quantiles("Step time", "Launch to commit of a step.", "packserve_step_seconds"),
                self.heatmap("Step time, spread", "Steps by their time.", "packserve_step_seconds"),
                self.by_replica("Steps", "Committed a second.", self.rate("packserve_steps_total")),
                self.by_replica("Step age", age_text, age, "s", thresholds=self.limits_of("EngineStuck")),
                self.quantiles("Grammar compilation", compile_text, "packserve_grammar_compile_seconds"),
                Panel("Constraints", "Asked for a second.", constraints, "short"),
            ),
        )

    def cache(self) -> Row:
        usage, preempted = self.of("packserve_kv_usage_ratio"), self.rate("packserve_preemptions_total")
        usage_text = "Share of the fullest pool that running sequences hold."
        blocks = {
            "in use, {{instance}}": self.of("packserve_kv_blocks_used"),
            "all, {{instance}}": self.of("packserve_kv_blocks"),
        }
        hits, queries = (
            sum_by("instance", self.rate(f"packserve_prefix_{name}_tokens_total")) for name in ("hit", "query")
        )
        hit_text, share = "Share of the tokens of rows let in that were cached.", f"{hits} / {queries}"
        narrow: Json = {"width": 6, "maximum": 1}
        full = narrow | {"thresholds": self.limits_of("KVSaturated")}
        return Row(
            "KV cache",
            (
                self.by_replica("KV in use", usage_text, usage, "percentunit", **full),
                Panel("Blocks", "Held by running sequences, of all.", blocks, "short", width=6),
                self.by_replica("Prefix cache hits", hit_text, share, "percentunit", **narrow),
                self.by_replica("Preemptions", "Sequences that gave up their blocks, a second.", preempted, width=6),
            ),
        )

    def process(self) -> Row:
        model = f"max by ({', '.join(MODEL_LABELS)}) ({self.of('packserve_model_info')})"
        legend = " ".join(f"{{{{{label}}}}}" for label in MODEL_LABELS)
        look = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "name", "colorMode": "none"}
        memory = self.of("process_resident_memory_bytes")
        return Row(
            "Process",
            (
                self.by_replica("CPU", "Cores in use.", self.rate("process_cpu_seconds_total")),
                self.by_replica("Memory", "Resident memory.", memory, "bytes"),
                Panel("Model", "What the executors serve.", {legend: model}, "short", "stat", options=look),
            ),
        )

    def npu(self) -> Row:
        exporter = self.knobs.npu_exporter

        def of(name: str) -> str:
            return series(f"npu_chip_info_{name}", exporter.selector)

        def chip(title: str, text: str, expr: str, unit: str, **more: Any) -> Panel:
            return Panel(title, text, {"{{instance}} NPU {{id}}": expr}, unit, **more)

        hottest = self.limits(exporter.max_temperature_celsius)
        memory = f"{of('hbm_used_memory')} / {of('hbm_total_memory')}"
        return Row(
            exporter.row,
            (
                chip("AI Core", "Utilization of the AI Cores.", of("utilization"), "percent", maximum=100),
                chip("Memory", "Share of the high-bandwidth memory in use.", memory, "percentunit", maximum=1),
                chip("Temperature", "Of the chip.", of("temperature"), "celsius", thresholds=hottest),
                chip("Power", "Of the chip.", of("power"), "watt"),
                chip("Health", "1 while the driver calls the chip healthy.", of("health_status"), "short", maximum=1),
                chip("Error code", "0 is none; the driver's manual lists the others.", of("error_code"), "none"),
            ),
            is_collapsed=True,
        )


def engine_dashboard(knobs: Knobs) -> Json:
    description = "Batch, steps, KV cache and device of the executors."
    return dashboard(
        "packserve engine",
        description,
        EngineBoard(knobs).rows(),
        "packserve_step_age_seconds",
        knobs.jobs.executor,
        knobs,
    )
