# SPDX-License-Identifier: Apache-2.0
"""From a layer's qkv product to queries ready for attention, and to keys and values in the cache, in one kernel.

The cache is [blocks, S, K, D]: a slot's number is its place. Does not know attention.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.cores import Cores, power_of_two

# Of each head: halves of it, of its weight, cos, sin, and the results.
_LIVE_TILES = 12
_MAX_HEADS = 16


@triton.jit
def normed(first, second, weight, eps, HALF: tl.constexpr, TILE_HALF: tl.constexpr):
    """RMS norm over heads in two halves, each float32 [heads, TILE_HALF]."""
    inverse = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
    place = tl.arange(0, TILE_HALF)
    low = tl.load(weight + place, mask=place < HALF, other=0.0).to(tl.float32)
    high = tl.load(weight + HALF + place, mask=place < HALF, other=0.0).to(tl.float32)
    return first * inverse * low[None, :], second * inverse * high[None, :]


@triton.jit(do_not_specialize=["num_tokens"])
def rope_and_store_heads(
    qkv, q_weight, k_weight, cos, sin, slots, q_out, k_cache, v_cache, num_tokens, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    TILE_HEADS: tl.constexpr, TILE_HALF: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """An item is TILE_HEADS of a token's heads: queries, then keys, then values."""
    all_heads: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    num_tiles: tl.constexpr = (all_heads + TILE_HEADS - 1) // TILE_HEADS
    for item in range(tl.program_id(0), num_tokens * num_tiles, tl.num_programs(0)):
        token = tl.cast(item // num_tiles, tl.int64)
        head = (item % num_tiles * TILE_HEADS + tl.arange(0, TILE_HEADS))[:, None]  # [heads, 1]
        place = tl.arange(0, TILE_HALF)[None, :]
        is_inside = (head < all_heads) & (place < HALF)
        is_q, is_k = head < NUM_HEADS, (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
        source = qkv + token * (all_heads * 2 * HALF) + head * (2 * HALF) + place
        first = tl.load(source, mask=is_inside, other=0.0).to(tl.float32)
        second = tl.load(source + HALF, mask=is_inside, other=0.0).to(tl.float32)
        slot = tl.cast(tl.load(slots + token), tl.int64) * (NUM_KV_HEADS * 2 * HALF)

        v_target = v_cache + slot + (head - NUM_HEADS - NUM_KV_HEADS) * (2 * HALF) + place
        is_v = is_inside & (head >= NUM_HEADS + NUM_KV_HEADS)
        tl.store(v_target, first, mask=is_v)
        tl.store(v_target + HALF, second, mask=is_v)

        if HAS_NORMS:
            q_first, q_second = normed(first, second, q_weight, eps, HALF, TILE_HALF)
            k_first, k_second = normed(first, second, k_weight, eps, HALF, TILE_HALF)
            first, second = tl.where(is_q, q_first, k_first), tl.where(is_q, q_second, k_second)
        low, high = token * (2 * HALF), token * (2 * HALF) + HALF
        is_pair = place < HALF
        first_cos = tl.load(cos + low + place, mask=is_pair, other=0.0).to(tl.float32)
        second_cos = tl.load(cos + high + place, mask=is_pair, other=0.0).to(tl.float32)
        first_sin = tl.load(sin + low + place, mask=is_pair, other=0.0).to(tl.float32)
        second_sin = tl.load(sin + high + place, mask=is_pair, other=0.0).to(tl.float32)
        first_out = first * first_cos - second * first_sin
        second_out = second * second_cos + first * second_sin

        q_target = q_out + token * (NUM_HEADS * 2 * HALF) + head * (2 * HALF) + place
        tl.store(q_target, first_out, mask=is_inside & is_q)
        tl.store(q_target + HALF, second_out, mask=is_inside & is_q)
        k_target = k_cache + slot + (head - NUM_HEADS) * (2 * HALF) + place
        tl.store(k_target, first_out, mask=is_inside & is_k)
        tl.store(k_target + HALF, second_out, mask=is_inside & is_k)


def rope_and_store(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    cores: Cores,
) -> Tensor:
    num_tokens = qkv.shape[0]
    num_kv_heads, head_dim = k_cache.shape[2:]
    all_heads = qkv.shape[1] // head_dim
    q = qkv.new_empty(num_tokens, all_heads - 2 * num_kv_heads, head_dim)  # [N, H, D]
    q_weight, k_weight = norms or (qkv, qkv)  # not looked at where there are none
    tile_half = power_of_two(head_dim // 2)
    tile_heads = min(_MAX_HEADS, cores.tile(all_heads, _LIVE_TILES * tile_half))
    rope_and_store_heads[cores.grid(num_tokens * -(-all_heads // tile_heads))](
        qkv.contiguous(),
        q_weight,
        k_weight,
        cos.contiguous(),
        sin.contiguous(),
        slots,
        q,
        k_cache,
        v_cache,
        num_tokens,
        eps,
        NUM_HEADS=q.shape[1],
        NUM_KV_HEADS=num_kv_heads,
        HALF=head_dim // 2,
        TILE_HEADS=tile_heads,
        TILE_HALF=tile_half,
        HAS_NORMS=norms is not None,
        enable_fp_fusion=True,
    )
    return q
