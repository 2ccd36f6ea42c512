# SPDX-License-Identifier: Apache-2.0
"""Which operations a chip and a shape get, what is refused and by what name, and what a captured step has changed."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
import torch

from kernels.int8_weight import Int8Weight
from kernels.sampling_rows import SamplingRows
from protos.errors import ConfigError
from tests.kernels.npu.conftest import A2, A3, P310, LoadNpu


@pytest.mark.parametrize("soc", ["Ascend910A", "Ascend910B", "Ascend310", "Ascend950PR"])
def test_an_unknown_chip_is_named(load_npu: LoadNpu, soc: str) -> None:
    with pytest.raises(ConfigError, match=f"^{soc} is not among"):
        load_npu(soc)


@pytest.mark.parametrize(
    ("soc", "shape", "message"),
    [
        (A2, {"block_tokens": 24}, "blocks of 24 tokens.*multiples of 16 up to 1024"),
        (A2, {"block_tokens": 2048}, "blocks of 2048 tokens.*up to 1024"),
        (A3, {"block_tokens": 1024, "windows": (64,)}, "blocks of 1024 tokens.*up to 512"),
        (A2, {"dtype": torch.float32, "is_quantized": True}, "int8 with torch.float32"),
        (P310, {"dtype": torch.bfloat16}, "torch.bfloat16: Ascend310P takes float16 only"),
        (P310, {"dtype": torch.float32}, "torch.float32: Ascend310P takes float16 only"),
        (P310, {"is_quantized": True}, "int8.*Ascend310P"),
        (P310, {"block_tokens": 256}, "blocks of 256 tokens.*up to 128"),
        (P310, {"block_tokens": 8}, "blocks of 8 tokens.*multiples of 16"),
    ],
)
def test_refusals_give_both_numbers(load_npu: LoadNpu, soc: str, shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_npu(soc, **shape)


@pytest.mark.parametrize(
    ("soc", "shape", "message"),
    [
        (A2, {}, "npu_fused_infer_attention_score"),
        (A2, {"head_dim": 64}, "composed operations: head size 64"),
        (A2, {"has_cap": True}, "composed operations: attention scores are bounded"),
        (A2, {"dtype": torch.float32}, "composed operations: torch.float32"),
        (A2, {"num_heads": 130, "num_kv_heads": 2}, "composed operations: 65 query heads a key head"),
        (A2, {"num_heads": 512, "num_kv_heads": 8}, "composed operations: 512 query heads"),
        (A2, {"num_heads": 520, "num_kv_heads": 520}, "composed operations: 520 query heads"),
        (P310, {}, "_npu_paged_attention"),
        (P310, {"windows": (64,)}, "composed operations: windows of"),
        (P310, {"has_cap": True}, "composed operations: attention scores are bounded"),
        (P310, {"head_dim": 72}, "composed operations: head size 72"),
    ],
)
def test_the_path_is_logged(
    load_npu: LoadNpu, caplog: pytest.LogCaptureFixture, soc: str, shape: dict[str, Any], message: str
) -> None:
    with caplog.at_level(logging.INFO):
        load_npu(soc, **shape)
    assert message in caplog.text


@pytest.mark.parametrize(
    ("soc", "shape", "expected"),
    [
        (A2, {}, True),
        (A2, {"windows": (64,)}, False),
        (A2, {"head_dim": 64}, False),
        (P310, {}, False),
        (P310, {"has_cap": True}, False),
    ],
)
def test_graphs_are_made_of_fused_operations_only(
    load_npu: LoadNpu, soc: str, shape: dict[str, Any], expected: bool
) -> None:
    assert load_npu(soc, **shape).can_graph is expected


def test_a_captured_step_gets_new_lengths(load_npu: LoadNpu) -> None:
    assert load_npu(A2).graph_update((3, 128, 1)) == [{"actual_seq_lengths_kv": [3, 128, 1]}]


def test_310p_weights_are_cast_where_they_can_be(load_npu: LoadNpu) -> None:
    ops = load_npu(P310)
    # Else the cast would do nothing.
    assert sys.modules["torch_npu"].npu.config.allow_internal_format
    weight, row = torch.randn(32, 16).half(), torch.randn(1, 16).half()
    assert ops.pack_weight(weight) is not weight
    assert ops.pack_weight(row) is row


def test_int8_weights_beyond_the_product_are_refused(load_npu: LoadNpu) -> None:
    weight = Int8Weight(torch.zeros(65536, 2, dtype=torch.int8), torch.ones(65536))
    with pytest.raises(ConfigError, match=r"\(65536, 2\).*at most 65535"):
        load_npu(A2, is_quantized=True).pack_weight(weight)


def test_sampling_is_part_of_it(load_npu: LoadNpu) -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [9.0, 1.0, 0.0]])
    scales, draws = torch.zeros(2), torch.zeros(2, 2, dtype=torch.int32)
    whole = torch.full((2,), 3, dtype=torch.int32), torch.full((2,), 1 << 30, dtype=torch.int32)
    rows = SamplingRows(scales, *whole, torch.full((2,), -torch.inf), draws, (0, 1), (), (), 0)
    ops = load_npu(A2)
    assert ops.choose(logits.clone(), rows).tolist() == [1, 0]
    logprobs, top_token_ids, _ = ops.score(logits, torch.tensor([0, 0], dtype=torch.int32), 2)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[:, 0])
    assert top_token_ids.tolist() == [[1, 2], [0, 1]]
