# SPDX-License-Identifier: Apache-2.0
"""The safetensors files of a model directory: which tensors there are, of what type and shape, and where they lie.

A header is checked before anything is made of it, so that what is wrong is said by file and tensor. Does not know what
a tensor is for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from executor_service.models.config_value import ConfigValue
from protos.errors import ConfigError
from protos.vocabulary import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf")
# As safetensors has it.
MAX_HEADER_BYTES = 100_000_000
MAX_SIZE = 2**63 - 1
NAMES_BY_BITS = {
    4: ("F4",),
    6: ("F6_E2M3", "F6_E3M2"),
    8: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0"),
    16: ("I16", "U16", "F16", "BF16"),
    32: ("I32", "U32", "F32"),
    64: ("I64", "U64", "F64", "C64"),
}
DTYPE_BITS = {name: bits for bits, names in NAMES_BY_BITS.items() for name in names}


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
    """Every tensor by name. Raises ConfigError where a file is missing or broken, or a name is in two files."""
    tensors: dict[str, StoredTensor] = {}
    for path in checkpoint_files(directory):
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise ConfigError(f"{path.name}: tensor {name} is in {tensors[name].path.name} too")
            tensors[name] = tensor
    return tensors


def checkpoint_files(directory: Path) -> Sequence[Path]:
    """One file, or the shards that the index names."""
    if (directory / SINGLE_FILE).is_file():
        return [directory / SINGLE_FILE]
    index = directory / INDEX_FILE
    if not index.is_file():
        others = sorted(path.name for pattern in OTHER_FORMATS for path in directory.glob(pattern))
        found = f"; {others[0]} is no safetensors file" if others else ""
        raise ConfigError(f"{directory}: has neither {SINGLE_FILE} nor {INDEX_FILE}{found}")
    weight_map = ConfigValue(INDEX_FILE, read_json(index))["weight_map"]
    if not weight_map.entries():
        raise weight_map.refusal("must name a file for each tensor")
    files = [weight_map[name] for name in weight_map.given]
    for file in files:
        if not isinstance(file.given, str):
            raise file.refusal("must be the name of a file")
    names = sorted({file.given for file in files})
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise ConfigError(f"{INDEX_FILE}: {missing[0]} is missing ({len(missing)} of {len(names)} files)")
    return [directory / name for name in names]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """A safetensors file begins with the length of its header, little-endian, and the header in JSON; tensors lie one
    behind the other to its end."""
    length, header = header_json(path)
    header.pop("__metadata__", None)
    tensors = {name: stored_tensor(path, 8 + length, ConfigValue(path.name, header[name], name)) for name in header}
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start != end:
            raise ConfigError(f"{path.name}: {name} begins at byte {tensor.start}, what lies before it ends at {end}")
        end = tensor.end
    if end != path.stat().st_size:
        raise ConfigError(f"{path.name}: ends at byte {path.stat().st_size}, its tensors at {end}")
    return tensors


def header_json(path: Path) -> tuple[int, dict[str, Any]]:
    """Its length in the file, and what it says."""
    try:
        with path.open("rb") as file:
            length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
            if length > min(size - 8, MAX_HEADER_BYTES):
                limit = f"at most {MAX_HEADER_BYTES} are read"
                raise ConfigError(f"{path.name}: header of {length} bytes in a file of {size}, {limit}")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ConfigError(f"{path.name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name}: its header of {length} bytes is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{path.name}: its header is a {type(header).__name__}, not a JSON object")
    return length, header


def stored_tensor(path: Path, data_start: int, entry: ConfigValue) -> StoredTensor:
    """What an entry of a header says, offsets counted from data_start."""
    dtype = entry["dtype"].one_of(DTYPE_BITS)
    shape = tuple(size.whole(0, MAX_SIZE) for size in entry["shape"].elements())
    start, end = (offset.whole(0, MAX_SIZE) for offset in entry["data_offsets"].elements(2))
    num_bits = math.prod(shape) * DTYPE_BITS[dtype]
    if 8 * (end - start) != num_bits:
        raise ConfigError(f"{entry} has {end - start} bytes, {dtype} {list(shape)} takes {num_bits / 8:g}")
    return StoredTensor(path, dtype, shape, data_start + start, data_start + end)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file as safetensors reads it."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path.name}: {error}") from error
