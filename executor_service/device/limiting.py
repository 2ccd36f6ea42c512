# SPDX-License-Identifier: Apache-2.0
"""Leaves out what rows may not choose in this step: their logits become -inf.

Does not know why an id is not allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_service.scheduling.step import Limits

_WORD_BITS = 32


def limit_arrays(limits: Sequence[Limits | None]) -> dict[str, npt.NDArray[Any]]:
    """What apply_limits reads on the device, by name. limits: of each row."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    present = [(r, limit) for r, limit in enumerate(limits) if limit is not None]
    if banned := [(r, token_id) for r, limit in present for token_id in limit.banned]:
        arrays["banned"] = np.array(banned, np.int32).T  # [2, pairs]
    if masked := [(r, limit.mask) for r, limit in present if limit.mask is not None]:
        arrays["masked_rows"] = np.array([r for r, _ in masked], np.int32)
        arrays["masks"] = np.stack([mask for _, mask in masked]).view(np.int32)  # [rows, ceil(V / 32)]
        arrays["bits"] = (np.uint32(1) << np.arange(_WORD_BITS, dtype=np.uint32)).view(np.int32)
    return arrays


def apply_limits(logits: Tensor, sent: Mapping[str, Tensor]) -> None:
    """In place. logits: float32 [R, V]; sent: limit_arrays, on the device."""
    if "banned" in sent:
        rows, token_ids = sent["banned"].long()
        logits.index_put_((rows, token_ids), logits.new_full(rows.shape, -torch.inf))
    if "masks" in sent:
        rows = sent["masked_rows"].long()
        # The words cross to the device, not the bits. The highest bit is a sign, and not zero either.
        is_out = ((sent["masks"][:, :, None] & sent["bits"]) == 0).flatten(1)[:, : logits.shape[1]]
        logits[rows] = logits[rows].masked_fill_(is_out, -torch.inf)
