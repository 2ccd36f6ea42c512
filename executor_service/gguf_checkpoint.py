# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of the llama architecture, written again as a Hugging Face directory.

Answers for the names, the row order and the exact values of the weights, and for config.json. What it does not
understand in the file stops it by name. Knows no particular model, and neither the network nor a cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from safetensors.numpy import save_file

from executor_service.gguf_tokenizer import tokenizer_files
from protos.errors import ConfigError

Metadata = dict[str, Any]
# Called with the tensors done and all tensors.
Report = Callable[[int, int], None]

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "vocab_size",
}


def convert(gguf_path: Path, directory: Path, report: Report = lambda done, total: None) -> None:
    """Writes the checkpoint's files into ``directory``, which exists."""
    reader = GGUFReader(gguf_path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    tensors = float32_tensors(reader.tensors, metadata, report)
    config = model_config(metadata, is_tied="lm_head.weight" not in tensors)
    weights = directory / "model.safetensors"
    save_file(tensors, weights, {"format": "pt"})
    weights.chmod(0o644)  # safetensors writes for the owner alone
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", special_token_ids(metadata))
    for name, content in tokenizer_files(metadata).items():
        (directory / name).write_text(content, encoding="utf-8")


def write_json(path: Path, value: Metadata) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def model_config(metadata: Metadata, is_tied: bool) -> Metadata:
    llama = llama_metadata(metadata)
    num_heads = llama["attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": llama["vocab_size"],
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": llama.get("attention.head_count_kv", num_heads),
        "head_dim": llama["rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": shortest_decimal(llama["attention.layer_norm_rms_epsilon"]),
        "rope_theta": shortest_decimal(llama.get("rope.freq_base", 10000.0)),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_tied,
        "dtype": "float32",
        **special_token_ids(metadata),
    }


def llama_metadata(metadata: Metadata) -> Metadata:
    architecture = metadata["general.architecture"]
    if architecture != "llama":
        raise ConfigError(f"general.architecture={architecture}: only llama is converted")
    llama = {name.removeprefix("llama."): value for name, value in metadata.items() if name.startswith("llama.")}
    if unknown := sorted(llama.keys() - LLAMA_KEYS):
        raise ConfigError(f"llama.{unknown[0]}={llama[unknown[0]]}: not understood")
    return llama


def special_token_ids(metadata: Metadata) -> Metadata:
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    found = {ours: metadata.get(f"tokenizer.ggml.{theirs}") for ours, theirs in names.items()}
    return {name: token_id for name, token_id in found.items() if token_id is not None}


def shortest_decimal(value: float) -> float:
    """1e-05, where the file's float32 reads 9.999999747378752e-06 as a double."""
    return float(str(np.float32(value)))


def float32_tensors(
    tensors: list[ReaderTensor], metadata: Metadata, report: Report
) -> dict[str, npt.NDArray[np.float32]]:
    converted = {}
    for done, tensor in enumerate(tensors, start=1):
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if num_heads := num_rotated_heads(tensor.name, metadata):
            values = unpermute(values, num_heads)
        converted[tensor_name(tensor.name)] = np.ascontiguousarray(values)
        report(done, len(tensors))
    return converted


def tensor_name(name: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
    raise ConfigError(f"tensor {name}: not understood")


def num_rotated_heads(name: str, metadata: Metadata) -> int:
    """Heads of a query or key projection; 0 for every other tensor."""
    num_heads = int(metadata["llama.attention.head_count"])
    if name.endswith(".attn_q.weight"):
        return num_heads
    return int(metadata.get("llama.attention.head_count_kv", num_heads)) if name.endswith(".attn_k.weight") else 0


def unpermute(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """llama.cpp rotates neighbouring rows of a head, Hugging Face rows half a head apart."""
    pairs = values.reshape(num_heads, -1, 2, values.shape[1])  # [H, D / 2, 2, hidden]
    return pairs.swapaxes(1, 2).reshape(values.shape)
