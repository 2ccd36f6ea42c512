# SPDX-License-Identifier: Apache-2.0
"""Rotary positions: the frequencies a config asks for, and the cos and sin of a step's positions.

Computed once a step and used by every layer. Bits are those of transformers. Does not know attention.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from executor_service.models.rope_config import RopeConfig


class Rope:
    """Of one head size, on one device. num_positions: how many positions are tabulated; 0 computes those of each step,
    which takes no memory. Tables are computed on the CPU: not every device's cos is exact for large angles."""

    def __init__(
        self, config: RopeConfig, head_dim: int, dtype: torch.dtype, device: torch.device, num_positions: int = 0
    ) -> None:
        self.frequencies = inverse_frequencies(config, head_dim)  # [D / 2]
        self.scale = attention_factor(config)
        self.dtype = dtype
        tables = self.compute(torch.arange(num_positions))
        self.tables = [table.to(device) for table in tables] if num_positions else None  # [positions, D]

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of positions int32 [N], each [N, D]."""
        if self.tables is None:
            return self.compute(positions)
        cos, sin = self.tables
        return cos.index_select(0, positions), sin.index_select(0, positions)

    def compute(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * self.frequencies
        angles = torch.cat((angles, angles), -1)  # [N, D]
        return (angles.cos() * self.scale).to(self.dtype), (angles.sin() * self.scale).to(self.dtype)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """[D / 2] float32, fastest first."""
    plain = 1.0 / (config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    match config.kind:
        case "default":
            return plain
        case "linear":
            return plain / float(config.parameters["factor"])
        case "llama3":
            return llama3_frequencies(plain, config.parameters)
        case "yarn":
            return yarn_frequencies(config, head_dim)
        case "longrope":
            return longrope_frequencies(config, head_dim)
        case kind:
            raise AssertionError(kind)


def llama3_frequencies(plain: Tensor, parameters: dict[str, Any]) -> Tensor:
    """Long waves are stretched by factor, short ones kept, those between blended."""
    factor, context = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    wavelengths = 2 * math.pi / plain
    is_long, is_short = wavelengths > context / low, wavelengths < context / high
    share = (context / wavelengths - low) / (high - low)
    blended = (1 - share) * plain / factor + share * plain
    return torch.where(is_long, plain / factor, torch.where(is_short, plain, blended))


def yarn_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Dimensions that turn often over the original context are kept, rare ones stretched, with a ramp between."""
    parameters = config.parameters
    context = parameters["original_max_position_embeddings"]

    def dimension(num_turns: float) -> float:
        return head_dim * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low = dimension(parameters["beta_fast"])
    high = dimension(parameters["beta_slow"])
    if parameters["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    waves = config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return 1.0 / (float(parameters["factor"]) * waves) * (1 - kept) + 1.0 / waves * kept


def longrope_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Each dimension has a factor of its own."""
    factors = torch.tensor(config.parameters["factors"], dtype=torch.float32)
    return 1.0 / (factors * config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))


def attention_factor(config: RopeConfig) -> float:
    """What cos and sin are multiplied by."""
    parameters = config.parameters
    if "attention_factor" in parameters:
        return float(parameters["attention_factor"])
    if config.kind != "yarn":
        return 1.0

    def growth(mscale: float) -> float:
        return 1.0 if parameters["factor"] <= 1 else 0.1 * mscale * math.log(parameters["factor"]) + 1.0

    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return growth(mscale) / growth(mscale_all_dim) if mscale and mscale_all_dim else growth(1)
