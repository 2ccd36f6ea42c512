# SPDX-License-Identifier: Apache-2.0
"""knobs.yaml as values: what may stand there, and the checks that stop a rendering.

Does not know what is made of them.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from protos.errors import ConfigError
from protos.metrics import SECONDS_BUCKETS

PATH = Path(__file__).with_name("knobs.yaml")
SEVERITIES = ("critical", "warning")
DURATION = re.compile(r"\d+(ms|[smhdw])")

T = TypeVar("T")


@dataclass(frozen=True)
class Jobs:
    tokenizer: str
    executor: str


@dataclass(frozen=True)
class Scrape:
    port: str
    interval: str
    timeout: str
    labels: dict[str, str]


@dataclass(frozen=True)
class LatencySlo:
    objective: float
    threshold_s: float


@dataclass(frozen=True)
class OutcomeSlo:
    objective: float
    bad: list[str]
    ignored: list[str]


@dataclass(frozen=True)
class Slos:
    time_to_first_token: LatencySlo
    requests: OutcomeSlo


@dataclass(frozen=True)
class BurnRate:
    factor: float
    long: str
    short: str
    for_: str
    severity: str


@dataclass(frozen=True)
class AlertKnobs:
    for_: str
    severity: str
    threshold: float = 0
    window: str = ""


@dataclass(frozen=True)
class DashboardKnobs:
    label: dict[str, str]
    tags: list[str]
    refresh: str
    since: str
    quantiles: list[float]
    warn_share: float


@dataclass(frozen=True)
class NpuExporter:
    row: str
    selector: str
    series: list[str]
    max_temperature_celsius: float


@dataclass(frozen=True)
class Local:
    interval: str
    namespace: str


@dataclass(frozen=True)
class Knobs:
    service_label: str
    jobs: Jobs
    scrape: Scrape
    slos: Slos
    burn_rates: list[BurnRate]
    min_bad_calls: int
    runbook: str
    alerts: dict[str, AlertKnobs]
    dashboards: DashboardKnobs
    npu_exporter: NpuExporter
    local: Local

    def __post_init__(self) -> None:
        if (edge := self.slos.time_to_first_token.threshold_s) not in SECONDS_BUCKETS:
            raise ConfigError(f"slos.time_to_first_token.threshold_s={edge}: must be one of {SECONDS_BUCKETS}")
        for slo in (self.slos.time_to_first_token, self.slos.requests):
            if not 0 < slo.objective < 1:
                raise ConfigError(f"slos: objective {slo.objective} must lie between 0 and 1")
        alerts: list[BurnRate | AlertKnobs] = [*self.burn_rates, *self.alerts.values()]
        for each in alerts:
            if each.severity not in SEVERITIES:
                raise ConfigError(f"severity {each.severity}: must be one of {SEVERITIES}")
        for duration in self._durations():
            if not DURATION.fullmatch(duration):
                raise ConfigError(f"{duration!r}: must be a number with one of ms, s, m, h, d, w")

    def _durations(self) -> set[str]:
        burns = {each for burn in self.burn_rates for each in (burn.long, burn.short, burn.for_)}
        alerts = {each for alert in self.alerts.values() for each in (alert.for_, alert.window or alert.for_)}
        scrape = {self.scrape.interval, self.scrape.timeout, self.local.interval, self.dashboards.refresh}
        return burns | alerts | scrape


def load(path: Path = PATH) -> Knobs:
    return parse(Knobs, yaml.safe_load(path.read_text()), path.name)


def parse(kind: type[T], value: Any, where: str) -> T:
    """value as kind, with the same names in both. Raises ConfigError with the place of what does not fit."""
    parsed: Any
    origin, of = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        parsed = _parse_fields(kind, value, where)
    elif origin is dict and isinstance(value, dict):
        parsed = {parse(of[0], key, where): parse(of[1], each, f"{where}.{key}") for key, each in value.items()}
    elif origin is list and isinstance(value, list):
        parsed = [parse(of[0], each, f"{where}[{at}]") for at, each in enumerate(value)]
    elif type(value) is kind or (kind is float and type(value) is int):
        parsed = value
    else:
        raise ConfigError(f"{where}={value!r}: must be {getattr(kind, '__name__', kind)}")
    return parsed  # type: ignore[no-any-return]


def _parse_fields(kind: Any, value: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    # `for` is a keyword here, and only here.
    given = {"for_" if key == "for" else key: each for key, each in value.items()}
    required = {field.name for field in fields(kind) if field.default is MISSING}
    if wrong := (given.keys() - hints.keys()) | (required - given.keys()):
        raise ConfigError(f"{where}: unknown or missing {sorted(wrong)}")
    return kind(**{name: parse(hints[name], each, f"{where}.{name}") for name, each in given.items()})
