# SPDX-License-Identifier: Apache-2.0
"""What tells two models apart: hashes of a checkpoint and of its config, equal on every machine.

Quick, so that it is made at every start: tensors are sampled, not read. It finds another model, not a forged one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import BinaryIO

from executor_service.models.checkpoint import StoredTensor, read_checkpoint
from executor_service.models.model_config import ModelConfig

SAMPLE_BYTES = 4096


def config_sha256(config: ModelConfig) -> str:
    """Of what the config means, so that its spelling does not count."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(config), sort_keys=True).encode()).hexdigest()


def weights_sha256(directory: Path) -> str:
    """Of each tensor's name, type, shape and first, middle and last 4 KiB, in order of names; shards do not count."""
    digest = hashlib.sha256()
    for name, tensor in sorted(read_checkpoint(directory).items()):
        digest.update(json.dumps([name, tensor.dtype, tensor.shape]).encode())
        with tensor.path.open("rb") as file:
            digest.update(sample(file, tensor))
    return digest.hexdigest()


def sample(file: BinaryIO, tensor: StoredTensor) -> bytes:
    """All of a tensor that is no longer than the three parts together."""
    if tensor.num_bytes <= 3 * SAMPLE_BYTES:
        file.seek(tensor.start)
        return file.read(tensor.num_bytes)
    parts = []
    for start in (tensor.start, (tensor.start + tensor.end - SAMPLE_BYTES) // 2, tensor.end - SAMPLE_BYTES):
        file.seek(start)
        parts.append(file.read(SAMPLE_BYTES))
    return b"".join(parts)
