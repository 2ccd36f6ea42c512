# SPDX-License-Identifier: Apache-2.0
"""The operations that stand for torch_npu's refuse what the documentation of those does not allow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fixtures.npu_ops import fake_torch_npu
from tests.kernels.npu.conftest import A2, P310

HALF = torch.float16
MASK = torch.ones(2048, 2048, dtype=torch.int8).triu(1)


def half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=HALF)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attend(soc: str = A2, **changes: Any) -> Tensor:
    """Two rows, of one and of two queries, over four blocks."""
    arguments = {
        "query": half(3, 4, 128),
        "key": half(4, 16, 256),
        "value": half(4, 16, 256),
        "atten_mask": MASK,
        "actual_seq_lengths": [1, 3],
        "actual_seq_lengths_kv": [5, 20],
        "block_table": int32(0, 1, 2, 3).view(2, 2),
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "TND",
        "sparse_mode": 3,
        "block_size": 16,
    } | changes
    return fake_torch_npu(soc).npu_fused_infer_attention_score(**arguments)[0]


def test_attention_as_it_should_be() -> None:
    assert attend().shape == (3, 4, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"soc": P310}, "does not exist for Ascend310P3"),
        ({"actual_seq_lengths": [1, 2]}, "do not add up to 3 tokens"),
        ({"actual_seq_lengths_kv": [5, 40]}, "beyond the table"),
        ({"block_table": torch.zeros(2, 2, dtype=torch.int64)}, "not int32"),
        ({"block_table": int32(0, 1, 2, 4).view(2, 2)}, "block out of range"),
        ({"block_table": int32(0, 1, 2, 3).view(2, 2).t()}, "not contiguous"),
        ({"atten_mask": None}, "not 2048 x 2048"),
        ({"atten_mask": MASK[:1024, :1024]}, "not 2048 x 2048"),
        ({"atten_mask": 1 - MASK}, "strictly upper triangle"),
        ({"sparse_mode": 0}, "sparse_mode 0"),
        ({"num_heads": 2}, "2 heads"),
        ({"query": half(3, 4, 64), "key": half(4, 16, 128), "value": half(4, 16, 128)}, "128 and 192"),
        ({"query": torch.zeros(3, 4, 128)}, "torch.float32"),
        ({"query": half(4, 3, 128).transpose(0, 1)}, "not contiguous"),
        (
            {"key": half(4, 8, 256), "value": half(4, 8, 256), "block_size": 8, "actual_seq_lengths_kv": [5, 9]},
            "block size 8",
        ),
    ],
)
def test_attention(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(**changes)


@pytest.mark.parametrize(
    ("slots", "message"),
    [(int32(1, 1), "not unique"), (int32(0, 32), "outside"), (int32(0, -1), "outside"), (int32(0, 1).float(), "float")],
)
def test_slots(slots: Tensor, message: str) -> None:
    k, cache = half(2, 2, 16), half(2, 16, 2, 16)
    with pytest.raises(ValueError, match=message):
        fake_torch_npu(A2).npu_scatter_pa_kv_cache(k, k, cache, cache.clone(), slots, cache_mode="Norm")


@pytest.mark.parametrize(
    ("soc", "dtype", "gamma", "message"),
    [
        (A2, HALF, torch.ones(15, dtype=HALF), "gamma"),
        (A2, HALF, torch.ones(16, dtype=torch.bfloat16), "gamma is torch.bfloat16"),
        (P310, HALF, torch.ones(16), "gamma is torch.float32"),
        (P310, torch.bfloat16, torch.ones(16, dtype=torch.bfloat16), "310P has not"),
    ],
)
def test_norms(soc: str, dtype: torch.dtype, gamma: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fake_torch_npu(soc).npu_rms_norm(torch.ones(2, 16, dtype=dtype), gamma, 1e-6)


def test_a_sum_is_normed_with_weights_of_its_own_type_only() -> None:
    with pytest.raises(ValueError, match="gamma is"):
        fake_torch_npu(A2).npu_add_rms_norm(half(2, 16), half(2, 16), torch.ones(16), 1e-6)


def test_blocks_of_310p_are_bounded() -> None:
    k, cache = half(1, 1, 128), half(2, 8, 144, 16)
    with pytest.raises(ValueError, match="is above"):
        fake_torch_npu(P310)._npu_reshape_and_cache(k, k, cache, cache.clone(), int32(0))


def test_a_keyword_that_the_schema_has_not_is_refused() -> None:
    with pytest.raises(RuntimeError, match="epsilom"):
        fake_torch_npu(A2).npu_rms_norm(half(2, 16), half(16), epsilom=1e-6)
