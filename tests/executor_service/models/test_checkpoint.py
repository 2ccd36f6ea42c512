# SPDX-License-Identifier: Apache-2.0
"""Files that are no checkpoint: each is refused by its name and the place in it, never by a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open

from executor_service.conversion.quantize import quantize
from executor_service.models.checkpoint import DTYPE_BITS, INDEX_FILE, SINGLE_FILE, read_checkpoint
from executor_service.models.model_config import load_model_config
from executor_service.models.weights import load_weights
from protos.errors import ConfigError
from tests.fixtures.decoding import CPU
from tests.fixtures.random_model import write_random_model

NORM = "model.norm.weight"


def load(directory: Path) -> None:
    load_weights(directory, load_model_config(directory), torch.float32, CPU)


def write_quantized(directory: Path) -> None:
    quantize(directory, directory.parent / "target")


both_readers = pytest.mark.parametrize("read", [load, write_quantized])


def write_file(path: Path, header: Any, num_bytes: int = 0) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(num_bytes))


def entry(dtype: Any, shape: Any, *offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


@both_readers
@pytest.mark.parametrize(
    ("header", "num_bytes", "message"),
    [
        ([], 0, "its header is a list, not a JSON object"),
        (b"{", 0, "its header of 1 bytes is no JSON"),
        (b"\xff\xff", 0, "its header of 2 bytes is no JSON"),
        (b"[" * 100_000, 0, "its header of 100000 bytes is no JSON"),
        ({"a": 3}, 0, "a is 3, must be an object"),
        ({"a": None}, 0, "a.dtype is missing"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "a.data_offsets is missing"),
        ({"a": entry("F32", [1], 0)}, 4, "a.data_offsets has 1 entries, must have 2"),
        ({"a": entry("F32", [1], -4, 0)}, 4, "a.data_offsets[0] is -4, must be a whole number"),
        ({"a": entry("F32", [1], 0, "4")}, 4, "a.data_offsets[1] is '4', must be a whole number"),
        ({"a": entry("F32", [1], 4, 0)}, 4, "a has -4 bytes, F32 [1] takes 4"),
        ({"a": entry("F32", 1, 0, 4)}, 4, "a.shape is 1, must be a list"),
        ({"a": entry("F32", [-1], 0, 4)}, 4, "a.shape[0] is -1, must be a whole number"),
        ({"a": entry("F32", [3, 2], 0, 4)}, 4, "a has 4 bytes, F32 [3, 2] takes 24"),
        ({"a": entry("BF16", [1], 0, 4)}, 4, "a has 4 bytes, BF16 [1] takes 2"),
        ({"a": entry("F4", [3], 0, 2)}, 2, "a has 2 bytes, F4 [3] takes 1.5"),
        ({"a": entry("F31", [1], 0, 4)}, 4, "a.dtype is 'F31', must be one of F4,"),
        ({"a": entry(["F32"], [1], 0, 4)}, 4, "a.dtype is ['F32'], must be one of F4,"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, 8, "b begins at byte "),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, 12, "b begins at byte "),
        ({"a": entry("F32", [1], 0, 4)}, 3, "ends at byte "),
        ({"a": entry("F32", [1], 0, 4)}, 5, "ends at byte "),
    ],
)
def test_a_header_that_is_none_is_refused_by_its_place(
    tmp_path: Path, read: Callable[[Path], None], header: Any, num_bytes: int, message: str
) -> None:
    write_file(write_random_model(tmp_path / "model") / SINGLE_FILE, header, num_bytes)
    with pytest.raises(ConfigError, match=re.escape(f"{SINGLE_FILE}: {message}")):
        read(tmp_path / "model")


@pytest.mark.parametrize("content", [b"", b"\0" * 4, b"\xff" * 8, (100).to_bytes(8, "little") + b"{}"])
def test_a_header_longer_than_its_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{SINGLE_FILE}: header of \d+ bytes in a file of {len(content)}, at"):
        read_checkpoint(tmp_path)


def test_a_header_longer_than_safetensors_reads_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / SINGLE_FILE).open("wb") as file:
        file.write((10**8 + 1).to_bytes(8, "little"))
        file.truncate(2 * 10**8)  # takes no room on the disk
    with pytest.raises(ConfigError, match="header of 100000001 bytes in a file of 200000000, at most 100000000 are"):
        read_checkpoint(tmp_path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_random_model(tmp_path)

    def refuse(*arguments: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=f"^{SINGLE_FILE}: Permission denied$"):
        read_checkpoint(tmp_path)


@both_readers
def test_what_only_safetensors_finds_is_said_with_the_file(tmp_path: Path, read: Callable[[Path], None]) -> None:
    path = write_random_model(tmp_path / "model") / SINGLE_FILE
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length]) | {"__metadata__": 3}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(ConfigError, match=f"^{SINGLE_FILE}: .*invalid type: integer `3`"):
        read(tmp_path / "model")


def test_the_types_are_those_of_safetensors_and_of_its_sizes(tmp_path: Path) -> None:
    """Its own message lists them; a file of eight values of each is one that it reads."""
    path = tmp_path / SINGLE_FILE
    write_file(path, {"a": entry("F31", [1], 0, 4)}, 4)
    with pytest.raises(SafetensorError) as refused, safe_open(path, framework="pt"):
        pass
    assert set(re.findall(r"`(\w+)`", str(refused.value))) - {"F31"} == DTYPE_BITS.keys()
    for dtype, bits in DTYPE_BITS.items():
        write_file(path, {"a": entry(dtype, [8], 0, bits)}, bits)
        assert read_checkpoint(tmp_path)["a"].num_bytes == bits
        with safe_open(path, framework="pt") as file:
            assert list(file.keys()) == ["a"]


def test_tensors_without_dimensions_and_without_values_are_listed(tmp_path: Path) -> None:
    write_file(tmp_path / SINGLE_FILE, {"a": entry("F32", [0, 3], 0, 0), "b": entry("F32", [], 0, 4)}, 4)
    assert {name: tensor.shape for name, tensor in read_checkpoint(tmp_path).items()} == {"a": (0, 3), "b": ()}


@both_readers
@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", f"{INDEX_FILE}: not JSON"),
        ("[]", f"{INDEX_FILE}: holds a list, not a JSON object"),
        ("{}", f"{INDEX_FILE}: weight_map is missing"),
        ('{"weight_map": null}', f"{INDEX_FILE}: weight_map is missing"),
        ('{"weight_map": {}}', f"{INDEX_FILE}: weight_map is {{}}, must name a file"),
        ('{"weight_map": ["a"]}', f"{INDEX_FILE}: weight_map is ['a'], must be an object"),
        ('{"weight_map": {"a": 3}}', f"{INDEX_FILE}: weight_map.a is 3, must be the name of a file"),
        ('{"weight_map": {"a": ["b"]}}', f"{INDEX_FILE}: weight_map.a is ['b'], must be the name of a file"),
        ('{"weight_map": {"a": null, "b": "c"}}', f"{INDEX_FILE}: weight_map.a is missing"),
        ('{"weight_map": {"a": ""}}', f"{INDEX_FILE}:  is missing (1 of 1 files)"),
        ('{"weight_map": {"a": "b\\u0000"}}', f"{INDEX_FILE}: b\0 is missing (1 of 1 files)"),
    ],
)
def test_an_index_that_is_none_is_refused_by_its_place(
    tmp_path: Path, read: Callable[[Path], None], index: str, message: str
) -> None:
    write_random_model(tmp_path / "model", shards=2)
    (tmp_path / "model" / INDEX_FILE).write_text(index)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(tmp_path / "model")
