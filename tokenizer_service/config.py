# SPDX-License-Identifier: Apache-2.0
"""What an operator can set, checked when made. Filled from flags and environment in __main__.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from protos.errors import ConfigError
from protos.server import Ports
from tokenizer_service.link import STUCK_AFTER_S
from tokenizer_service.pool import DNS_PREFIX

DEFAULT_EXECUTOR = "127.0.0.1:50061"


@dataclass(frozen=True)
class TokenizerConfig:
    """executors: "host:port", or "dns:///name:port" for every address behind a name."""

    model: Path
    name: str = ""
    executors: tuple[str, ...] = (DEFAULT_EXECUTOR,)
    ports: Ports = field(default_factory=Ports)
    drain_timeout_s: float = 30.0
    executor_stuck_after_s: float = STUCK_AFTER_S
    # 0: connections of callers last as long as these want.
    max_connection_age_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self.model.is_dir(), "MODEL", self.model, "must be a directory with tokenizer files")
        self.ports.check("TOKENIZER")
        _check(len(self.executors) > 0, "EXECUTORS", "", "must name at least one executor")
        for target in self.executors:
            _check(_is_target(target), "EXECUTORS", target, f"must be host:port or {DNS_PREFIX}name:port")
        _check(self.drain_timeout_s >= 0, "DRAIN_TIMEOUT_S", self.drain_timeout_s, "must be 0 or more")
        age_s = self.max_connection_age_s
        _check(age_s == 0 or age_s >= 1, "MAX_CONNECTION_AGE_S", age_s, "must be 0 (none) or at least 1")
        stuck_after_s = self.executor_stuck_after_s
        _check(stuck_after_s > 0, "EXECUTOR_STUCK_AFTER_S", stuck_after_s, "must be above 0")

    @property
    def model_name(self) -> str:
        return self.name or self.model.resolve().name


def _is_target(target: str) -> bool:
    host, _, port = target.removeprefix(DNS_PREFIX).rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 65536


def _check(is_valid: bool, setting: str, value: object, bound: str) -> None:
    if not is_valid:
        raise ConfigError(f"TOKENIZER_{setting}={value}: {bound}")
