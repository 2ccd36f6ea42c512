# SPDX-License-Identifier: Apache-2.0
"""What an NPU does in its own way gives the reference's ids, whatever the logits, the settings and the vocabulary."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from executor_service.scheduling.sequence import Sampling
from kernels import reference
from tests.fixtures.npu_ops import fake_torch_npu
from tests.fixtures.sampling_rows import rows_of
from tests.kernels.npu.conftest import A2

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([1023, 1024, 1025, 2048, 3000]), st.integers(1, 5000))
# An Ascend NPU has no fast form of these, or none at all.
AVOIDED = ("sort", "scatter_add", "searchsorted", "nonzero", "_local_scalar_dense", "bincount")


@pytest.fixture(scope="module")
def npu() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch_npu", fake_torch_npu(A2))
        yield importlib.import_module("kernels.npu.sampling")
    for name in [name for name in sys.modules if name.startswith("kernels.npu")]:
        del sys.modules[name]


@st.composite
def samplings(draw: st.DrawFn, vocabulary_size: int) -> Sampling:
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 1.0, 0.7, 1.9, 2e-3, 1e6])),
        top_k=draw(st.one_of(st.just(0), st.integers(1, vocabulary_size), st.integers(1, 60))),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.5, 1e-3, 1e-6])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 1.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
    )


def random_logits(num_rows: int, vocabulary_size: int, num_values: int, out_of: int, seed: int) -> torch.Tensor:
    """num_values: few of them tie; of each out_of ids one is left out."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(num_rows, vocabulary_size, generator=generator)
    if num_values:
        logits = (logits * num_values).round() / num_values
    if out_of:
        logits[torch.rand(logits.shape, generator=generator) < 1 / out_of] = -math.inf
    return logits


@settings(max_examples=150, deadline=None)
@given(data=st.data(), vocabulary_size=SIZES, num_rows=st.integers(1, 5), seed=st.integers(0, 1000))
def test_ids_are_the_reference_s(
    npu: ModuleType, data: st.DataObject, vocabulary_size: int, num_rows: int, seed: int
) -> None:
    num_values, out_of = data.draw(st.sampled_from([0, 1, 8])), data.draw(st.sampled_from([0, 1, 2, 10]))
    logits = random_logits(num_rows, vocabulary_size, num_values, out_of, seed)
    rows = rows_of([data.draw(samplings(vocabulary_size)) for _ in range(num_rows)], vocabulary_size)
    expected = reference.choose(logits.clone(), rows)
    assert torch.equal(npu.choose(logits.clone(), rows), expected)
    assert expected.dtype == torch.int32
    nothing = logits.amax(dim=-1) == -math.inf
    assert torch.equal(expected == -2, nothing)
    assert logits.gather(1, expected.clamp(min=0).long()[:, None])[~nothing].isfinite().all()


@pytest.mark.parametrize("broken", [math.nan, -math.nan, math.inf])
def test_rows_without_a_law_leave_their_neighbours_alone(npu: ModuleType, broken: float) -> None:
    logits = random_logits(12, 3000, 0, 0, 1)
    rows = rows_of([Sampling(), Sampling(1.0), Sampling(1.0, top_k=9, top_p=0.5), Sampling(1.0, top_p=0.9)] * 3, 3000)
    expected = reference.choose(logits.clone(), rows)
    logits[::2, 77] = broken
    for found in (npu.choose(logits.clone(), rows), reference.choose(logits.clone(), rows)):
        assert torch.equal(found[1::2], expected[1::2])


class Recorded(TorchDispatchMode):
    """Names of operations; types of tensors as large as the vocabulary."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.names: set[str] = set()
        self.wide: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.names.add(func.__name__)
        for tensor in out if isinstance(out, tuple) else (out,):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.numel() >= self.vocabulary_size
                and "topk" not in func.__name__
            ):
                self.wide.add(tensor.dtype)
        return out


def test_a_batch_of_small_top_ks_is_not_searched(npu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As most callers sample: the few best are read off, whatever greedy rows stand beside."""
    monkeypatch.setattr(npu, "_keep_found", None)
    logits = random_logits(6, 3000, 8, 0, 2)
    settings = [Sampling(0.7, top_k=20, top_p=0.8, seed=1), Sampling(), Sampling(1.0, top_k=1024, min_p=0.01, seed=2)]
    rows = rows_of(settings * 2, 3000)
    assert rows.are_topped
    assert torch.equal(npu.choose(logits.clone(), rows), reference.choose(logits.clone(), rows))


@pytest.mark.parametrize("top_k", [0, 50, 2000])
def test_asks_an_npu_for_nothing_that_it_lacks(npu: ModuleType, top_k: int) -> None:
    """Nor for tensors of the vocabulary's size that have 64 bits, nor to wait."""
    logits = random_logits(2, 8192, 0, 0, 2)
    rows = rows_of([Sampling(1.0, top_k=top_k, top_p=0.9), Sampling()], 8192)
    with Recorded(8192) as recorded:
        npu.choose(logits, rows)
        reference.score(random_logits(2, 8192, 0, 0, 2), torch.zeros(2, dtype=torch.int32), 5)
    assert not [name for name in recorded.names if name.startswith(AVOIDED)]
    assert recorded.wide <= {torch.float32, torch.int32, torch.bool}
