# SPDX-License-Identifier: Apache-2.0
"""The schemas of a torch_npu wheel, read out of its libraries without loading them.

Usage: python tests/npu/read_schemas.py WHEEL > tests/fixtures/npu_schemas_2_10.json, for the operations that
tests/fixtures/npu_schemas.json names.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

LIBRARIES = {"npu": "torch_npu/lib/libtorch_npu.so", "atb": "torch_npu/lib/libop_plugin_atb.so"}
NAMES = Path(__file__).parents[1] / "fixtures" / "npu_schemas.json"


def schema(strings: list[bytes], operation: str) -> str:
    """A schema is a string of the library, as it was written where the operation is declared."""
    start = f"{operation}(Tensor ".encode()
    # The other string that starts so has C++ types, for the profiler.
    found = {
        text.decode() for text in strings if text.startswith(start) and b") -> " in text and b"ArrayRef" not in text
    }
    if len(found) != 1:
        raise SystemExit(f"{operation}: {len(found)} schemas, not one: {sorted(found)}")
    return found.pop()


def main(wheel: Path) -> None:
    names = json.loads(NAMES.read_text())["schemas"]
    with zipfile.ZipFile(wheel) as archive:
        strings = {space: archive.read(library).split(b"\0") for space, library in LIBRARIES.items()}
    schemas = {}
    for name in names:
        space, operation = name.split("::")
        schemas[name] = f"{space}::{schema(strings[space], operation)}"
    how = f"strings of {' and '.join(LIBRARIES.values())}; each was found there"
    print(json.dumps({"torch_npu": wheel.name.split("-")[1], "how": how, "schemas": schemas}, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
