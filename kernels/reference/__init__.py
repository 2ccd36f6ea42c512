# SPDX-License-Identifier: Apache-2.0
"""The definition of each operation in plain torch, written to be read.

On CPU in float32 a row's result has the same bits alone, in any batch, in any chunking and with any number of threads.
"""

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels.int8_weight import Int8Weight
from kernels.reference.attention import attention, new_cache, rope_and_store
from kernels.reference.attention_plan import attention_plan
from kernels.reference.linear import linear
from kernels.reference.rowwise import (
    add_rms_norm,
    embed,
    embed_rms_norm,
    gelu_tanh_mul,
    rms_norm,
    silu_mul,
    soft_cap,
)
from kernels.reference.sampling import choose
from kernels.reference.scoring import score

__all__ = [
    "add_rms_norm",
    "attention",
    "attention_plan",
    "choose",
    "embed",
    "embed_rms_norm",
    "gelu_tanh_mul",
    "graph_update",
    "linear",
    "load",
    "new_cache",
    "pack_weight",
    "rms_norm",
    "rope_and_store",
    "score",
    "silu_mul",
    "soft_cap",
]

# Attention is laid out by the host, anew for each step.
can_graph = False


def load(device: torch.device, shape: Any) -> ModuleType:
    """It takes every shape."""
    return sys.modules[__name__]


def pack_weight(weight: Tensor | Int8Weight) -> Tensor | Int8Weight:
    return weight


def graph_update(context_lens: tuple[int, ...]) -> list[dict[str, Any]]:
    raise AssertionError("no graph is made of these operations")
