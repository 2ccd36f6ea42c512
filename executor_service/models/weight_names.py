# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a checkpoint make up each of a layer's weights, and their shapes.

The one place with a checkpoint's names. Knows no tensors.
"""

from __future__ import annotations

from executor_service.models.model_config import ModelConfig

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
# Ends the name of every norm, and of nothing else.
NORM_SUFFIX = "norm.weight"
# Ends of the names of buffers that old checkpoints carry: computed from the config here.
COMPUTED = (".rotary_emb.inv_freq",)
# The fields of LayerWeights that are int8 in a W8A8 checkpoint.
PRODUCTS = ("qkv", "output", "gate_up", "down")

Shape = tuple[int, ...]
# Tensors that lie one behind the other in one weight.
Parts = dict[str, Shape]


def layer_parts(config: ModelConfig, layer: int) -> dict[str, Parts]:
    """For each field of LayerWeights that the config has."""
    hidden, ffn, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
    qkv = {"self_attn.q_proj": q_size, "self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size}
    output = {"self_attn.o_proj": hidden}
    gate_up = {"mlp.gate_proj": ffn, "mlp.up_proj": ffn}
    down = {"mlp.down_proj": hidden}
    mlp_norm = "pre_feedforward_layernorm" if config.output_norms else "post_attention_layernorm"
    parts = {
        "input_norm": vectors({"input_layernorm": hidden}),
        "qkv": matrices(qkv, hidden),
        "output": matrices(output, q_size),
        "mlp_norm": vectors({mlp_norm: hidden}),
        "gate_up": matrices(gate_up, hidden),
        "down": matrices(down, ffn),
    }
    if config.qk_norm:
        parts |= {"q_norm": vectors({"self_attn.q_norm": head_dim}), "k_norm": vectors({"self_attn.k_norm": head_dim})}
    if config.output_norms:
        parts |= {
            "attention_output_norm": vectors({"post_attention_layernorm": hidden}),
            "mlp_output_norm": vectors({"post_feedforward_layernorm": hidden}),
        }
    if config.qkv_bias:
        parts |= {"qkv_bias": vectors(qkv, "bias")}
    if config.output_bias:
        parts |= {"output_bias": vectors(output, "bias")}
    if config.mlp_bias:
        parts |= {"gate_up_bias": vectors(gate_up, "bias"), "down_bias": vectors(down, "bias")}
    prefix = f"model.layers.{layer}."
    return {field: {prefix + name: shape for name, shape in named.items()} for field, named in parts.items()}


def vectors(sizes: dict[str, int], kind: str = "weight") -> Parts:
    return {f"{name}.{kind}": (size,) for name, size in sizes.items()}


def matrices(num_outputs: dict[str, int], num_inputs: int) -> Parts:
    return {f"{name}.weight": (size, num_inputs) for name, size in num_outputs.items()}


def scale_parts(weights: Parts) -> Parts:
    """The scales of int8 matrices, one for each output."""
    return {f"{name}_scale": (shape[0], 1) for name, shape in weights.items()}
