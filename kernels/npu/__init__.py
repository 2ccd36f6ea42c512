# SPDX-License-Identifier: Apache-2.0
"""The operations by those of torch_npu: which of them is settled once, by the chip and the model's shape.

Knows chips by the names that the driver gives them. Does not know what an operation computes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
import torch_npu

from kernels.npu.atlas_310p import Atlas310P
from kernels.npu.atlas_a2 import AtlasA2
from kernels.npu.common import Common
from protos.errors import ConfigError

if TYPE_CHECKING:
    from kernels import Shape

# Ascend910B without a digit is an older chip, with other operations.
TABLES: dict[str, type[AtlasA2] | type[Atlas310P]] = {
    r"Ascend910B\d": AtlasA2,
    r"Ascend910_93": AtlasA2,
    r"Ascend310P": Atlas310P,
}


def load(device: torch.device, shape: Shape) -> Common:
    """Raises ConfigError where the chip, or its operations for the shape, are not known."""
    soc: str = torch_npu.npu.get_device_name(device)
    for pattern, table in TABLES.items():
        if re.match(pattern, soc):
            return table(device, shape)
    raise ConfigError(
        f"{soc} is not among the chips that kernels npu knows (Ascend910B1 to 4, Ascend910_93, Ascend310P)"
    )
