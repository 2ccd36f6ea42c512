# SPDX-License-Identifier: Apache-2.0
"""What the services export is named as Prometheus' linter wants it, but for the second names that dashboards know."""

from __future__ import annotations

import subprocess

import pytest
from prometheus_client import generate_latest

from tests.fixtures.series import registries

COLON = "metric names should not contain ':'"
TOTAL = 'non-counter metrics should not have "_total" suffix'
# Names are another project's: each family, and what the linter says of it.
ALIASES = {
    "tokenizer": {
        "vllm:e2e_request_latency_seconds": {COLON},
        "vllm:generation_tokens_total": {COLON},
        "vllm:inter_token_latency_seconds": {COLON},
        "vllm:prompt_tokens_total": {COLON},
        "vllm:request_success_total": {COLON},
        "vllm:time_to_first_token_seconds": {COLON},
    },
    "executor": {
        "vllm:iteration_tokens_total": {COLON, TOTAL},
        "vllm:kv_cache_usage_perc": {COLON},
        "vllm:num_preemptions_total": {COLON},
        "vllm:num_requests_running": {COLON},
        "vllm:num_requests_waiting": {COLON},
        "vllm:prefix_cache_hits_total": {COLON},
        "vllm:prefix_cache_queries_total": {COLON},
        "vllm:request_queue_time_seconds": {COLON},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("service", ALIASES)
def test_linter_finds_nothing_but_the_aliases(service: str) -> None:
    scrape = generate_latest(registries()[service]).decode()
    done = subprocess.run(["promtool", "check", "metrics"], input=scrape, capture_output=True, text=True)
    found: dict[str, set[str]] = {}
    for line in done.stderr.splitlines():
        name, text = line.split(" ", 1)
        found.setdefault(name, set()).add(text)
    assert found == ALIASES[service]


@pytest.mark.parametrize("service", ALIASES)
def test_series_of_our_own_have_one_exporter(service: str) -> None:
    """Summing over both jobs counts nothing twice; what every process tells of itself is told apart by job."""
    (other,) = ALIASES.keys() - {service}
    ours, theirs = (
        {family.name for family in registries()[name].collect() if family.name.startswith("packserve")}
        for name in (service, other)
    )
    assert ours & theirs == {"packserve_ready", "packserve_build"}
