# SPDX-License-Identifier: Apache-2.0
"""Arrays of a step travel together, keep their types and shapes, and may change once they are sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor_service.device.transfer import Download, upload

CPU = torch.device("cpu")


def test_arrays_arrive_in_their_types_and_shapes() -> None:
    arrays = [
        np.array([[1, -2], [3, 4]], np.int32),
        np.array([0.5, -np.inf], np.float32),
        np.zeros((0, 5), np.float32),
    ]
    sent = upload(arrays, CPU)
    assert [(tensor.dtype, tuple(tensor.shape)) for tensor in sent] == [
        (torch.int32, (2, 2)),
        (torch.float32, (2,)),
        (torch.float32, (0, 5)),
    ]
    assert all(np.array_equal(tensor.numpy(), array) for tensor, array in zip(sent, arrays, strict=True))


def test_words_keep_their_bits() -> None:
    words = np.array([0xFFFFFFFF, 0x80000001], np.uint32)
    [sent] = upload([words.view(np.int32)], CPU)
    assert sent.numpy().view(np.uint32).tolist() == words.tolist()


def test_arrays_may_change_afterwards() -> None:
    array = np.array([1, 2], np.int32)
    [sent] = upload([array], CPU)
    array[:] = 0
    assert sent.tolist() == [1, 2]


def test_arrays_are_views_of_one_buffer_that_may_be_given() -> None:
    buffer = torch.zeros(10, dtype=torch.int32)
    first, second = upload([np.array([1, 2], np.int32), np.array([3.0], np.float32)], CPU, buffer)
    assert first.data_ptr() == buffer.data_ptr()
    assert second.data_ptr() == buffer[2:].data_ptr()
    assert buffer[:2].tolist() == [1, 2]


def test_types_of_other_sizes_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="int64 is not of 4 bytes"):
        upload([np.array([1])], CPU)


def test_downloads_are_arrays() -> None:
    assert [array.tolist() for array in Download([torch.tensor([1, 2]), torch.tensor([0.5])], CPU).wait()] == [
        [1, 2],
        [0.5],
    ]
    assert Download([], CPU).wait() == []
