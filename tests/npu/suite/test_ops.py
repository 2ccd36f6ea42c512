# SPDX-License-Identifier: Apache-2.0
"""kernels.npu through the real torch_npu: results are those of kernels.reference in the same type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from executor_service.models.decoder import Decoder
from executor_service.models.forward_batch import ForwardBatch
from executor_service.models.model_config import load_model_config
from executor_service.models.weights import load_weights
from kernels import Backend, Shape
from kernels.int8_weight import Int8Weight
from kernels.paged_rows import PagedRows
from tests.fixtures.npu_checks import Soc
from tests.fixtures.quantized_model import DefinedProducts, power_of_two, write_quantized_model
from tests.npu import stub
from tests.npu.suite.decoders import shape_of

H, K, D, S = 4, 2, 128, 32
CPU = torch.device("cpu")

# A row's tokens computed earlier, and now: around block edges, in any company.
MIXED = [(0, 1), (0, 70), (S - 1, 1), (S, S + 1), (100, 3), (0, S)]
DECODE = [(0, 1), (S - 1, 1), (S, 1), (150, 1)]


def shape(dtype: torch.dtype, **changes: Any) -> Shape:
    return Shape(**({"num_heads": H, "num_kv_heads": K, "head_dim": D, "block_tokens": S, "dtype": dtype} | changes))


def close(ours: Tensor, expected: Tensor) -> None:
    """To a few roundings of the type."""
    tolerance = 4e-3 if ours.dtype is torch.float16 else 3e-2
    torch.testing.assert_close(ours.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def backends(simulated: Any, device: torch.device, dtype: torch.dtype) -> tuple[Backend, Backend]:
    """Of the device, and its definition."""
    return kernels.load("npu", device, shape(dtype)), kernels.load("reference", CPU, shape(dtype))


def random(*size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(
    "act",
    [
        lambda ops, x, w, ids: ops.embed(x, ids, 1.0),
        lambda ops, x, w, ids: ops.embed(x, ids, 1.5),
        lambda ops, x, w, ids: ops.embed_rms_norm(x, ids, 1.0, w, 1e-6),
        lambda ops, x, w, ids: ops.rms_norm(x, w, 1e-6),
        lambda ops, x, w, ids: ops.add_rms_norm(x.clone(), x.clone(), w, 1e-5),
        lambda ops, x, w, ids: ops.silu_mul(x),
        lambda ops, x, w, ids: ops.gelu_tanh_mul(x),
        lambda ops, x, w, ids: ops.soft_cap(x.float(), 3.0),
        lambda ops, x, w, ids: ops.linear(x, ops.pack_weight(x[:16]), None),
        lambda ops, x, w, ids: ops.linear(x, ops.pack_weight(x[:16]), w[:16]),
    ],
)
@pytest.mark.parametrize("num_rows", [16, 33])
def test_operations_on_each_token(
    backends: tuple[Backend, Backend],
    device: torch.device,
    dtype: torch.dtype,
    num_rows: int,
    act: Callable[[Backend, Tensor, Tensor, Tensor], Any],
) -> None:
    ours, reference = backends
    x, weight = random(num_rows, 64, dtype=dtype), 1 + 0.1 * random(64, dtype=dtype, seed=1)
    token_ids = torch.tensor([3, 0, num_rows - 1], dtype=torch.int32)
    expected = act(reference, x, weight, token_ids)
    found = act(ours, x.to(device), weight.to(device), token_ids.to(device))
    for one, other in zip(as_tuple(found), as_tuple(expected), strict=True):
        close(one, other)


def as_tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize("rows", [MIXED, DECODE])
def test_attention_over_the_cache(
    backends: tuple[Backend, Backend],
    device: torch.device,
    dtype: torch.dtype,
    rows: list[tuple[int, int]],
    has_norms: bool,
) -> None:
    found = attend(backends[0], rows, device, dtype, has_norms)
    close(found, attend(backends[1], rows, CPU, dtype, has_norms))


@pytest.mark.parametrize("rows", [MIXED, DECODE])
@pytest.mark.parametrize(("dim", "changes"), [(D, {"windows": (40,)}), (64, {}), (16, {"has_cap": True})])
def test_attention_of_other_shapes(
    simulated: Any, device: torch.device, dtype: torch.dtype, rows: list[tuple[int, int]], dim: int, changes: Any
) -> None:
    asked = shape(dtype, head_dim=dim, **changes)
    window, cap = (asked.windows or (None,))[0], 5.0 if asked.has_cap else None
    ours, reference = (
        attend(kernels.load("auto", where, asked), rows, where, dtype, True, dim, window, cap)
        for where in (device, CPU)
    )
    close(ours, reference)


def attend(
    ops: Backend,
    rows: list[tuple[int, int]],
    device: torch.device,
    dtype: torch.dtype,
    has_norms: bool,
    dim: int = D,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """Earlier tokens are stored by a step of their own."""
    num_blocks = [-(-sum(row) // S) for row in rows]
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randperm(sum(num_blocks) + 2, generator=generator).int()
    caches = ops.new_cache(len(blocks), S, K, dim, dtype, device)
    tables = torch.zeros(len(rows), max(num_blocks), dtype=torch.int32)
    for table, own in zip(tables, blocks.split([*num_blocks, 2]), strict=False):
        table[: len(own)] = own
    norms = tuple((1 + 0.1 * random(dim, dtype=dtype, seed=2)).to(device) for _ in range(2)) if has_norms else None
    out = torch.empty(0)
    for spans in ([(0, before) for before, _ in rows], [(before, before + now) for before, now in rows]):
        kept = [i for i, (start, end) in enumerate(spans) if end > start]
        spans = [spans[i] for i in kept]
        qkv = random(sum(end - start for start, end in spans), (H + 2 * K) * dim, dtype=dtype, seed=len(spans))
        plan = ops.attention_plan(paged_rows(spans, tables[kept], device), S, H, K, window)
        angles = random(len(qkv), dim // 2, dtype=torch.float32, seed=3).repeat(1, 2)
        cos, sin = angles.cos().to(dtype).to(device), angles.sin().to(dtype).to(device)
        q = ops.rope_and_store(qkv.to(device), norms, 1e-6, cos, sin, *caches, plan)
        out = ops.attention(q, *caches, plan, dim**-0.5, cap)
    return out


def paged_rows(spans: list[tuple[int, int]], tables: Tensor, device: torch.device) -> PagedRows:
    """Tokens [start, end) of each row."""
    places = [torch.arange(start, end) for start, end in spans]
    slots = torch.cat([table[at // S] * S + at % S for table, at in zip(tables, places, strict=True)]).int()
    offsets = torch.tensor([0, *(len(at) for at in places)], dtype=torch.int32).cumsum(0).int()
    lens = torch.tensor([end for _, end in spans], dtype=torch.int32)
    on_device = [part.to(device) for part in (slots, tables, offsets, lens)]
    return PagedRows(*on_device[:2], tuple(offsets.tolist()), tuple(lens.tolist()), *on_device[2:])


def test_w8a8(simulated: Any, device: torch.device, dtype: torch.dtype) -> None:
    if Soc.is_310p():
        pytest.skip("310P has no such product")
    asked = shape(dtype, is_quantized=True)
    x, bias = random(5, 64, dtype=dtype), random(48, dtype=dtype)
    values = torch.randint(-127, 128, (48, 64), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    scale = torch.rand(48, generator=torch.Generator().manual_seed(0)) / 500
    found, expected = (
        ops.linear(x.to(where), ops.pack_weight(Int8Weight(values.to(where), scale.to(where))), bias.to(where))
        for where, ops in ((where, kernels.load("auto", where, asked)) for where in (device, CPU))
    )
    close(found, expected)


def test_w8a8_in_a_model(simulated: Any, device: torch.device, tmp_path: Path) -> None:
    """To the bit what the definition's products give, of weights whose scales are powers of two."""
    if Soc.is_310p():
        pytest.skip("310P has no such product")
    write_quantized_model(tmp_path, scale_of=power_of_two, hidden_size=128, head_dim=128)
    config = load_model_config(tmp_path)
    ops = kernels.load("npu", device, shape_of(config, S, torch.float16))
    found, expected = (
        logits(Decoder(config, load_weights(tmp_path, config, torch.float16, device), each, 2 * S), device)
        for each in (ops, DefinedProducts(ops))
    )
    assert torch.equal(found, expected)


def logits(decoder: Decoder, device: torch.device) -> Tensor:
    """Of a sequence in one step."""
    num_tokens = 2 * S
    positions = torch.arange(num_tokens, dtype=torch.int32, device=device)
    rows = paged_rows([(0, num_tokens)], torch.tensor([[1, 0]], dtype=torch.int32), device)
    cache = decoder.new_cache([2], S, device)
    batch = ForwardBatch(positions * 4, positions, positions, (rows,), S)
    return decoder.logits(decoder.forward(batch, cache)).cpu()


@pytest.mark.parametrize("rows", [MIXED, DECODE])
def test_no_operation_waits_for_the_device(
    device: torch.device, dtype: torch.dtype, rows: list[tuple[int, int]]
) -> None:
    """Without the simulation: inputs are made first, which waits."""
    ops = kernels.load("npu", device, shape(dtype))
    paged = paged_rows([(before, before + now) for before, now in rows], torch.zeros(len(rows), 8).int(), device)
    caches = ops.new_cache(8, S, K, D, dtype, device)
    num_tokens = paged.offsets[-1]
    qkv = torch.empty(num_tokens, (H + 2 * K) * D, dtype=dtype, device=device)
    weight, cos = (torch.empty(*size, D, dtype=dtype, device=device) for size in ((), (num_tokens,)))
    stub.reset()
    plan = ops.attention_plan(paged, S, H, K, None)
    q = ops.rope_and_store(qkv, (weight, weight), 1e-6, cos, cos, *caches, plan)
    ops.attention(q, *caches, plan, 1.0, None)
    assert stub.num_syncs() == 0
    assert [entry for entry in stub.log() if "waiting" in entry] == []
