# SPDX-License-Identifier: Apache-2.0
"""What the pages on devices say of defaults, graphs, limits and operations is so."""

from __future__ import annotations

import dataclasses
import re

import pytest

from executor_service.config import DEVICES
from executor_service.device.decode_graphs import SIZES
from tests.fixtures.repository import ROOT

ASCEND = (ROOT / "docs" / "ascend.md").read_text()
PAGES = {"npu": ASCEND, "cuda": (ROOT / "docs" / "nvidia.md").read_text()}


@pytest.mark.parametrize("device", PAGES)
def test_defaults_are_the_devices_own(device: str) -> None:
    said = dict(re.findall(r"^\| `--([\w-]+)` \| ([\d.]+) \|", PAGES[device], re.MULTILINE))
    assert said == {name.replace("_", "-"): str(value) for name, value in dataclasses.asdict(DEVICES[device]).items()}


def test_sizes_of_graphs_are_those_that_are_captured() -> None:
    said = re.search(r"replayed as a whole, for ([\d, ]+) and (\d+) rows", ASCEND)
    assert said
    assert tuple(map(int, [*said[1].split(", "), said[2]])) == SIZES


def test_operations_are_those_that_the_kernels_call() -> None:
    table = ASCEND.split("## What runs where")[1].split("\n## ")[0]
    said = set(re.findall(r"`(_?npu_\w+)`", table))
    sources = "".join(path.read_text() for path in (ROOT / "kernels" / "npu").glob("*.py"))
    # How weights and caches are laid out, once.
    assert said == set(re.findall(r"torch_npu\.(_?npu_\w+)\(", sources)) - {"npu_format_cast"}


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("head size", ["FUSED_HEAD_DIMS", "BLOCK_ALIGNMENT"]),
        ("query heads", ["MAX_HEADS", "MAX_HEADS_PER_KEY"]),
        ("key heads x head size", ["MAX_KEY_VALUES"]),
        (
            "block",
            [
                "BLOCK_ALIGNMENT",
                "MAX_BLOCK_TOKENS",
                "MAX_WINDOWED_BLOCK_TOKENS",
                "BLOCK_ALIGNMENT",
                "MAX_310P_BLOCK_VALUES",
            ],
        ),
    ],
)
def test_limits_are_those_that_are_checked(row: str, names: list[str]) -> None:
    source = (ROOT / "kernels" / "npu" / "limits.py").read_text()
    constants = dict(re.findall(r"^([A-Z0-9_]+) = \(?([\d*, ]+?)\)?$", source, re.MULTILINE))
    cells = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", ASCEND, re.MULTILINE)
    assert cells
    said = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", cells[1].replace("310P", ""))]
    limits = [number for name in names for number in numbers(constants[name])]
    assert said == limits


def numbers(source: str) -> list[int]:
    """128 * 128, or 128, 192."""
    if "*" in source:
        left, right = source.split("*")
        return [int(left) * int(right)]
    return [int(number) for number in source.split(",") if number.strip()]
