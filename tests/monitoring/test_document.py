# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md is what the services declare and export, and every series that is named anywhere is exported."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from k8s.monitoring.document import PAGE, declared, page
from tests.balancing.fleet import write_ring_model
from tests.fixtures.repository import ROOT, files
from tests.fixtures.series import exported_series
from tests.fixtures.services import running_services

Families = dict[str, Metric]
SUFFIXES = {"counter": "_total"}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Families]]:
    """Of each service before its first call, by name as in a query; a histogram's without its suffixes."""
    folder: Path = tmp_path_factory.mktemp("services")
    with running_services(write_ring_model(folder / "model"), folder / "log") as services:
        ports = {"tokenizer": services.tokenizer, "executor": services.executor}
        yield {service: families(each.metrics_port) for service, each in ports.items()}


def families(port: int) -> Families:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return {each.name + SUFFIXES.get(each.type, ""): each for each in text_string_to_metric_families(text)}


def test_page_is_current() -> None:
    assert PAGE.read_text() == page(), "python -m k8s.monitoring.document"


def test_every_series_has_a_meaning_and_a_unit() -> None:
    for series in (each for section in declared().values() for each in section):
        assert series.family.documentation
        assert series.unit


@pytest.mark.slow
def test_page_is_what_is_scraped(scraped: dict[str, Families]) -> None:
    """Names, aliases, types, and labels."""
    sections = declared()
    for service, found in scraped.items():
        documented = [*sections[service], *sections["both"]]
        aliases = {each.alias for each in documented if each.alias}
        assert found.keys() == {each.name for each in documented} | aliases
        for each in documented:
            family = found[each.name]
            assert family.documentation == each.family.documentation
            assert family.type == ("gauge" if each.family.type == "info" else each.family.type)
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            assert labels == each.labels.keys()


def named_series() -> dict[str, set[str]]:
    """In each page and manifest; dashboards and rules as they are rendered."""
    pages = [path for path in files() if path.parts[0] in ("docs", "k8s") or path.name == "README.md"]
    texts = {str(path): (ROOT / path).read_text() for path in pages if path.suffix in (".md", ".json", ".yaml")}
    return {path: set(re.findall(r"\b(?:packserve_|process_|vllm:)[a-z]\w*", text)) for path, text in texts.items()}


def assert_all_known(known: set[str]) -> None:
    named = named_series()
    assert len(set().union(*named.values())) > 40
    unknown = {path: sorted(names - known) for path, names in named.items()}
    assert {path: names for path, names in unknown.items() if names} == {}


def test_every_series_named_anywhere_is_declared() -> None:
    """B64."""
    declared_names = {name for section in declared().values() for each in section for name in (each.name, each.alias)}
    assert_all_known(exported_series() | declared_names)


@pytest.mark.slow
def test_every_series_named_anywhere_is_scraped(scraped: dict[str, Families]) -> None:
    """B64: before the first call, so that it is 0 rather than absent."""
    samples = {sample.name for found in scraped.values() for family in found.values() for sample in family.samples}
    assert_all_known(samples | {name for found in scraped.values() for name in found})
