# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: imports point down, and the two services never meet.

Read from the sources, so that an import inside a function counts too.
"""

from __future__ import annotations

import pytest

from tests.fixtures.repository import PACKAGES, imports, modules

ORACLES = {"transformers", "openai", "accelerate"}
DEVICE = {"torch", "safetensors", "gguf"}
TEXT = {"tokenizers", "jinja2"}
FORBIDDEN = {
    "protos": {"tokenizer_service", "executor_service", "kernels"} | DEVICE | TEXT | ORACLES,
    "tokenizer_service": {"executor_service", "kernels"} | DEVICE | ORACLES,
    "executor_service": {"tokenizer_service"} | TEXT | ORACLES,
    "kernels": {"tokenizer_service", "executor_service", "grpc"} | TEXT | ORACLES,
}
# What each part of the executor may import of the others; its top level may import all.
PARTS = {
    "scheduling": set(),
    "conversion": {"models"},
    "grammar": {"scheduling"},
    "models": {"scheduling"},
    "device": {"scheduling", "models"},
    "engine": {"scheduling", "device"},
    "wire": {"scheduling", "grammar", "engine"},
}

SOURCES = {name: path for package in PACKAGES for name, path in modules(package)}


def top(name: str) -> str:
    return name.split(".")[0]


def module_of(name: str) -> str | None:
    """Our module that an imported name is, or lies in."""
    while name not in SOURCES and "." in name:
        name = name.rpartition(".")[0]
    return name if name in SOURCES else None


def reached(module: str) -> set[str]:
    """Everything that importing a module imports, through modules of ours."""
    found: set[str] = set()
    todo = [module]
    while todo:
        for name in imports(SOURCES[todo.pop()]) - found:
            found.add(name)
            if ours := module_of(name):
                todo.append(ours)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_nothing_above_it(package: str) -> None:
    found = {
        f"{module} imports {name}"
        for module, path in modules(package)
        for name in imports(path)
        if top(name) in FORBIDDEN[package]
    }
    assert found == set()


@pytest.mark.parametrize("part", PARTS)
def test_part_of_the_executor_imports_nothing_above_it(part: str) -> None:
    prefix = f"executor_service.{part}"
    found = {
        f"{module} imports {name}"
        for module, path in modules("executor_service")
        if f"{module}.".startswith(f"{prefix}.")
        for name in imports(path)
        if top(name) == "executor_service" and name.split(".")[1] not in PARTS[part] | {part}
    }
    assert found == set()


def test_scheduling_reaches_neither_tensors_nor_wire() -> None:
    """Plain values: an engine process or tensor-parallel ranks can come without a rewrite."""
    for module, _ in modules("executor_service"):
        if module.startswith("executor_service.scheduling."):
            assert {top(found) for found in reached(module)} & {"torch", "grpc", "kernels"} == set(), module


def test_tokenizer_service_reaches_no_tensors() -> None:
    for module, _ in modules("tokenizer_service"):
        assert {top(found) for found in reached(module)} & {"torch", "executor_service"} == set(), module
