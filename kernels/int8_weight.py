# SPDX-License-Identifier: Apache-2.0
"""A weight of small integers with a scale for each output: the W of W8A8."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """Stands for values * scale[:, None]; values int8 [O, I] in [-128, 127], scale float32 [O], above 0."""

    values: Tensor
    scale: Tensor
