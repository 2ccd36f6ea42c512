# SPDX-License-Identifier: Apache-2.0
"""A GGUF file written again as a Hugging Face directory.

Answers for the names, the row order and the exact values of the weights, and for config.json. What it does not
understand in the file stops it by name. Knows no particular model, and neither the network nor a cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from safetensors.numpy import save_file

from executor_service.conversion.gguf_architectures import TOP_NAMES, Architecture, Metadata, architecture_of
from executor_service.conversion.gguf_tokenizer import tokenizer_files
from protos.errors import ConfigError

Tensors = dict[str, npt.NDArray[np.float32]]
# Called with the tensors done and all tensors.
Report = Callable[[int, int], None]


def convert(gguf_path: Path, directory: Path, report: Report = lambda done, total: None) -> None:
    """Writes the checkpoint's files into ``directory``, which exists."""
    reader = GGUFReader(gguf_path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture, own = architecture_of(metadata)
    tensors = float32_tensors(reader.tensors, architecture, own, report)
    config = model_config(metadata, architecture, own, tensors)
    weights = directory / "model.safetensors"
    save_file(tensors, weights, {"format": "pt"})
    weights.chmod(0o644)  # safetensors writes for the owner alone
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", special_token_ids(metadata))
    for name, content in tokenizer_files(metadata).items():
        (directory / name).write_text(content, encoding="utf-8")


def write_json(path: Path, value: Metadata) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def model_config(metadata: Metadata, architecture: Architecture, own: Metadata, tensors: Tensors) -> Metadata:
    given = {architecture.keys[key]: value for key, value in own.items()}
    config = architecture.config | {
        key: shortest_decimal(value) if isinstance(value, float) else value for key, value in given.items() if key
    }
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    return config | {
        "vocab_size": len(tensors["model.embed_tokens.weight"]),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "dtype": "float32",
        **special_token_ids(metadata),
    }


def special_token_ids(metadata: Metadata) -> Metadata:
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    found = {ours: metadata.get(f"tokenizer.ggml.{theirs}") for ours, theirs in names.items()}
    return {name: token_id for name, token_id in found.items() if token_id is not None}


def shortest_decimal(value: float) -> float:
    """1e-05, where the file's float32 reads 9.999999747378752e-06 as a double."""
    return float(str(np.float32(value)))


def float32_tensors(tensors: list[ReaderTensor], architecture: Architecture, own: Metadata, report: Report) -> Tensors:
    converted = {}
    for done, tensor in enumerate(tensors, start=1):
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if architecture.permutes_heads and (num_heads := num_rotated_heads(tensor.name, own)):
            values = unpermute(values, num_heads)
        if architecture.adds_one_to_norms and tensor.name.endswith("_norm.weight"):
            values = values - 1
        converted[tensor_name(tensor.name, architecture)] = np.ascontiguousarray(values)
        report(done, len(tensors))
    return converted


def tensor_name(name: str, architecture: Architecture) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in architecture.layer_names:
            return f"model.layers.{layer}.{architecture.layer_names[part]}.weight"
    raise ConfigError(f"tensor {name}: not understood")


def num_rotated_heads(name: str, own: Metadata) -> int:
    """Heads of a query or key projection; 0 for every other tensor."""
    num_heads = int(own["attention.head_count"])
    if name.endswith(".attn_q.weight"):
        return num_heads
    return int(own.get("attention.head_count_kv", num_heads)) if name.endswith(".attn_k.weight") else 0


def unpermute(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """llama.cpp rotates neighbouring rows of a head, Hugging Face rows half a head apart."""
    pairs = values.reshape(num_heads, -1, 2, values.shape[1])  # [H, D / 2, 2, hidden]
    return pairs.swapaxes(1, 2).reshape(values.shape)
