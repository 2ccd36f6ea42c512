# SPDX-License-Identifier: Apache-2.0
"""What differs between kinds of devices beside their kernels: the current one, free memory, captured graphs.

The one place that asks for a device's type by name. Does not know models or steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from protos.errors import ConfigError


def open_device(name: str) -> torch.device:
    """name: cpu, npu:0, cuda:1. Raises ConfigError where this machine has no such device, or no software for it."""
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return torch.device(kind)
    if kind == "npu":
        _import_torch_npu(name)
    module = getattr(torch, kind)
    if not module.is_available():
        raise ConfigError(f"EXECUTOR_DEVICE={name}: torch {torch.__version__} sees no {kind} device here")
    device = torch.device(kind, int(index or 0))
    if device.index >= module.device_count():
        raise ConfigError(f"EXECUTOR_DEVICE={name}: there are {module.device_count()} {kind} devices, from 0 on")
    make_current(device)
    if kind == "npu":
        module.set_compile_mode(jit_compile=False)  # operations come compiled; graphs take no others
    return device


def _import_torch_npu(name: str) -> None:
    try:
        importlib.import_module("torch_npu")
    except (ImportError, RuntimeError) as error:
        # A library of CANN that is missing comes as an ImportError too.
        raise ConfigError(
            f"EXECUTOR_DEVICE={name}: torch_npu cannot be imported: {error}. Is packserve[npu] installed, and were the "
            "set_env.sh files of CANN read?"
        ) from error


def module_of(device: torch.device) -> Any:
    """torch.cuda, torch.npu."""
    return getattr(torch, device.type)


def make_current(device: torch.device) -> None:
    """For the calling thread."""
    if device.type != "cpu":
        module_of(device).set_device(device)


def peak_bytes(device: torch.device, work: Callable[[], None]) -> int:
    """What the allocator gave out at most during the work, beside what was given out before it."""
    module = module_of(device)
    module.reset_peak_memory_stats(device)
    before: int = module.memory_allocated(device)
    work()
    module.synchronize(device)
    peak: int = module.max_memory_allocated(device)
    return peak - before


def free_bytes(device: torch.device) -> int:
    """What the allocator holds and does not use counts as free."""
    module = module_of(device)
    module.empty_cache()
    free: int = module.mem_get_info(device)[0]
    return free


def is_out_of_memory(error: RuntimeError) -> bool:
    """torch_npu has its own error of that kind, which is not torch's; the CPU has none."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text


class Graph:
    """Work captured once and replayed at the same addresses. work: leaves its results in tensors that last."""

    def __init__(self, device: torch.device, pool: Any, work: Callable[[], None]) -> None:
        module = module_of(device)
        if device.type == "npu":
            self._graph = module.NPUGraph()
            capturing = module.graph(self._graph, pool=pool, auto_dispatch_capture=True)
        else:
            self._graph = module.CUDAGraph()
            capturing = module.graph(self._graph, pool=pool)
        stream = module.current_stream(device)
        try:
            with capturing:
                work()
        except RuntimeError:
            self._leave(module, stream)
            raise

    def _leave(self, module: Any, stream: Any) -> None:
        """Capturing ends with the device's part: where that fails, stream and mode are still the capture's."""
        module.set_stream(stream)
        mode = getattr(self._graph, "graph_dispatch_mode", None)
        if mode is not None and mode in _get_current_dispatch_mode_stack():
            mode.__exit__(None, None, None)

    def replay(self, update: list[dict[str, Any]]) -> None:
        """update: as Backend.graph_update gives it."""
        if update:
            self._graph.update(cpu_update_input=update)
        self._graph.replay()


def new_graph_pool(device: torch.device) -> Any:
    return module_of(device).graph_pool_handle()
