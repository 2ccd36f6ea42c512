# SPDX-License-Identifier: Apache-2.0
"""A decoder's weights on the device, filled from a checkpoint tensor by tensor.

Each tensor of the files has one place here, or is on the short list of those that are computed anyway; anything else
stops the start by its name. Does not know what the layers do with them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from executor_service.models.checkpoint import StoredTensor, opened, read_checkpoint
from executor_service.models.model_config import ModelConfig
from executor_service.models.quantization import W8A8
from executor_service.models.weight_names import (
    COMPUTED,
    EMBEDDING,
    HEAD,
    NORM,
    NORM_SUFFIX,
    PRODUCTS,
    Parts,
    layer_parts,
    scale_parts,
)
from kernels.int8_weight import Int8Weight
from protos.errors import ConfigError

logger = logging.getLogger(__name__)

FLOAT_DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """What a config does not have is None. Norms are what is multiplied by, in the type it is multiplied in."""

    input_norm: Tensor  # [C]
    qkv: Tensor | Int8Weight  # [(H + 2 K) D, C]
    output: Tensor | Int8Weight  # [C, H D]
    mlp_norm: Tensor  # [C]
    gate_up: Tensor | Int8Weight  # [2 F, C]
    down: Tensor | Int8Weight  # [C, F]
    q_norm: Tensor | None = None  # [D]
    k_norm: Tensor | None = None  # [D]
    # Of what attention and MLP put out.
    attention_output_norm: Tensor | None = None  # [C]
    mlp_output_norm: Tensor | None = None  # [C]
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """Of a tied model, head and embedding are one tensor."""

    embedding: Tensor  # [V, C]
    layers: list[LayerWeights]
    norm: Tensor  # [C]
    head: Tensor  # [V, C]


def load_weights(
    directory: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> DecoderWeights:
    """progress is told the bytes read and the bytes to read. Raises ConfigError naming a tensor that does not fit."""
    wanted = fitting(read_checkpoint(directory), config)
    has_head = HEAD in wanted
    places = Places(dtype, device, norm_dtype=torch.float32 if config.norms_add_one else dtype)
    weights = places.decoder(config, has_head)
    for num_read in fill(places, wanted):
        if progress:
            progress(num_read, sum(tensor.num_bytes for tensor in wanted.values()))
    if config.norms_add_one:
        for name in places.by_name:
            if name.endswith(NORM_SUFFIX):
                places.by_name[name].add_(1)
    return tie(weights) if config.tie_word_embeddings and has_head else weights


def fitting(stored: dict[str, StoredTensor], config: ModelConfig) -> dict[str, StoredTensor]:
    """The tensors that a decoder is filled from. Raises ConfigError naming one that it does not take, or lacks."""
    wanted = {name: tensor for name, tensor in stored.items() if not name.endswith(COMPUTED)}
    for name in stored.keys() - wanted.keys():
        logger.info("%s is not read: it is computed from the config", name)
    shapes_only = Places(torch.float32, torch.device("meta"), norm_dtype=torch.float32)
    shapes_only.decoder(config, has_head=HEAD in stored or not config.tie_word_embeddings)
    check_fit(wanted, shapes_only.by_name)
    return wanted


def tie(weights: DecoderWeights) -> DecoderWeights:
    """Where the files of a tied model hold a head too: one that differs is used as it is, as transformers does."""
    if torch.equal(weights.head, weights.embedding):
        return dataclasses.replace(weights, head=weights.embedding)
    logger.warning("tie_word_embeddings is true but %s differs from %s: it is used", HEAD, EMBEDDING)
    return weights


class Places:
    """Allocates weights, and knows which part of them each tensor of the checkpoint fills."""

    def __init__(self, dtype: torch.dtype, device: torch.device, norm_dtype: torch.dtype) -> None:
        self.dtype, self.device, self.norm_dtype = dtype, device, norm_dtype
        self.by_name: dict[str, Tensor] = {}
        self.scale_names: set[str] = set()

    def allocate(self, parts: Parts) -> Tensor:
        is_norm = all(name.endswith(NORM_SUFFIX) for name in parts)
        return self.stack(parts, self.norm_dtype if is_norm else self.dtype)

    def allocate_int8(self, parts: Parts) -> Int8Weight:
        scales = scale_parts(parts)
        self.scale_names |= scales.keys()
        scale = self.stack(scales, torch.float32)  # [O, 1]
        return Int8Weight(self.stack(parts, torch.int8), scale[:, 0])

    def stack(self, parts: Parts, dtype: torch.dtype) -> Tensor:
        sizes = [shape[0] for shape in parts.values()]
        width = next(iter(parts.values()))[1:]
        weight = torch.empty((sum(sizes), *width), dtype=dtype, device=self.device)
        self.by_name |= zip(parts, torch.split(weight, sizes), strict=True)
        return weight

    def layer(self, config: ModelConfig, layer: int) -> LayerWeights:
        fields: dict[str, Any] = {}
        for field, parts in layer_parts(config, layer).items():
            is_int8 = config.quantization == W8A8 and field in PRODUCTS
            fields[field] = self.allocate_int8(parts) if is_int8 else self.allocate(parts)
        return LayerWeights(**fields)

    def decoder(self, config: ModelConfig, has_head: bool) -> DecoderWeights:
        table = (config.vocabulary_size, config.hidden_size)
        embedding = self.allocate({EMBEDDING: table})
        return DecoderWeights(
            embedding=embedding,
            layers=[self.layer(config, layer) for layer in range(len(config.layers))],
            norm=self.allocate({NORM: table[1:]}),
            head=self.allocate({HEAD: table}) if has_head else embedding,
        )


def check_fit(stored: dict[str, StoredTensor], places: dict[str, Tensor]) -> None:
    """Every stored tensor has a place, every place a tensor; shapes are equal, integers go to integers."""
    if unknown := sorted(stored.keys() - places.keys()):
        tensor = stored[unknown[0]]
        raise ConfigError(f"{tensor.path.name}: tensor {unknown[0]} is not used by this config ({len(unknown)} such)")
    if missing := sorted(places.keys() - stored.keys()):
        raise ConfigError(f"checkpoint: tensor {missing[0]} is missing ({len(missing)} of {len(places)})")
    for name, tensor in stored.items():
        expected = tuple(places[name].shape)
        if tensor.shape != expected:
            raise ConfigError(
                f"{tensor.path.name}: {name} has shape {list(tensor.shape)}, the config asks {list(expected)}"
            )
        dtypes = ("I8",) if places[name].dtype is torch.int8 else FLOAT_DTYPES
        if tensor.dtype not in dtypes:
            raise ConfigError(f"{tensor.path.name}: {name} is stored as {tensor.dtype} ({', '.join(dtypes)} are read)")


def fill(places: Places, stored: dict[str, StoredTensor]) -> Iterator[int]:
    """The bytes read so far, after each tensor."""
    num_read = 0
    for path in sorted({tensor.path for tensor in stored.values()}):
        with opened(path) as file:
            for name, tensor in stored.items():
                if tensor.path == path:
                    values = file.get_tensor(name)
                    if name in places.scale_names:
                        check_rows(path, name, (values > 0) & values.isfinite(), "above 0 and finite")
                    places.by_name[name].copy_(values)
                    num_read += tensor.num_bytes
                    yield num_read


def check_rows(path: Path, name: str, is_right: Tensor, wanted: str) -> None:
    """is_right [rows, ...]"""
    wrong = (~is_right).nonzero()
    if len(wrong):
        raise ConfigError(f"{path.name}: {name} is not {wanted} in row {int(wrong[0, 0])}")
