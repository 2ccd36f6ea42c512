# SPDX-License-Identifier: Apache-2.0
"""Containerfiles say what the services and pyproject.toml say. That they build and run is `make test-containers`."""

from __future__ import annotations

import re
import tomllib

import click
import pytest

from executor_service.__main__ import main as executor_command
from tests.fixtures.repository import ROOT
from tokenizer_service.__main__ import main as tokenizer_command

COMMANDS = {"executor": executor_command, "tokenizer": tokenizer_command}


def containerfile(service: str) -> str:
    return (ROOT / f"{service}_service" / "Containerfile").read_text()


@pytest.mark.parametrize("service", COMMANDS)
def test_runs_the_service_as_a_user_that_a_cluster_can_see_is_not_root(service: str) -> None:
    final_stage = containerfile(service).split("\nFROM ")[-1]
    assert "USER 10001:10001\n" in final_stage
    assert f'CMD ["python", "-m", "{service}_service"]' in final_stage
    # An entry point of the base, such as CANN's, stays in front of it.
    assert "ENTRYPOINT" not in containerfile(service)


@pytest.mark.parametrize("service", COMMANDS)
def test_exposes_the_ports_that_the_service_takes_by_default(service: str) -> None:
    options = {option.name: option for option in COMMANDS[service].params if isinstance(option, click.Option)}
    ports = [str(options[name].default) for name in ("port", "health_port", "metrics_port")]
    assert f"EXPOSE {' '.join(ports)}\n" in containerfile(service)


def test_tokenizer_image_has_all_that_its_extra_asks_for() -> None:
    """The Containerfile names the packages of the extra, so that one comes without its dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {re.split(r"\W", each)[0] for each in project["optional-dependencies"]["tokenizer"]}
    named = re.findall(r"packserve-\*\.whl (\w+)|--no-deps (\w+)$|--no-deps (\w+) ", containerfile("tokenizer"), re.M)
    assert {name for names in named for name in names if name} == extra


@pytest.mark.parametrize("service", COMMANDS)
def test_build_context_has_all_that_is_copied(service: str) -> None:
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".containerignore").read_text(), re.M))
    copied = {
        name for line in re.findall(r"^COPY (?!--)(.+) \S+$", containerfile(service), re.M) for name in line.split()
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
