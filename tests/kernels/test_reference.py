# SPDX-License-Identifier: Apache-2.0
"""The reference operations against torch's own."""

import pytest
import torch
from torch.nn import functional

import kernels
from kernels import reference as ops
from kernels.reference.rowwise import rope
from protos.errors import ConfigError
from tests.fixtures.paged import Context, attend

close = torch.testing.assert_close


def test_an_unknown_backend_names_what_exists() -> None:
    shape = kernels.Shape(4, 2, 64, 16, torch.float32)
    with pytest.raises(ConfigError, match=r'"cuda" do not exist \(auto, reference, triton, npu\)'):
        kernels.load("cuda", torch.device("cpu"), shape)
    assert kernels.load("auto", torch.device("cpu"), shape) is ops
    with pytest.raises(ConfigError, match='kernels "npu" run on an Ascend NPU, not on cpu'):
        kernels.load("npu", torch.device("cpu"), shape)


def test_embed_reads_rows_by_int32_ids() -> None:
    table = torch.randn(7, 3)
    token_ids = torch.tensor([6, 0, 6], dtype=torch.int32)
    assert torch.equal(ops.embed(table, token_ids, 1.0), table[[6, 0, 6]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [0, 1, 16, 150])
@pytest.mark.parametrize("num_outputs", [1, 33, 64])
def test_linear(num_rows: int, num_outputs: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(num_rows, 48).to(dtype), torch.randn(num_outputs, 48).to(dtype)
    bias = torch.randn(num_outputs).to(dtype)
    tolerance = 1e-4 if dtype is torch.float32 else 0.2
    close(ops.linear(x, weight, bias), functional.linear(x, weight, bias), rtol=tolerance, atol=tolerance)


def test_rms_norm() -> None:
    x, weight = torch.randn(5, 3, 16), torch.randn(16)
    close(ops.rms_norm(x, weight, 1e-5), functional.rms_norm(x, (16,), weight, 1e-5))


def test_silu_mul() -> None:
    gate, up = torch.tensor([[-200.0, -1.0, 0.0, 3.0, 200.0]]), torch.full((1, 5), 2.0)
    close(ops.silu_mul(torch.cat((gate, up), 1)), functional.silu(gate) * up)


def test_norms_of_sums_and_of_embeddings_are_those_of_their_parts() -> None:
    x, residual, weight = torch.randn(5, 16), torch.randn(5, 16), torch.randn(16)
    total, normed = ops.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    assert torch.equal(total, residual + x)
    assert torch.equal(normed, ops.rms_norm(residual + x, weight, 1e-5))
    token_ids = torch.tensor([4, 0], dtype=torch.int32)
    rows, normed = ops.embed_rms_norm(x, token_ids, 4.0, weight, 1e-5)
    assert torch.equal(rows, x[[4, 0]] * 4)
    assert torch.equal(normed, ops.rms_norm(rows, weight, 1e-5))


def test_rms_norm_multiplies_in_the_type_of_the_weight() -> None:
    x, weight = torch.randn(5, 16).bfloat16(), torch.randn(16)
    expected = functional.rms_norm(x.float(), (16,), weight, 1e-5).bfloat16()
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), expected)


def test_gelu_tanh_mul() -> None:
    gate, up = torch.cat((torch.tensor([-200.0, 0.0, 200.0]), torch.randn(50)))[None], torch.full((1, 53), 2.0)
    expected = functional.gelu(gate, approximate="tanh") * up
    close(ops.gelu_tanh_mul(torch.cat((gate, up), 1)), expected, rtol=1e-5, atol=1e-6)


def test_soft_cap() -> None:
    x = torch.tensor([[-1e9, -30.0, -0.01, 0.0, 5.0, torch.inf, torch.nan]])
    close(ops.soft_cap(x, 30.0), 30 * torch.tanh(x / 30), equal_nan=True)


def test_rope_turns_pairs() -> None:
    angle = torch.tensor([[0.5, 0.25]])
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    x = torch.tensor([[[1.0, 0.0, 0.0, 1.0]]])
    expected = [angle[0, 0].cos(), -angle[0, 1].sin(), angle[0, 0].sin(), angle[0, 1].cos()]
    close(rope(x, cos, sin).flatten(), torch.stack(expected))


SPANS = [[(0, 5)], [(4, 5), (0, 300)], [(255, 256), (256, 257), (3, 3 + 290)], [(600, 601), (500, 700), (0, 20)]]


@pytest.mark.parametrize("window", [None, 1, 48, 256, 300])
@pytest.mark.parametrize("spans", SPANS)
def test_attention(spans: list[tuple[int, int]], window: int | None) -> None:
    contexts = [(Context(end, 6, 2, 16), start, end) for start, end in spans]
    for got, (context, start, end) in zip(attend(contexts, window=window), contexts, strict=True):
        q, k, v = (t.transpose(0, 1) for t in (context.q[start:], context.k, context.v))
        mask = torch.ones(end, end, dtype=torch.bool).tril().triu(-(window or end) + 1)[start:]
        expected = functional.scaled_dot_product_attention(q, k, v, mask, scale=0.25, enable_gqa=True)
        close(got, expected.transpose(0, 1), rtol=1e-4, atol=1e-5)


def test_attention_leaves_out_rows_without_queries() -> None:
    first, second = Context(8, 4, 2, 16), Context(9, 4, 2, 16)
    assert [len(out) for out in attend([(first, 8, 8), (second, 3, 9)])] == [0, 6]


def test_attention_caps_scores_before_the_softmax() -> None:
    context = Context(300, 4, 2, 16)
    keys, values = (t.repeat_interleave(2, 1) for t in (context.k, context.v))
    scores = torch.einsum("thd,shd->hts", context.q, keys) * 0.25
    scores = (0.5 * torch.tanh(scores / 0.5)).masked_fill(torch.ones(300, 300).triu(1).bool(), -torch.inf)
    expected = torch.einsum("hts,shd->thd", scores.softmax(-1), values)
    close(attend([(context, 0, 300)], cap=0.5)[0], expected, rtol=1e-4, atol=1e-5)
