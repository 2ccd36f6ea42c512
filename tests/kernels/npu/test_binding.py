# SPDX-License-Identifier: Apache-2.0
"""Each call of torch_npu in kernels/npu against the schemas of the oldest and the newest torch_npu it is for."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
SCHEMA_FILES = ("npu_schemas.json", "npu_schemas_2_10.json")
SOURCES = sorted((ROOT / "kernels" / "npu").glob("*.py"))
# Each of them waits for the device.
WAITING = {"item", "tolist", "cpu", "nonzero", "numpy", "synchronize"}


def schemas_of(file: str) -> dict[str, str]:
    return json.loads((ROOT / "tests" / "fixtures" / file).read_text())["schemas"]


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Calls of torch_npu.NAME; what is called through torch_npu.npu is torch's own, torch.npu."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch_npu"), attr=name)):
                yield name, node


def problems(source: str, schemas: dict[str, str]) -> list[str]:
    return [problem for name, call in calls(source) for problem in problems_of(name, call, schemas)]


def problems_of(name: str, call: ast.Call, schemas: dict[str, str]) -> Iterator[str]:
    text = schemas.get(f"atb::{name}" if name.startswith("_npu") else f"npu::{name}")
    if text is None:
        yield f"{name} does not exist"
        return
    arguments = torch._C.parse_schema(text).arguments
    positional = [argument.name for argument in arguments if not argument.kwarg_only]
    if len(call.args) > len(positional) or any(isinstance(value, ast.Starred) for value in call.args):
        yield f"{name} has {len(positional)} arguments by place"
    given = {*positional[: len(call.args)], *(keyword.arg for keyword in call.keywords)}
    known = {argument.name for argument in arguments}
    required = {argument.name for argument in arguments if not argument.has_default_value()}
    yield from (f"{name} has no {argument}" for argument in given - known)
    yield from (f"{name} needs {argument}" for argument in required - given)


@pytest.mark.parametrize("file", SCHEMA_FILES)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_every_call_fits_its_schema(source: Path, file: str) -> None:
    assert problems(source.read_text(), schemas_of(file)) == []


def test_calls_are_found() -> None:
    names = {name for source in SOURCES for name, _ in calls(source.read_text())}
    assert names == {name.split("::")[1] for name in schemas_of(SCHEMA_FILES[0])}


@pytest.mark.parametrize(
    ("snippet", "expected"),
    [
        ("npu_rms_norm(x, w, epsilon=eps)", []),
        ("npu_rms_norm(x, w, epsilom=eps)", ["npu_rms_norm has no epsilom"]),
        ("npu_rms_norn(x, w)", ["npu_rms_norn does not exist"]),
        ("npu_rms_norm(x)", ["npu_rms_norm needs gamma"]),
        ("npu_swiglu(x, -1, 2)", ["npu_swiglu has 2 arguments by place"]),
        ("npu_swiglu(x, **more)", ["npu_swiglu has no None"]),
        ("_npu_reshape_and_cache(k, v, kc, vc, slots=s)", ["has no slots", "needs slot_indices"]),
    ],
)
def test_a_misspelt_call_is_found(snippet: str, expected: list[str]) -> None:
    found = problems(f"y = torch_npu.{snippet}", schemas_of(SCHEMA_FILES[0]))
    assert len(found) == len(expected)
    assert all(any(part in problem for problem in found) for part in expected)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_nothing_waits_for_the_device(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in WAITING, ast.unparse(node)
            makes = ast.unparse(node.func) in ("torch.tensor", "torch.as_tensor")
            assert not (makes and any(keyword.arg == "device" for keyword in node.keywords)), ast.unparse(node)
