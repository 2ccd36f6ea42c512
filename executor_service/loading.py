# SPDX-License-Identifier: Apache-2.0
"""From a model directory to a decoder on its device, and what the executor tells about it.

Decides what depends on the machine: threads, the cache's size, and so the longest context. Does not know the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import torch

import kernels
from executor_service.cache_size import CacheSize
from executor_service.config import ExecutorConfig
from executor_service.device.accelerator import free_bytes, is_out_of_memory, open_device
from executor_service.device.runner import Capacity, DeviceRunner
from executor_service.memory import available_bytes, usable_cpus
from executor_service.models.decoder import Decoder
from executor_service.models.fingerprint import config_sha256, weights_sha256
from executor_service.models.generation_config import GenerationDefaults
from executor_service.models.model_config import ModelConfig, load_model_config
from executor_service.models.weights import load_weights
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
    """runner: with a cache as large as it will be."""

    runner: DeviceRunner
    vocabulary: Vocabulary
    info: executor_pb2.ExecutorModel
    fingerprint: executor_pb2.ModelFingerprint


def load_model(config: ExecutorConfig) -> LoadedModel:
    """Raises ConfigError naming what in the directory, the settings or the machine stops the start."""
    torch.set_num_threads(config.threads or usable_cpus())
    device = open_device(config.device)
    model_config = load_model_config(config.model, config.max_context_tokens)
    context_tokens = _context_tokens(config, model_config)
    dtype = _dtype(config, model_config)
    ops = kernels.load(config.kernels, device, _shape(config, model_config, dtype))
    # Whole blocks of them: rows of padding have any place of a block.
    num_positions = 0 if device.type == "cpu" else -(-context_tokens // config.block_tokens) * config.block_tokens
    capacity = Capacity(config.block_tokens, config.max_sequences, context_tokens, config.depth)
    with _naming_what_does_not_fit("weights and sampling state", "EXECUTOR_MODEL, EXECUTOR_MAX_SEQUENCES"):
        # Not kept under a name: what is packed takes the place of what was loaded.
        decoder = Decoder(
            model_config, load_weights(config.model, model_config, dtype, device, _progress()), ops, num_positions
        )
        runner = DeviceRunner(decoder, ops, capacity, device, has_graphs=config.graphs)
    size = CacheSize(config, decoder.cache_groups, decoder.kv_bytes_per_token, context_tokens)
    allocate_cache(runner, size)
    info = _info(config, model_config, runner.num_blocks, size.max_context_tokens(runner.num_blocks))
    log.info("%s on %s: blocks %s, context %d", info.name, device, runner.num_blocks, info.max_context_tokens)
    vocabulary = _vocabulary(config, model_config)
    fingerprint = executor_pb2.ModelFingerprint(
        config_sha256=config_sha256(model_config),
        weights_sha256=weights_sha256(config.model),
        vocabulary_sha256=vocabulary.sha256,
        dtype=str(dtype).removeprefix("torch."),
        quantization=model_config.quantization,
    )
    return LoadedModel(runner, vocabulary, info, fingerprint)


def allocate_cache(runner: DeviceRunner, size: CacheSize) -> None:
    """Of what is free beside all that a step needs. Where even that is too much it is halved until it fits."""
    config = size.config
    if runner.device.type == "cpu":
        runner.allocate(size.num_blocks(max(0, available_bytes() - runner.num_state_bytes)))
        return  # its memory is taken as it is written: what is not yet counts
    with _naming_what_does_not_fit("a full step", "EXECUTOR_MAX_STEP_TOKENS, EXECUTOR_MAX_SEQUENCES"):
        step_bytes = runner.try_largest_step(config.max_step_tokens)
    num_blocks = size.num_blocks(max(0, free_bytes(runner.device) - step_bytes))
    while not _try_allocate(runner, num_blocks, config):
        num_blocks = tuple(max(1, count // 2) for count in num_blocks)


@contextmanager
def _naming_what_does_not_fit(what: str, settings: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(f"the device has no room for {what} ({settings}): {error}") from error


def _try_allocate(runner: DeviceRunner, num_blocks: tuple[int, ...], config: ExecutorConfig) -> bool:
    try:
        runner.allocate(num_blocks)
        return True
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if config.num_blocks or max(num_blocks) == 1:
            setting = f"EXECUTOR_NUM_BLOCKS={config.num_blocks or num_blocks[0]}"
            raise ConfigError(f"{setting}: the device does not hold them: {error}") from error
        log.warning("blocks %s do not fit, half of them are tried: %s", num_blocks, error)
        return False


def _shape(config: ExecutorConfig, model: ModelConfig, dtype: torch.dtype) -> kernels.Shape:
    return kernels.Shape(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_tokens=config.block_tokens,
        dtype=dtype,
        windows=tuple(sorted({layer.window for layer in model.layers if layer.window})),
        has_cap=model.attention_cap is not None,
        is_quantized=model.quantization != "none",
    )


def _vocabulary(config: ExecutorConfig, model: ModelConfig) -> Vocabulary:
    """May have more pieces than the model's table has rows, as that of a text model cut out of a larger one has."""
    vocabulary = Vocabulary.load(config.model)
    if len(vocabulary) > model.vocabulary_size:
        log.warning(
            "the tokenizer has %d pieces, the model's table %d rows: prompts with ids from %d on are refused",
            len(vocabulary),
            model.vocabulary_size,
            model.vocabulary_size,
        )
    return vocabulary


def _dtype(config: ExecutorConfig, model_config: ModelConfig) -> torch.dtype:
    # CPUs without matrix units for 16-bit types multiply float32 several times faster.
    name = config.dtype if config.dtype != "auto" else "float32" if config.device_type == "cpu" else model_config.dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _context_tokens(config: ExecutorConfig, model: ModelConfig) -> int:
    """What settings and model allow."""
    if config.max_context_tokens > model.max_position_embeddings:
        raise ConfigError(
            f"EXECUTOR_MAX_CONTEXT_TOKENS={config.max_context_tokens}: the model takes {model.max_position_embeddings}"
        )
    return config.max_context_tokens or model.max_position_embeddings


def _info(
    config: ExecutorConfig, model: ModelConfig, num_blocks: tuple[int, ...], max_context_tokens: int
) -> executor_pb2.ExecutorModel:
    if max_context_tokens < MIN_CONTEXT_TOKENS:
        raise ConfigError(
            f"the context is {max_context_tokens} tokens (model {model.max_position_embeddings}, blocks {num_blocks}"
            f" of {config.block_tokens}), must be {MIN_CONTEXT_TOKENS}"
        )
    return executor_pb2.ExecutorModel(
        name=config.model_name,
        architecture=model.architecture,
        vocabulary_size=model.vocabulary_size,
        max_context_tokens=max_context_tokens,
        eos_token_ids=model.eos_token_ids,
        defaults=_defaults(model.generation),
        block_tokens=config.block_tokens,
        num_blocks=sum(num_blocks),
    )


def _defaults(generation: GenerationDefaults) -> sampling_pb2.SamplingParameters:
    is_greedy = generation.do_sample is False
    try:
        defaults = sampling_pb2.SamplingParameters(
            temperature=0.0 if is_greedy else generation.temperature,
            top_k=None if is_greedy else generation.top_k,
            top_p=None if is_greedy else generation.top_p,
            min_p=None if is_greedy else generation.min_p,
            repetition_penalty=generation.repetition_penalty,
        )
        check_sampling(defaults)
    except InvalidRequest as error:
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
