# SPDX-License-Identifier: Apache-2.0
"""Small arrays between host and device, without waiting for what the device has queued.

Does not know what the arrays mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_service.device.accelerator import module_of

_WORD_BYTES = 4


def upload(arrays: Sequence[npt.NDArray[Any]], device: torch.device, out: Tensor | None = None) -> list[Tensor]:
    """The arrays, each of a type of 4 bytes, by one copy: views of one buffer, of out where it is given (int32, as long
    as all together or longer). Returns once the values are read: they may change afterwards."""
    lens = [array.size for array in arrays]
    staged = host_words(sum(lens), device)
    words = staged.numpy()
    start = 0
    for array, length in zip(arrays, lens, strict=True):
        assert array.itemsize == _WORD_BYTES, f"{array.dtype} is not of {_WORD_BYTES} bytes"
        words[start : start + length] = array.reshape(-1).view(np.int32)
        start += length
    sent = staged.to(device, non_blocking=True) if out is None else out[:start].copy_(staged, non_blocking=True)
    return [
        part.view(torch.from_numpy(array[:0].reshape(-1)).dtype).view(array.shape)
        for part, array in zip(sent[:start].split(lens), arrays, strict=True)
    ]


def host_words(length: int, device: torch.device) -> Tensor:
    """int32 [length] on the host, that the device can read by itself: its memory is kept until the device has."""
    return torch.empty(length, dtype=torch.int32, pin_memory=device.type != "cpu")


class Download:
    """Tensors on their way to the host. The copy is put on the queue here, so that waiting for it does not wait for
    work that is queued later."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._event: Any = None
        self._tensors = list(tensors)
        if tensors and device.type != "cpu":
            self._tensors = [_to_pinned(tensor) for tensor in tensors]
            self._event = module_of(device).Event()
            self._event.record()

    def wait(self) -> list[npt.NDArray[Any]]:
        if self._event:
            self._event.synchronize()
        return [tensor.numpy() for tensor in self._tensors]


def _to_pinned(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
