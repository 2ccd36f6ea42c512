# SPDX-License-Identifier: Apache-2.0
"""Where operations want their tensors, and in which layout: what does not show in a copy of them on the CPU.

Facts: Ascend op-plugin, custom_APIs; vllm-ascend for 310P. Does not know values.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_npu
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from tests.fixtures.npu_checks import Soc, require

FRACTAL_NZ = 29
# Their other tensors lie on the device.
ON_HOST = {"atb::_npu_paged_attention_splitfuse_v2": "seq_len"}
CACHES = ("key_cache", "value_cache")
PRODUCTS = ("aten::mm", "aten::addmm")


def check(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises ValueError."""
    name = func._schema.name
    arguments = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    if func.namespace in ("npu", "atb"):
        for argument, tensor in tensors.items():
            expected = "cpu" if ON_HOST.get(name) == argument else "npu"
            require(tensor.device.type == expected, f"{name}: {argument} on {tensor.device}, not on {expected}")
    if Soc.is_310p():
        check_layouts(name, tensors)


def check_layouts(name: str, tensors: dict[str, Tensor]) -> None:
    """Caches, and weights: what has a row and a column of a product in float16."""
    if name.startswith("atb::"):
        wanted = [tensors[argument] for argument in CACHES if argument in tensors]
    else:
        wanted = [tensors["mat2"]] if name in PRODUCTS else []
    for tensor in wanted:
        if tensor.device.type == "npu" and tensor.dtype is torch.float16 and min(tensor.shape) > 1:
            with _disable_current_modes():
                layout = torch_npu.get_npu_format(tensor)
            require(layout == FRACTAL_NZ, f"{name}: {tuple(tensor.shape)} in format {layout}, not FRACTAL_NZ")
