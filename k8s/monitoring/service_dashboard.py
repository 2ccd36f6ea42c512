# SPDX-License-Identifier: Apache-2.0
"""The dashboard "packserve service": what callers ask and wait for, hop by hop, as the tokenizer replicas see it."""

from __future__ import annotations

from k8s.monitoring.grafana import Json, dashboard
from k8s.monitoring.knobs import Knobs
from k8s.monitoring.panels import AT_LEAST_ONE, WINDOW, Board, Panel, Row, stacked, stat
from k8s.monitoring.promql import none_of, one_of, quantile, series, sum_by
from k8s.monitoring.rules import Slo, slos, windows

CALLS = "packserve_requests_total"
TTFT = "packserve_time_to_first_token_seconds"
# Histogram of each hop, in the order of a call's way.
HOPS = {
    "tokenize": "packserve_tokenize_seconds",
    "queue": "packserve_queue_seconds",
    "step": "packserve_step_seconds",
    "wire": "packserve_wire_seconds",
    "detokenize": "packserve_detokenize_seconds",
}


class ServiceBoard(Board):
    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self.first_token_slo, self.request_slo = slos(knobs)
        requests = knobs.slos.requests
        self.failed = self.rate(CALLS, one_of("outcome", requests.bad))
        self.countable = self.rate(CALLS, none_of("outcome", requests.ignored))
        self.first_token_limits = self.limits(knobs.slos.time_to_first_token.threshold_s)

    def rows(self) -> tuple[Row, ...]:
        return self.now(), self.traffic(), self.service_levels(), self.latency(), self.replicas()

    def now(self) -> Row:
        failed = "Share of calls that failed, of those that could succeed."
        slowest = f"Time to first token, p{self.slowest * 100:g}."
        share = f"sum({self.failed}) / sum({self.countable})"
        connected = f"min({self.of('packserve_executors_connected')})"
        return Row(
            "Now",
            (
                stat("Calls", "Calls that end, a second.", f"sum({self.rate(CALLS)})", "reqps"),
                stat("Failed", failed, share, "percentunit", thresholds=self.limits(self.request_slo.budget)),
                stat("Slow", slowest, self.quantile(self.slowest, TTFT), "s", thresholds=self.first_token_limits),
                stat("Open calls", "Calls being answered.", f"sum({self.of('packserve_open_calls')})"),
                stat(
                    "Ready replicas",
                    "Tokenizer replicas that take calls.",
                    f"sum({self.of('packserve_ready')})",
                    thresholds=AT_LEAST_ONE,
                ),
                stat("Executors", "Connected to every replica shown.", connected, thresholds=AT_LEAST_ONE),
            ),
        )

    def traffic(self) -> Row:
        ended, failed = (sum_by("outcome", each) for each in (self.rate(CALLS), self.failed))
        tokens = {
            "prompt": f"sum({self.rate('packserve_prompt_tokens_total')})",
            "generated": f"sum({self.rate('packserve_generation_tokens_total')})",
        }
        return Row(
            "Traffic",
            (
                stacked(Panel("Calls by outcome", "Calls that end, a second.", {"{{outcome}}": ended}, "reqps")),
                stacked(Panel("Failures", "Calls that failed, a second.", {"{{outcome}}": failed}, "reqps")),
                Panel("Tokens", "Prompt ids sent to executors and ids generated, a second.", tokens, "short"),
            ),
        )

    def service_levels(self) -> Row:
        return Row("Service level", (self.burn(self.first_token_slo), self.burn(self.request_slo)))

    def burn(self, slo: Slo) -> Panel:
        factors = [each.factor for each in self.knobs.burn_rates]
        text = (
            f"How many times too fast the budget of {slo.goal} burns, over each window; at 1 it is used up in time. "
            f"Alerts begin at {min(factors):g}, the first to wake somebody at {max(factors):g}."
        )
        targets = {
            window: f"max({series(slo.record + window, self.scope.service)}) / {slo.budget:g}"
            for window in windows(self.knobs)
        }
        colors = {0: "green", min(factors): "yellow", max(factors): "red"}
        return Panel(f"{slo.title}: burn rate", text, targets, "short", width=12, thresholds=colors)

    def latency(self) -> Row:
        # Queue and step are the executors' series, which the variables job and instance do not name.
        hops = {hop: quantile(self.slowest, name, self.scope.service, WINDOW) for hop, name in HOPS.items()}
        text = "Text to ids, the wait in an executor's queue, one step, the way there and back, ids to text."
        arrival = "From a call's arrival to its first ids."
        return Row(
            "Latency",
            (
                self.quantiles("Time to first token", arrival, TTFT, thresholds=self.first_token_limits),
                self.quantiles("Inter-token", "Between ids of a choice.", "packserve_inter_token_latency_seconds"),
                self.quantiles("Whole call", "From a call's arrival to its end.", "packserve_request_seconds"),
                self.heatmap("Time to first token, spread", "Calls by the time to their first ids.", TTFT),
                Panel(f"By hop, p{self.slowest * 100:g}", text, hops, "s", width=16),
            ),
        )

    def replicas(self) -> Row:
        busy, cores = self.rate("packserve_tokenize_seconds_sum"), self.rate("process_cpu_seconds_total")
        loop = f"{cores} - {busy}"
        busy_text, waiting_text = (
            "Share of the time that its one thread works.",
            "Characters that wait for that thread.",
        )
        waiting, memory = self.of("packserve_encode_waiting_characters"), self.of("process_resident_memory_bytes")
        busy_limits, core_limits = self.limits_of("EncodeSaturated"), self.limits_of("TokenizerCPUSaturated")
        executor_job = f'job="{self.knobs.jobs.executor}"'
        executors = {
            "there are": f"count({series('up', self.scope.service, executor_job)})",
            "connected, {{instance}}": self.of("packserve_executors_connected"),
            "refused, {{instance}}": self.of("packserve_executors_refused"),
        }
        ready = {"{{job}} {{instance}}": series("packserve_ready", self.scope.service)}
        return Row(
            "Tokenizer replicas",
            (
                self.by_replica("Encoding", busy_text, busy, "percentunit", width=6, thresholds=busy_limits),
                self.by_replica("Encoding queue", waiting_text, waiting, width=6),
                self.by_replica("Event loop", "Cores beside encoding.", loop, width=6, thresholds=core_limits),
                self.by_replica("Memory", "Resident memory.", memory, "bytes", width=6),
                self.by_replica("Open calls", "Calls being answered.", self.of("packserve_open_calls")),
                Panel("Executors", "All, and those that a replica reaches or refuses.", executors, "short"),
                Panel("Ready", "1 while a replica of either service takes work.", ready, "short", maximum=1),
            ),
        )


def service_dashboard(knobs: Knobs) -> Json:
    description = "What callers ask and wait for, as the tokenizer replicas see it."
    return dashboard(
        "packserve service",
        description,
        ServiceBoard(knobs).rows(),
        "packserve_open_calls",
        knobs.jobs.tokenizer,
        knobs,
    )
