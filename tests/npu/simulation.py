# SPDX-License-Identifier: Apache-2.0
"""Numbers for a device that computes none: each operation goes through torch_npu, which dispatches it, checks devices
and makes the results; then its definition is computed on the CPU, in the same memory.

A definition is torch's own CPU kernel, or of npu:: and atb:: operations tests/fixtures/npu_ops.py. Captured work is not
done but kept, and done at each replay. What torch_npu does inside of one operation is not seen.
"""

from __future__ import annotations

import inspect
import traceback
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from tests.fixtures.npu_ops import REFERENCES
from tests.npu import placement, stub

# Their results hold nothing yet: here NaN, or -1, so that it shows where they are read before they are written.
EMPTY = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
# They compute nothing, or what one of them computes is not looked at.
WITHOUT_VALUES = {
    "aten::record_stream",
    "npu::_npu_fused_infer_attention_score_get_max_workspace",
    "npu::_npu_fused_infer_attention_score_infer_output",
}
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
NPU = torch._C.DispatchKey.PrivateUse1
CPU = torch.device("cpu")


class Simulation(TorchDispatchMode):
    """Holds in the thread that enters it."""

    def __init__(self) -> None:
        super().__init__()
        self._graphs: dict[int, list[Work]] = defaultdict(list)
        self._groups: dict[int, Work] = {}
        self._on_replay = stub.REPLAY(self._replay)
        stub.call_on_replay(self._on_replay)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.has_kernel_for_dispatch_key(COMPOSITE) and not func.has_kernel_for_dispatch_key(NPU):
            with self:
                return func.decompose(*args, **kwargs)
        placement.check(func, args, kwargs)
        out = func(*args, **kwargs)
        if func._schema.name in WITHOUT_VALUES or (func.is_view and storages(out) <= storages((args, kwargs))):
            return out
        if not any(map(is_on_device, tree_iter((args, kwargs, out)))):
            return out
        with _disable_current_modes(), torch.inference_mode():
            result = self._do(Work(func, args, kwargs, out))
        return result if is_host_value(out) else out

    def _do(self, work: Work) -> Any:
        if group := stub.updating():
            self._groups[group].replace(work)
        elif graph := stub.capturing():
            self._graphs[graph].append(work)
            if group := stub.recording():
                self._groups[group] = work
        else:
            return work.run()
        return None

    def _replay(self, graph: int) -> int:
        """What goes wrong in here cannot be raised through the runtime: it answers with an error of its own."""
        try:
            with _disable_current_modes(), torch.inference_mode():
                for work in self._graphs[graph]:
                    work.run()
        except Exception:  # noqa: BLE001
            traceback.print_exc()
            return 1
        return 0


class Work:
    """One operation by its definition, on tensors of the CPU in the memory that the device's tensors have."""

    def __init__(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self.func = func
        self.args, self.kwargs, self.out = tree_map(on_host, (args, kwargs, out))
        self.define: Callable[..., Any] = func
        if func._schema.name in EMPTY:
            self.define = lambda *_, **__: fill(self.out)
        elif func.namespace in ("npu", "atb"):
            self.define = REFERENCES[func._schema.name]
            if "out" not in inspect.signature(self.define).parameters:
                self.kwargs = {key: value for key, value in self.kwargs.items() if key not in ("out", "workspace")}

    def replace(self, other: Work) -> None:
        assert self.func is other.func
        self.__dict__ = other.__dict__

    def run(self) -> Any:
        with stub.open_memory():
            result = self.define(*self.args, **self.kwargs)
            if result is not None:
                for ours, theirs in zip(tree_iter(self.out), tree_iter(result), strict=True):
                    if isinstance(ours, Tensor):
                        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), self.func
                        ours.copy_(theirs)
        return result


def fill(memory: Tensor) -> None:
    memory.untyped_storage().fill_(0xFF)


def is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "npu"


def storages(values: Any) -> set[int]:
    """What tensors among the values are views of. Operations that may be views, contiguous() say, may copy too."""
    return {value.untyped_storage()._cdata for value in tree_iter(values) if isinstance(value, Tensor)}


def is_host_value(out: Any) -> bool:
    """A number that the operation reads from the device."""
    return out is not None and not any(isinstance(value, Tensor) for value in tree_iter(out))


def on_host(value: Any) -> Any:
    """The same memory as a tensor of the CPU, which does not keep it; the CPU in place of the device."""
    if isinstance(value, torch.device):
        return CPU
    if isinstance(value, torch.Generator):
        return torch.Generator().manual_seed(value.initial_seed())
    if not is_on_device(value):
        return value
    storage = value.untyped_storage()
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), CPU, storage.nbytes())
    return torch.empty(0, dtype=value.dtype).set_(memory, value.storage_offset(), value.shape, value.stride())
