# SPDX-License-Identifier: Apache-2.0
"""The paged cache: what is written to it, and causal attention over it, one routine for every number of queries.

Products have a fixed number of rows and contexts tiles of fixed length: a query's bits depend on its own context alone.
Computes in float32 whatever the cache holds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from kernels.reference.attention_plan import AttentionPlan, Tile
from kernels.reference.rowwise import rms_norm, rope, soft_cap
from kernels.reference.softmax import RunningSoftmax, product


def new_cache(
    num_blocks: int, block_tokens: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Each [blocks, K, S, D]. Not cleared: pages are taken from the system as they are written, and no operation reads
    an unwritten slot."""
    shape = (num_blocks, num_kv_heads, block_tokens, head_dim)
    return torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)


def rope_and_store(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: AttentionPlan,
) -> Tensor:
    num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    heads = qkv.contiguous().unflatten(1, (-1, head_dim))  # [N, H + 2 K, D]
    num_heads = heads.shape[1] - 2 * num_kv_heads
    qk, v = heads.split([num_heads + num_kv_heads, num_kv_heads], 1)
    if norms is not None:
        q, k = qk.split([num_heads, num_kv_heads], 1)
        qk = torch.cat((rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)), 1)
    turned = rope(qk, cos, sin)
    store_kv(turned[:, num_heads:], v, k_cache, v_cache, plan)
    return turned[:, :num_heads]


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan) -> None:
    """k, v [N, K, D]."""
    for new, cache in ((k, k_cache), (v, v_cache)):
        cache.view(-1, cache.shape[3]).index_copy_(0, plan.vectors, new.reshape(-1, cache.shape[3]))


def attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None
) -> Tensor:
    keys, values = (cache.view(-1, plan.piece_tokens * cache.shape[3]) for cache in (k_cache, v_cache))
    q = q.float() * scale
    out = torch.empty_like(q)
    for group in plan.groups:
        queries = q.unflatten(0, (-1, group.num_queries)) if group.tokens is None else q[group.tokens]  # [B, T, H, D]
        result = attend(queries, keys, values, group.tiles, k_cache.shape[1], cap)
        if group.tokens is None:
            return result.flatten(0, 1).to(k_cache.dtype)
        out[group.tokens] = result
    return out.to(k_cache.dtype)


def attend(q: Tensor, keys: Tensor, values: Tensor, tiles: list[Tile], num_kv_heads: int, cap: float | None) -> Tensor:
    """q [B, T, H, D], scaled -> [B, T, H, D] float32; keys and values are the caches seen as pieces."""
    queries = q.unflatten(2, (num_kv_heads, -1)).transpose(1, 2).flatten(2, 3)  # [B, K, T * H / K, D]
    softmax = None
    for tile in tiles:
        keys_read, values_read = read(keys, tile.pieces, q.shape[3]), read(values, tile.pieces, q.shape[3])
        scores = product(queries[: tile.pieces.shape[0]], keys_read.mT)  # [B', K, R, CONTEXT]
        if cap is not None:
            scores = soft_cap(scores, cap)
        if tile.is_hidden is not None:
            scores.masked_fill_(tile.is_hidden, -torch.inf)
        if tile.kept_bits is not None:
            # A weight of 0 would let through what an earlier sequence left there if it is not finite. By bits, which
            # is the fast way.
            values_read.view(torch.int32).bitwise_and_(tile.kept_bits)
        if softmax is None:
            softmax = RunningSoftmax(scores, values_read)
        else:
            softmax.add(scores, values_read)
    assert softmax is not None, "a row without context"
    result: Tensor = softmax.result().unflatten(2, (q.shape[1], -1)).transpose(1, 2).reshape(q.shape)
    return result


def read(cache: Tensor, pieces: Tensor, head_dim: int) -> Tensor:
    """pieces [B, K, P] of the cache -> [B, K, tokens, D] float32, a copy."""
    rows = embedding(pieces, cache)  # the fastest gather of rows
    return rows.view(*pieces.shape[:2], -1, head_dim).float()
