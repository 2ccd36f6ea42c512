# SPDX-License-Identifier: Apache-2.0
"""Alerts on one thing each: what to compare with a knob's threshold, and what to tell whoever is woken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k8s.monitoring.knobs import AlertKnobs, Knobs
from k8s.monitoring.promql import increase, one_of, rate, series, sum_by

# Filled in by Prometheus when the alert fires.
VALUE = "{{ $value | humanize }}"
SHARE = "{{ $value | humanizePercentage }}"
INSTANCE = "{{ $labels.instance }}"
JOB = "{{ $labels.job }}"


@dataclass(frozen=True)
class Alert:
    """By the name of its knobs."""

    name: str
    expr: Callable[[AlertKnobs], str]
    summary: str
    description: Callable[[AlertKnobs], str]


def alerts(knobs: Knobs) -> tuple[Alert, ...]:
    return (*availability(knobs), *engine(knobs), *tokenizer(knobs))


def availability(knobs: Knobs) -> tuple[Alert, ...]:
    service, tokenizers = knobs.service_label, f'job="{knobs.jobs.tokenizer}"'
    both = one_of("job", (knobs.jobs.tokenizer, knobs.jobs.executor))
    up, executors = series("up", tokenizers), series("up", f'job="{knobs.jobs.executor}"')
    # One that is refused is reached: ModelMismatch tells of it.
    each_reaches = " + ".join(series(f"packserve_executors_{name}", tokenizers) for name in ("connected", "refused"))
    reached = f"min by ({service}) ({each_reaches})"
    return (
        Alert(
            "Unavailable",
            lambda _: f"max by ({service}) ({series('packserve_ready', tokenizers)} or 0 * {up}) == 0\nor absent({up})",
            "No tokenizer replica takes calls",
            lambda knob: (
                f"Every tokenizer replica has been not ready for {knob.for_}: no executor takes rows from them."
            ),
        ),
        Alert(
            "NotReady",
            lambda _: f"{series('packserve_ready', both)} == 0",
            "A replica is not ready",
            lambda knob: f"{INSTANCE} ({JOB}) has been up but not ready for {knob.for_}.",
        ),
        Alert(
            "ReplicaLost",
            lambda _: f"{series('up', both)} == 0",
            "A replica does not answer",
            lambda knob: f"The metrics of {INSTANCE} ({JOB}) could not be read for {knob.for_}.",
        ),
        Alert(
            "ExecutorLost",
            lambda knob: f"count by ({service}) ({executors} and {executors} offset {knob.window})\n- {reached} > 0",
            "A tokenizer replica does not reach every executor",
            lambda knob: (
                f"{VALUE} executors that have been there for {knob.window} are not reached by some tokenizer replica."
            ),
        ),
        Alert(
            "NoProgress",
            lambda knob: (
                f"{sum_by(service, series('packserve_open_calls', tokenizers))} > 0\nand "
                + sum_by(service, rate(series("packserve_generation_tokens_total", tokenizers), knob.window))
                + " == 0"
            ),
            "Calls are open and no token comes",
            lambda knob: f"{VALUE} calls are open, and not one token was generated in {knob.window}.",
        ),
    )


def engine(knobs: Knobs) -> tuple[Alert, ...]:
    job = f'job="{knobs.jobs.executor}"'
    waiting = series("packserve_waiting_sequences", job)
    preemptions, starts = (
        series(name, job) for name in ("packserve_preemptions_total", "packserve_queue_seconds_count")
    )
    return (
        Alert(
            "EngineStuck",
            lambda knob: f"{series('packserve_step_age_seconds', job)} > {knob.threshold:g}",
            "An executor's step does not end",
            lambda knob: (
                f"The last step of {INSTANCE} ended {VALUE} s ago with work to do (limit {knob.threshold:g} s)."
            ),
        ),
        Alert(
            "KVSaturated",
            lambda knob: f"{series('packserve_kv_usage_ratio', job)} > {knob.threshold:g}\nand {waiting} > 0",
            "The KV cache is full and rows wait for it",
            lambda knob: (
                f"{SHARE} of {INSTANCE}'s fullest KV pool is in use (limit {knob.threshold:.0%}), and rows wait."
            ),
        ),
        Alert(
            "QueueGrowing",
            lambda knob: (
                f"min_over_time({waiting}[{knob.window}]) > {knob.threshold:g}\n"
                f"and {waiting} >= {waiting} offset {knob.window}"
            ),
            "More rows come than the executor can start",
            lambda knob: (
                f"At least {VALUE} rows have waited at {INSTANCE} for {knob.window} (limit {knob.threshold:g}), and no"
                " fewer than before."
            ),
        ),
        Alert(
            "PreemptionStorm",
            lambda knob: f"{rate(preemptions, knob.window)} / {rate(starts, knob.window)} > {knob.threshold:g}",
            "Sequences take blocks from each other",
            lambda knob: (
                f"{INSTANCE} computes {VALUE} sequences again for each that starts (limit {knob.threshold:g}): "
                "blocks run out."
            ),
        ),
        Alert(
            "FailedRows",
            lambda knob: f"{increase(series('packserve_failed_rows_total', job), knob.window)} > 0",
            "The model computes logits that are not finite",
            lambda knob: f"{VALUE} rows of {INSTANCE} ended in {knob.window} because their logits were not finite.",
        ),
    )


def tokenizer(knobs: Knobs) -> tuple[Alert, ...]:
    job = f'job="{knobs.jobs.tokenizer}"'
    return (
        Alert(
            "EncodeSaturated",
            lambda knob: f"{rate(series('packserve_tokenize_seconds_sum', job), knob.window)} > {knob.threshold:g}",
            "A tokenizer replica's encoding thread is busy",
            lambda knob: (
                f"{INSTANCE} encodes {SHARE} of the time (limit {knob.threshold:.0%}): texts wait for each other."
            ),
        ),
        Alert(
            "TokenizerCPUSaturated",
            lambda knob: (
                f"{rate(series('process_cpu_seconds_total', job), knob.window)}\n"
                f"- {rate(series('packserve_tokenize_seconds_sum', job), knob.window)} > {knob.threshold:g}"
            ),
            "A tokenizer replica's event loop is full",
            lambda knob: (
                f"{INSTANCE} uses {VALUE} cores beside encoding (limit {knob.threshold:g}): streams wait for its event"
                " loop, which has one."
            ),
        ),
        Alert(
            "ModelMismatch",
            lambda _: f"{series('packserve_executors_refused', job)} > 0",
            "Executors serve another model than the tokenizers",
            lambda knob: (
                f"{INSTANCE} refuses {VALUE} executors for {knob.for_} now: of another model, vocabulary or protocol."
            ),
        ),
    )
