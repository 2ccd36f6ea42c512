# SPDX-License-Identifier: Apache-2.0
"""The operations a model is made of, by name and shape, and the choice of who computes them.

A backend is chosen once, at start. Knows tensors; does not know models, sequences or services.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

from torch import Tensor

from protos.errors import ConfigError

BACKENDS = ("reference",)


class Backend(Protocol):
    """What each backend offers. `reference` is the definition; the others are checked against it.

    N tokens, H query heads, K key heads, D head size, V vocabulary, S block size, B rows, M blocks a row.
    """

    @staticmethod
    def embed(table: Tensor, token_ids: Tensor) -> Tensor:
        """table [V, C], token_ids int32 [N] -> [N, C]."""

    @staticmethod
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [N, I], weight [O, I], bias [O] -> [N, O], of any strides."""

    @staticmethod
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension of x [..., C]; the product with weight [C] is made in the weight's type."""

    @staticmethod
    def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [N, H, D] turned by cos, sin [N, D]: dimension d pairs with d + D / 2."""

    @staticmethod
    def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Any) -> None:
        """k, v [N, K, D] into k_cache, v_cache [blocks, K, S, D] at the plan's slots, in place."""

    @staticmethod
    def attention_plan(
        slots: Tensor,
        block_tables: Tensor,
        offsets: tuple[int, ...],
        context_lens: tuple[int, ...],
        block_tokens: int,
        num_heads: int,
        num_kv_heads: int,
        window: int | None,
    ) -> Any:
        """What store_kv() and attention() of all layers with one window share in a step; only its own backend looks
        inside.

        Token n is stored at slots[n] (int64 [N]), block * S + place. Queries [offsets[i], offsets[i + 1]) are the last
        of the context_lens[i] tokens of row i, whose keys and values lie in the blocks block_tables[i] (int64 [B, M]).
        A query at position p sees those at (p - window, p], or [0, p] where window is None. Blocks of which no query
        of the row sees a token have any number, and what they hold changes nothing.
        """

    @staticmethod
    def attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Any, scale: float, cap: float | None) -> Tensor:
        """Causal attention of q [N, H, D] over the cached context -> [N, H, D].

        Scores are q * k * scale, then soft_cap() of that where cap is not None.
        """

    @staticmethod
    def silu_mul(gate_up: Tensor) -> Tensor:
        """silu(gate) * up of gate_up [N, 2 F] -> [N, F]."""

    @staticmethod
    def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
        """gelu(gate) * up of gate_up [N, 2 F] -> [N, F], with gelu's approximation by tanh."""

    @staticmethod
    def soft_cap(x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap) of x of any shape, float32."""


def load(name: str) -> Backend:
    """Raises ConfigError, naming what exists, where there is no such backend."""
    if name not in BACKENDS:
        raise ConfigError(f'kernels "{name}" do not exist ({", ".join(BACKENDS)})')
    return cast(Backend, importlib.import_module(f"kernels.{name}"))
