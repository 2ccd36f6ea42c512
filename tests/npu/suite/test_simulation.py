# SPDX-License-Identifier: Apache-2.0
"""What the tests of numbers rest on: that the simulation computes what the CPU does, when the device would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fixtures.npu_checks import Soc
from tests.npu import simulation, stub

LENS = ([5, 60, 7], [100, 3, 31], [1, 1, 1])


@pytest.mark.parametrize(
    "act",
    [
        lambda x, i: x.t(),
        lambda x, i: x[:, 1:].contiguous(),
        lambda x, i: x.float() @ x.t().float(),
        lambda x, i: torch.where(x > 3, x, 0),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.clone().index_put_((i,), x[i] + 1, accumulate=True),
        lambda x, i: x.clone().index_copy_(0, i, -x[i]),
        lambda x, i: x.clone().copy_(x.flip(0), non_blocking=True),
        lambda x, i: torch.cat((x, x), 1).cumsum(1),
        lambda x, i: torch.clamp(x, min=2, out=torch.empty_like(x)),
        lambda x, i: torch.arange(5, device=x.device) * x[0, 0],
        lambda x, i: x.reshape(2, 6)[:, ::2].reshape(-1),
    ],
)
def test_results_are_those_of_the_cpu(simulated: Any, device: torch.device, act: Callable[..., Tensor]) -> None:
    x, index = torch.arange(12, dtype=torch.int32).reshape(3, 4), torch.tensor([2, 0])
    assert torch.equal(act(x.to(device), index.to(device)).cpu(), act(x, index))


def test_numbers_that_the_host_reads(simulated: Any, device: torch.device) -> None:
    x = torch.arange(6, device=device)
    assert (x + 1)[2].item() == 3
    assert (x * 2).tolist() == [0, 2, 4, 6, 8, 10]
    assert torch.equal(x, x.clone())
    back = torch.empty(6, dtype=torch.int64, pin_memory=True)
    back.copy_(x + 3, non_blocking=True)
    assert back.tolist() == [3, 4, 5, 6, 7, 8]


def test_memory_that_was_not_written_shows(simulated: Any, device: torch.device) -> None:
    assert torch.empty(3, device=device).cpu().isnan().all()
    assert torch.empty(3, dtype=torch.int32, device=device).tolist() == [-1, -1, -1]


def test_a_definition_of_another_shape_or_type_is_an_error(
    simulated: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2, 32, device=device)
    monkeypatch.setitem(simulation.REFERENCES, "npu::npu_rms_norm", lambda x, *_, **__: (x.half(), x[:, :1]))
    with pytest.raises(AssertionError, match="npu_rms_norm"):
        torch.ops.npu.npu_rms_norm(x, torch.ones(32, device=device))


def test_captured_work_is_done_at_each_replay(simulated: Any, device: torch.device) -> None:
    x, out = torch.ones(4, device=device), torch.zeros(4, device=device)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out.copy_((x + 1) * 2)
    assert out.tolist() == [0] * 4
    for value in (3, 5):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [2 * value + 2] * 4


@pytest.fixture
def attend(device: torch.device) -> Callable[[list[int]], Tensor]:
    if Soc.is_310p():
        pytest.skip("310P has no such attention")
    q = torch.randn(3, 4, 128).half().to(device)
    cache = torch.randn(8, 16, 256).half().to(device)
    tables = torch.arange(21, dtype=torch.int32).reshape(3, 7).remainder(8).to(device)
    mask = torch.ones(2048, 2048, dtype=torch.int8).triu(1).to(device)

    def attention(lens: list[int]) -> Tensor:
        return torch.ops.npu.npu_fused_infer_attention_score(
            q,
            cache,
            cache,
            num_heads=4,
            num_key_value_heads=2,
            input_layout="TND",
            block_table=tables,
            block_size=16,
            actual_seq_lengths=[1, 2, 3],
            actual_seq_lengths_kv=lens,
            sparse_mode=3,
            atten_mask=mask,
        )[0]

    return attention


def test_a_replay_takes_the_lengths_of_its_update(simulated: Any, attend: Callable[[list[int]], Tensor]) -> None:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        out = attend(LENS[0])
        after = attend(LENS[0]) + out
    for lens in LENS:
        stub.reset()
        graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lens}])
        graph.replay()
        assert (stub.counters.updates, stub.counters.replays) == (2, 1)
        assert torch.equal(out.cpu(), attend(lens).cpu())
        assert torch.equal(after.cpu(), (attend(lens) * 2).cpu())


def test_a_replay_without_its_update_is_an_error(simulated: Any, attend: Callable[[list[int]], Tensor]) -> None:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        attend(LENS[0])
    with pytest.raises(RuntimeError, match="error code is 107000"):
        graph.replay()
    graph.update(cpu_update_input=[{"actual_seq_lengths_kv": LENS[0]}])
    graph.replay()
    with pytest.raises(RuntimeError, match="error code is 107000"):
        graph.replay()


def test_a_graph_whose_replay_was_not_waited_for_is_not_updated(
    simulated: Any, attend: Callable[[list[int]], Tensor]
) -> None:
    graph, after = torch.npu.NPUGraph(), torch.npu.Event()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        attend(LENS[0])
    update = [{"actual_seq_lengths_kv": LENS[0]}]
    graph.update(cpu_update_input=update)
    graph.replay()
    after.record()
    with pytest.raises(RuntimeError, match="not waited for"):
        graph.update(cpu_update_input=update)
    assert stub.log()[-1] == "update of a running graph"
    after.synchronize()
    graph.update(cpu_update_input=update)
    graph.replay()
