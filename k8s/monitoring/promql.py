# SPDX-License-Identifier: Apache-2.0
"""Pieces of PromQL that rules and panels are put together from. Knows no series and no threshold."""

from __future__ import annotations

from collections.abc import Sequence


def series(name: str, *matchers: str) -> str:
    return f"{name}{{{','.join(matcher for matcher in matchers if matcher)}}}"


def one_of(label: str, values: Sequence[str]) -> str:
    return f'{label}=~"{"|".join(values)}"'


def none_of(label: str, values: Sequence[str]) -> str:
    return f'{label}!~"{"|".join(values)}"'


def rate(selector: str, window: str) -> str:
    return f"rate({selector}[{window}])"


def increase(selector: str, window: str) -> str:
    return f"increase({selector}[{window}])"


def sum_by(labels: str, of: str) -> str:
    return f"sum by ({labels}) ({of})"


def mean(histogram: str, matchers: str, labels: str, window: str) -> str:
    """Of what a histogram observed in each window."""
    of_sum, of_count = (rate(series(f"{histogram}_{part}", matchers), window) for part in ("sum", "count"))
    return f"{sum_by(labels, of_sum)} / {sum_by(labels, of_count)}"


def quantile(q: float, histogram: str, matchers: str, window: str) -> str:
    buckets = rate(series(f"{histogram}_bucket", matchers), window)
    return f"histogram_quantile({q}, {sum_by('le', buckets)})"
