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
# Plain values: an engine process or tensor-parallel ranks can come without a rewrite.
PLAIN_MODULES = (
    "blocks",
    "group_blocks",
    "outcomes",
    "prefix_index",
    "rows",
    "scheduler",
    "sequence",
    "sequence_cache",
    "step",
    "step_plan",
    "step_rows",
    "turn_order",
)

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


@pytest.mark.parametrize("name", PLAIN_MODULES)
def test_plain_module_reaches_neither_tensors_nor_wire(name: str) -> None:
    assert {top(found) for found in reached(f"executor_service.{name}")} & {"torch", "grpc", "kernels"} == set()


def test_tokenizer_service_reaches_no_tensors() -> None:
    for module, _ in modules("tokenizer_service"):
        assert {top(found) for found in reached(module)} & {"torch", "executor_service"} == set(), module
