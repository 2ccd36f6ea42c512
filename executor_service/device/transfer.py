# SPDX-License-Identifier: Apache-2.0
"""Small arrays between host and device, and rows of tensors, without waiting for what the device has queued.

Does not know what the arrays mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(values: Sequence[Any] | npt.NDArray[Any], dtype: npt.DTypeLike, device: torch.device) -> Tensor:
    """Returns once the values are read: they may change afterwards."""
    array = np.array(values, dtype)  # a copy: on CPU the tensor shares it
    return torch.from_numpy(array).to(device, non_blocking=True)


def take(tensor: Tensor, rows: Tensor) -> Tensor:
    """tensor[rows], for ascending rows, without a copy where these are all."""
    return tensor if len(rows) == len(tensor) else tensor[rows]


class Download:
    """Tensors on their way to the host. The copy is put on the queue here, so that waiting for it does not wait for
    work that is queued later."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._event: torch.Event | None = None
        if device.type == "cpu":
            self._tensors = list(tensors)
            return
        self._tensors = [_to_pinned(tensor) for tensor in tensors]
        self._event = torch.Event(device)
        self._event.record()

    def wait(self) -> list[npt.NDArray[Any]]:
        if self._event:
            self._event.synchronize()
        return [tensor.numpy() for tensor in self._tensors]


def _to_pinned(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
