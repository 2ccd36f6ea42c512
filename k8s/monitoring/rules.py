# SPDX-License-Identifier: Apache-2.0
"""Recording rules: what alerts and panels ask for again and again.

Named level:metric:operation; the level is always the service, one to a namespace.
"""

from __future__ import annotations

from typing import Any

from prometheus_client.utils import floatToGoString

from k8s.monitoring.knobs import Knobs
from k8s.monitoring.promql import increase, none_of, one_of, rate, series, sum_by


class FirstTokenSlo:
    """First tokens slower than the threshold, of all."""

    title = "Time to first token"
    record = "packserve:time_to_first_token_slow:ratio_rate"

    def __init__(self, knobs: Knobs) -> None:
        slo = knobs.slos.time_to_first_token
        job = f'job="{knobs.jobs.tokenizer}"'
        edge = f'le="{floatToGoString(slo.threshold_s)}"'  # type: ignore[no-untyped-call]
        self._service = knobs.service_label
        self._all = series("packserve_time_to_first_token_seconds_count", job)
        self._good = series("packserve_time_to_first_token_seconds_bucket", job, edge)
        self.budget = budget(slo.objective)
        self.goal = f"{slo.objective * 100:g}% of first tokens within {slo.threshold_s:g} s"

    def bad_ratio(self, window: str) -> str:
        good, every = (sum_by(self._service, rate(each, window)) for each in (self._good, self._all))
        return f"1 - {good} / {every}"

    def num_bad(self, window: str) -> str:
        good, every = (sum_by(self._service, increase(each, window)) for each in (self._good, self._all))
        return f"{every} - {good}"


class RequestSlo:
    """Calls that failed, of those that could succeed."""

    title = "Calls"
    record = "packserve:requests_bad:ratio_rate"

    def __init__(self, knobs: Knobs) -> None:
        slo = knobs.slos.requests
        job = f'job="{knobs.jobs.tokenizer}"'
        self._service = knobs.service_label
        self._all = series("packserve_requests_total", job, none_of("outcome", slo.ignored))
        self._bad = series("packserve_requests_total", job, one_of("outcome", slo.bad))
        self.budget = budget(slo.objective)
        self.goal = f"{slo.objective * 100:g}% of calls that end well"

    def bad_ratio(self, window: str) -> str:
        bad, every = (sum_by(self._service, rate(each, window)) for each in (self._bad, self._all))
        return f"{bad} / {every}"

    def num_bad(self, window: str) -> str:
        return sum_by(self._service, increase(self._bad, window))


Slo = FirstTokenSlo | RequestSlo


def slos(knobs: Knobs) -> tuple[FirstTokenSlo, RequestSlo]:
    return FirstTokenSlo(knobs), RequestSlo(knobs)


def budget(objective: float) -> float:
    """The share that may be bad, without the last digits of a subtraction."""
    return round(1 - objective, 9)


def windows(knobs: Knobs) -> list[str]:
    """Of every burn rate, each once."""
    return list(dict.fromkeys(window for burn in knobs.burn_rates for window in (burn.short, burn.long)))


def recording_groups(knobs: Knobs) -> list[dict[str, Any]]:
    ratios = [
        {"record": slo.record + window, "expr": slo.bad_ratio(window)}
        for slo in slos(knobs)
        for window in windows(knobs)
    ]
    return [{"name": "packserve-slo", "rules": ratios}]
