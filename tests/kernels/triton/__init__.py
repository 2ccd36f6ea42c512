# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels on a GPU, or, where there is none, on the CPU in Triton's interpreter.

The interpreter is chosen by the environment before triton is imported for the first time.
"""

import os
from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
interpreter = pytest.importorskip(
    "triton.runtime.interpreter", reason="Triton is not installed: NONE OF ITS KERNELS IS TESTED"
)


def patch_once() -> None:
    """The interpreter adapts Triton's language for each call of a device function, which takes most of the call's time;
    once for each module is enough."""
    patched = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self.fn.__globals__) not in patched:
            patched.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


patch_once()
