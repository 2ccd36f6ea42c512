# SPDX-License-Identifier: Apache-2.0
"""The operations a model is made of, by name and shape, and the choice of who computes them.

A backend is chosen once, at start. Knows tensors; does not know models, sequences or services.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from kernels.int8_weight import Int8Weight
from kernels.paged_rows import PagedRows
from kernels.sampling_rows import SamplingRows
from protos.errors import ConfigError

# By the type of device that each is the natural one of.
OF_DEVICE = {"cpu": "reference", "cuda": "triton", "npu": "npu"}
BACKENDS = ("auto", *OF_DEVICE.values())


@dataclass(frozen=True)
class Shape:
    """What a backend has to know of a model before it takes it on. H query heads, K key heads, D head size, S tokens a
    block; windows: those of its layers that have one; has_cap: attention scores are bounded."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: torch.dtype
    windows: tuple[int, ...] = ()
    has_cap: bool = False
    is_quantized: bool = False


class Backend(Protocol):
    """What each backend offers. `reference` is the definition; the others are checked against it.

    N tokens, H query heads, K key heads, D head size, V vocabulary, S block size, B rows, M blocks a row. No operation
    waits for the device.
    """

    # Whether a decode step can be captured as a device graph.
    can_graph: bool

    # ---- weights and cache, once

    def pack_weight(self, weight: Tensor | Int8Weight) -> Any:
        """A weight [O, I] in the form that linear() of this backend takes; gives up nothing of its values."""

    def new_cache(
        self,
        num_blocks: int,
        block_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> tuple[Tensor, Tensor]:
        """K and V of one layer, in the backend's own layout."""

    # ---- of each token by itself

    def embed(self, table: Tensor, token_ids: Tensor, scale: float) -> Tensor:
        """table [V, C], token_ids int32 [N] -> [N, C], rows of the table times scale."""

    def embed_rms_norm(
        self, table: Tensor, token_ids: Tensor, scale: float, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """x = embed(), and rms_norm() of it."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension of x [..., C]; the product with weight [C] is made in the weight's type."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x + residual, and rms_norm() of that sum. Either argument may be overwritten."""

    def linear(self, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
        """x [N, I], weight [O, I] as pack_weight() made it, bias [O] -> [N, O], of any strides."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of gate_up [N, 2 F] -> [N, F]."""

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """gelu(gate) * up of gate_up [N, 2 F] -> [N, F], with gelu's approximation by tanh."""

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap) of x of any shape, float32."""

    # ---- attention

    def attention_plan(
        self, rows: PagedRows, block_tokens: int, num_heads: int, num_kv_heads: int, window: int | None
    ) -> Any:
        """What rope_and_store() and attention() of all layers with one window share in a step; only its own backend
        looks inside. A query at position p sees those at (p - window, p], or [0, p] where window is None."""

    def rope_and_store(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        plan: Any,
    ) -> Tensor:
        """Queries [N, H, D] ready for attention(), of qkv [N, (H + 2 K) D]; keys and values are stored at the plan's
        slots.

        norms: weights [D] of rms_norm() over each head of the queries and of the keys. Then queries and keys are turned
        by cos, sin [N, D]: dimension d pairs with d + D / 2. qkv may be overwritten.
        """

    def attention(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Any, scale: float, cap: float | None
    ) -> Tensor:
        """Causal attention of q [N, H, D] over the cached context -> [N, H, D].

        Scores are q * k * scale, then soft_cap() of that where cap is not None.
        """

    def graph_update(self, context_lens: tuple[int, ...]) -> list[dict[str, Any]]:
        """What of a captured decode step changes from replay to replay on the host's side, in the device graph's own
        terms: empty where the operations read lengths on the device."""

    # ---- sampling

    def choose(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """int32 [R]: the id that each row draws from logits, float32 [R, V], after penalties, bias and limits, or
        NOTHING_ALLOWED where no logit is above -inf. Of equal logits a greedy row takes the first. A row that holds a
        NaN or an inf gets any id. logits may be overwritten."""

    def score(self, logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Natural logarithms of token_ids' (int32 [k]) probabilities, float32 [k]; the num_top likeliest ids in the
        place of each, int32 [k, n], likeliest first, of equals the lower id first; and theirs, float32 [k, n]. Of raw
        logits, float32 [k, V], k > 0; n is V where V is less."""


def load(name: str, device: torch.device, shape: Shape) -> Backend:
    """name "auto": the device's own. Raises ConfigError where there is no such backend, or it does not take the model,
    naming what it would take."""
    if name not in BACKENDS:
        raise ConfigError(f'kernels "{name}" do not exist ({", ".join(BACKENDS)})')
    name = OF_DEVICE[device.type] if name == "auto" else name
    if name == "npu" != device.type:
        raise ConfigError(f'kernels "npu" run on an Ascend NPU, not on {device}')
    try:
        module = importlib.import_module(f"kernels.{name}")
    except ImportError as error:
        raise ConfigError(f'kernels "{name}" cannot be loaded: {error}') from error
    return cast(Backend, module.load(device, shape))
