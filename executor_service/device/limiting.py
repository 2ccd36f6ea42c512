# SPDX-License-Identifier: Apache-2.0
"""Leaves out what rows may not choose in this step: their logits become -inf.

Does not know why an id is not allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from executor_service.device.transfer import upload
from executor_service.scheduling.sequence import UInt32Array
from executor_service.scheduling.step import Limits


def apply_limits(logits: Tensor, limits: Sequence[Limits | None]) -> None:
    """In place. logits: float32 [R, V]; limits: of each row."""
    present = [(r, limit) for r, limit in enumerate(limits) if limit is not None]
    if banned := [(r, limit.banned) for r, limit in present if limit.banned]:
        rows = upload([r for r, token_ids in banned for _ in token_ids], np.int64, logits.device)
        token_ids = upload([token_id for _, token_ids in banned for token_id in token_ids], np.int64, logits.device)
        logits[rows, token_ids] = -torch.inf
    if masked := [(r, limit.mask) for r, limit in present if limit.mask is not None]:
        rows = upload([r for r, _ in masked], np.int64, logits.device)
        is_allowed = unpacked([mask for _, mask in masked], logits.shape[1], logits.device)
        logits[rows] = logits[rows].masked_fill_(~is_allowed, -torch.inf)


def unpacked(masks: Sequence[UInt32Array], num_bits: int, device: torch.device) -> Tensor:
    """bool [R, num_bits], from uint32 words, the lowest bit first. The words cross to the device, not the bits."""
    octets = upload(np.stack(masks).astype("<u4").view(np.uint8), np.uint8, device)  # [R, 4 W]
    bits = octets[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=device)
    return (bits & 1).bool().flatten(1)[:, :num_bits]
