# SPDX-License-Identifier: Apache-2.0
"""The tokenizer service's series: what a caller waits for, and where. Queue, steps and KV use are the executor's.

Every series is there from the start, with its labels; none is labelled by what a caller sends.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from protos.errors import DeadlineExceeded, InvalidRequest, NotSupported, RequestCancelled
from protos.metrics import SECONDS_BUCKETS, Alias, AliasCollector, vllm_labels

OUTCOMES = ("stop", "length", "cancelled", "expired", "refused", "error")
STOP, LENGTH, CANCELLED, EXPIRED, REFUSED, ERROR = OUTCOMES

# A deadline reaches caller and server at slightly different times; a call cancelled this close to it has expired.
DEADLINE_SLACK_S = 0.05


class Metrics:
    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"packserve_{name}_seconds", text, buckets=SECONDS_BUCKETS, registry=registry)

        self.registry = registry
        self.tokenize = seconds("tokenize", "One batch of texts to ids.")
        self.wire = seconds("wire", "A row's way to its executor and its first ids' way back.")
        self.detokenize = seconds("detokenize", "Ids to text and stop strings, all of one call.")
        self.first_token = seconds("time_to_first_token", "A call's arrival to its first ids.")
        self.inter_token = seconds("inter_token_latency", "Between ids of a choice.")
        self.request = seconds("request", "A call's arrival to its end.")
        self.requests = Counter("packserve_requests", "Calls ended.", ["outcome"], registry=registry)
        self.prompt_tokens = Counter("packserve_prompt_tokens", "Prompt ids sent to executors.", registry=registry)
        self.generation_tokens = Counter("packserve_generation_tokens", "Ids generated.", registry=registry)
        self.executors_connected = Gauge("packserve_executors_connected", "Executors connected.", registry=registry)
        self.executors_refused = Gauge(
            "packserve_executors_refused", "Executors of another vocabulary, protocol or model.", registry=registry
        )
        self.open_calls = Gauge("packserve_open_calls", "Calls that have not ended.", registry=registry)
        self.encode_waiting = Gauge(
            "packserve_encode_waiting_characters", "Of texts that are not encoded yet.", registry=registry
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)
        registry.register(AliasCollector(self._vllm_aliases(), vllm_labels(model_name)))

    def _vllm_aliases(self) -> tuple[Alias, ...]:
        return (
            Alias("vllm:time_to_first_token_seconds", self.first_token),
            Alias("vllm:inter_token_latency_seconds", self.inter_token),
            Alias("vllm:e2e_request_latency_seconds", self.request),
            Alias("vllm:prompt_tokens", self.prompt_tokens),
            Alias("vllm:generation_tokens", self.generation_tokens),
            Alias(
                "vllm:request_success",
                self.requests,
                {"outcome": "finished_reason"},
                lambda labels: labels["outcome"] in (STOP, LENGTH),
            ),
        )

    def on_encode(self, elapsed_s: float) -> None:
        self.tokenize.observe(elapsed_s)


class CallRecord:
    """What one call adds to the series, as a context: how it is left is its outcome.

    ``reason`` is STOP until the call says LENGTH.
    """

    __slots__ = ("_begun_s", "_metrics", "deadline_s", "detokenize_s", "reason")

    def __init__(self, metrics: Metrics, timeout_s: float | None) -> None:
        self._metrics = metrics
        self._begun_s = time.monotonic()
        self.deadline_s = None if timeout_s is None else self._begun_s + timeout_s
        self.detokenize_s = 0.0
        self.reason = STOP

    def on_prompt(self, num_tokens: int) -> None:
        self._metrics.prompt_tokens.inc(num_tokens)

    def on_ids(self, num_ids: int, last_s: float | None) -> float:
        """num_ids of one choice, whose ids before came at last_s. Returns now."""
        now_s = time.monotonic()
        if last_s is None:
            self._metrics.first_token.observe(now_s - self._begun_s)
        else:
            self._metrics.inter_token.observe((now_s - last_s) / num_ids)
        self._metrics.generation_tokens.inc(num_ids)
        return now_s

    def __enter__(self) -> CallRecord:
        return self

    def __exit__(
        self, _cls: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._metrics.requests.labels(self._outcome(error)).inc()
        self._metrics.request.observe(time.monotonic() - self._begun_s)
        self._metrics.detokenize.observe(self.detokenize_s)

    def _outcome(self, error: BaseException | None) -> str:
        match error:
            case None:
                return self.reason
            case DeadlineExceeded():
                return EXPIRED
            case asyncio.CancelledError() | GeneratorExit() | RequestCancelled():
                is_late = self.deadline_s is not None and time.monotonic() > self.deadline_s - DEADLINE_SLACK_S
                return EXPIRED if is_late else CANCELLED
            case InvalidRequest() | NotSupported():
                return REFUSED
            case _:
                return ERROR
