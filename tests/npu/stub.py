# SPDX-License-Identifier: Apache-2.0
"""What stubcann.c counts and remembers, for tests that run on it. Importable only where LD_LIBRARY_PATH has its
libraries; does not know torch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIBRARY = ctypes.CDLL("libascendcl.so")
KINDS = ("H2H", "H2D", "D2H", "D2D")
_LOG_LENGTH = 65536


def _structure(name: str, **fields: type) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


def _numbers(*names: str) -> dict[str, type]:
    return dict.fromkeys(names, ctypes.c_uint64)


Copies = _structure("Copies", **_numbers("count", "bytes", "largest"))
OfKinds = _structure("OfKinds", **dict.fromkeys(KINDS, Copies))
# As in stubcann.c.
Counters = _structure(
    "Counters",
    **_numbers("mallocs", "malloc_bytes", "largest_malloc", "frees"),
    queued=OfKinds,
    waiting=OfKinds,
    **_numbers("stream_syncs", "event_syncs", "device_syncs"),
    **_numbers("launches", "captures", "updates", "replays"),
)
counters = Counters.in_dll(LIBRARY, "stub_counters")


def reset() -> None:
    LIBRARY.stub_reset()


def log() -> list[str]:
    """Names of launches, copies, syncs and graph calls since reset(), in order."""
    length = ctypes.c_uint64.in_dll(LIBRARY, "stub_log_length").value
    assert length < _LOG_LENGTH, "the log is full"
    return [name.decode() for name in (ctypes.c_char_p * _LOG_LENGTH).in_dll(LIBRARY, "stub_log")[:length]]


def num_syncs() -> int:
    return counters.stream_syncs + counters.event_syncs + counters.device_syncs


@contextmanager
def open_memory() -> Iterator[None]:
    """Device memory can be read and written by the host."""
    LIBRARY.stub_open()
    try:
        yield
    finally:
        LIBRARY.stub_close()


# ---- graphs, for the simulation

REPLAY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def capturing() -> int | None:
    """The graph that is being captured."""
    return _pointer("stub_capturing")


def recording() -> int | None:
    """The group, of a graph, that what is launched now belongs to."""
    return _pointer("stub_recording")


def updating() -> int | None:
    """The group whose arguments are given anew by what is launched now."""
    return _pointer("stub_updating")


def call_on_replay(function: Any) -> None:
    """A REPLAY, which is called with the graph; the caller keeps it alive."""
    ctypes.c_void_p.in_dll(LIBRARY, "stub_replay").value = ctypes.cast(function, ctypes.c_void_p).value


def _pointer(name: str) -> int | None:
    return ctypes.c_void_p.in_dll(LIBRARY, name).value
