# SPDX-License-Identifier: Apache-2.0
"""Random decoders on the device or on the CPU, and a runner whose device computes on whatever thread drives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import kernels
from executor_service.models.decoder import Decoder
from executor_service.models.model_config import ModelConfig, load_model_config
from executor_service.models.weights import load_weights
from tests.npu.simulation import Simulation

CPU = torch.device("cpu")


def shape_of(config: ModelConfig, block_tokens: int, dtype: torch.dtype) -> kernels.Shape:
    heads = config.num_heads, config.num_kv_heads, config.head_dim
    return kernels.Shape(*heads, block_tokens, dtype, is_quantized=config.quantization != "none")


@torch.inference_mode()
def load_decoder(directory: Path, block_tokens: int, dtype: torch.dtype, device: torch.device) -> Decoder:
    config = load_model_config(directory)
    ops = kernels.load("auto", device, shape_of(config, block_tokens, dtype))
    num_positions = 0 if device == CPU else config.max_position_embeddings
    return Decoder(config, load_weights(directory, config, dtype, device), ops, num_positions)


def simulate(runner: Any, simulation: Simulation) -> None:
    """The engine calls the runner from a thread of its own."""

    def simulated(method: Any) -> Any:
        def call(*args: Any) -> Any:
            with simulation:
                return method(*args)

        return call

    for name in ("warm_up", "forward", "sample", "sampled"):
        setattr(runner, name, simulated(getattr(runner, name)))
