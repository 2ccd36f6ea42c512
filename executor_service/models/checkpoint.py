# SPDX-License-Identifier: Apache-2.0
"""The safetensors files of a model directory: which tensors there are, of what type and shape, and where they lie.

Reads headers only. Does not know what a tensor is for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protos.errors import ConfigError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf")


@dataclass(frozen=True)
class StoredTensor:
    path: Path
    # As safetensors spells it: F32, BF16, F16 ...
    dtype: str
    shape: tuple[int, ...]
    # Bytes [start, end) of the file.
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


def read_checkpoint(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor by name. Raises ConfigError where a file is missing or a name is in two files."""
    tensors: dict[str, StoredTensor] = {}
    for path in checkpoint_files(directory):
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise ConfigError(f"{path.name}: tensor {name} is in {tensors[name].path.name} too")
            tensors[name] = tensor
    return tensors


def checkpoint_files(directory: Path) -> Sequence[Path]:
    """One file, or the shards that the index names."""
    if (directory / SINGLE_FILE).exists():
        return [directory / SINGLE_FILE]
    index = directory / INDEX_FILE
    if not index.exists():
        others = sorted(path.name for pattern in OTHER_FORMATS for path in directory.glob(pattern))
        found = f"; {others[0]} is no safetensors file" if others else ""
        raise ConfigError(f"{directory}: has neither {SINGLE_FILE} nor {INDEX_FILE}{found}")
    names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise ConfigError(f"{INDEX_FILE}: {missing[0]} is missing ({len(missing)} of {len(names)} files)")
    return [directory / name for name in names]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """A safetensors file begins with the length of its header, little-endian, and the header in JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ConfigError(f"{path.name}: header of {length} bytes in a file of {path.stat().st_size}")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ConfigError(f"{path.name}: its header of {length} bytes is no JSON: {error}") from error
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = StoredTensor(path, entry["dtype"], tuple(entry["shape"]), start, end)
    size = max((tensor.end for tensor in tensors.values()), default=0)
    if size > path.stat().st_size:
        raise ConfigError(f"{path.name}: ends at byte {path.stat().st_size}, its tensors at {size}")
    return tensors
