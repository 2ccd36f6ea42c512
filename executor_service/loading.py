# SPDX-License-Identifier: Apache-2.0
"""From a model directory to a decoder on its device, and what the executor tells about it.

Decides what depends on the machine: threads, the cache's size, and so the longest context. Does not know the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import torch

import kernels
from executor_service.config import ExecutorConfig
from executor_service.decoder import Decoder
from executor_service.fingerprint import config_sha256, weights_sha256
from executor_service.memory import available_bytes, usable_cpus
from executor_service.model_config import GenerationDefaults, ModelConfig, load_model_config
from executor_service.weights import load_weights
from protos.errors import ConfigError, InvalidRequest
from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.sampling import check_sampling
from protos.vocabulary import Vocabulary

log = logging.getLogger(__name__)

_PROGRESS_EVERY_S = 1.0
# One of the prompt, one of the output.
MIN_CONTEXT_TOKENS = 2


@dataclass(frozen=True)
class LoadedModel:
    decoder: Decoder
    device: torch.device
    info: executor_pb2.ExecutorModel
    fingerprint: executor_pb2.ModelFingerprint


def load_model(config: ExecutorConfig) -> LoadedModel:
    """Raises ConfigError naming what in the directory or the settings stops the start."""
    torch.set_num_threads(config.threads or usable_cpus())
    device = torch.device(config.device)
    model_config = load_model_config(config.model)
    dtype = _dtype(config, model_config)
    weights = load_weights(config.model, model_config, dtype, device, _progress())
    decoder = Decoder(model_config, weights, kernels.load(config.kernels))
    info = _info(config, model_config, _num_blocks(config, decoder))
    log.info(
        "%s: %d threads, %d blocks, context %d",
        info.name,
        torch.get_num_threads(),
        info.num_blocks,
        info.max_context_tokens,
    )
    fingerprint = executor_pb2.ModelFingerprint(
        config_sha256=config_sha256(model_config),
        weights_sha256=weights_sha256(config.model),
        vocabulary_sha256=Vocabulary.load(config.model).sha256,
        dtype=str(dtype).removeprefix("torch."),
        quantization="none",
    )
    return LoadedModel(decoder, device, info, fingerprint)


def _dtype(config: ExecutorConfig, model_config: ModelConfig) -> torch.dtype:
    # CPUs without matrix units for 16-bit types multiply float32 several times faster.
    name = config.dtype if config.dtype != "auto" else "float32" if config.device == "cpu" else model_config.dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _num_blocks(config: ExecutorConfig, decoder: Decoder) -> int:
    """What the settings say, or what the memory allows, but no more than the sequences can use."""
    block_bytes = decoder.kv_bytes_per_token * config.block_tokens
    free_bytes = available_bytes()
    if config.num_blocks * block_bytes > free_bytes:
        raise ConfigError(
            f"EXECUTOR_NUM_BLOCKS={config.num_blocks}: they take {config.num_blocks * block_bytes} bytes,"
            f" {free_bytes} are free"
        )
    if config.num_blocks:
        return config.num_blocks
    affordable = int(free_bytes * config.kv_memory_fraction) // block_bytes
    useful = config.max_sequences * -(-decoder.config.max_position_embeddings // config.block_tokens)
    if affordable < 1:
        raise ConfigError(f"EXECUTOR_KV_MEMORY_FRACTION={config.kv_memory_fraction}: a block takes {block_bytes} bytes")
    return min(affordable, useful)


def _info(config: ExecutorConfig, model: ModelConfig, num_blocks: int) -> executor_pb2.ExecutorModel:
    """Any row that is let in fits the pool alone: the context is never longer than the cache."""
    limits = [model.max_position_embeddings, num_blocks * config.block_tokens]
    if config.max_context_tokens > model.max_position_embeddings:
        raise ConfigError(
            f"EXECUTOR_MAX_CONTEXT_TOKENS={config.max_context_tokens}: the model takes {model.max_position_embeddings}"
        )
    if config.max_context_tokens:
        limits.append(config.max_context_tokens)
    if min(limits) < MIN_CONTEXT_TOKENS:
        raise ConfigError(
            f"the context is {min(limits)} tokens (model {limits[0]}, cache {limits[1]}), must be {MIN_CONTEXT_TOKENS}"
        )
    return executor_pb2.ExecutorModel(
        name=config.model_name,
        architecture=model.architecture,
        vocabulary_size=model.vocabulary_size,
        max_context_tokens=min(limits),
        eos_token_ids=model.eos_token_ids,
        defaults=_defaults(model.generation),
        block_tokens=config.block_tokens,
        num_blocks=num_blocks,
    )


def _defaults(generation: GenerationDefaults) -> sampling_pb2.SamplingParameters:
    if generation.do_sample is False:
        return sampling_pb2.SamplingParameters(temperature=0.0)
    try:
        defaults = sampling_pb2.SamplingParameters(
            temperature=generation.temperature, top_k=generation.top_k, top_p=generation.top_p
        )
        check_sampling(defaults)
    except (InvalidRequest, TypeError) as error:
        raise ConfigError(f"generation_config.json: {error}") from error
    return defaults


def _progress() -> Callable[[int, int], None]:
    """Logs how much is read, once a second."""
    last_s = monotonic()

    def tell(num_read: int, num_bytes: int) -> None:
        nonlocal last_s
        if monotonic() - last_s >= _PROGRESS_EVERY_S or num_read == num_bytes:
            last_s = monotonic()
            log.info("weights: %d of %d MB", num_read // 10**6, num_bytes // 10**6)

    return tell
