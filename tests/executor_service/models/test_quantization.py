# SPDX-License-Identifier: Apache-2.0
"""W8A8 checkpoints: which are read, what becomes of their tensors, and what their logits are."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from executor_service.models.config_value import ConfigValue
from executor_service.models.model_config import load_model_config
from executor_service.models.quantization import CONFIG, parse_quantization
from executor_service.models.weights import DecoderWeights, load_weights
from kernels.int8_weight import Int8Weight
from protos.errors import ConfigError
from tests.fixtures.decoding import CPU, Rows, load_decoder, logits_of
from tests.fixtures.quantized_model import naive_linear, quantized_tensors, write_quantized_model
from tests.fixtures.random_model import MODEL_TYPES, random_config, random_tensors, write_random_model

GROUP = "config_groups.group_0"
LAYER = "model.layers.0."
K_PROJ = f"{LAYER}self_attn.k_proj.weight"
TOKEN_IDS = list(range(0, 320, 11))


def parse(config: Any) -> str:
    return parse_quantization(ConfigValue("config.json", {"quantization_config": config})["quantization_config"])


def changed(key: str, value: Any) -> dict[str, Any]:
    """What is written, with one value at "a.b" another; ... takes it away."""
    config = copy.deepcopy(CONFIG)
    *path, last = key.split(".")
    inner = config
    for name in path:
        inner = inner[name]
    inner[last] = value
    if value is ...:
        del inner[last]
    return config


def load(directory: Path, dtype: torch.dtype = torch.float32) -> DecoderWeights:
    return load_weights(directory, load_model_config(directory), dtype, CPU)


class NaiveProducts:
    """Operations of a backend, with the products of int8 weights as the fixture writes them out."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ops, name)

    def linear(self, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
        return (naive_linear if isinstance(weight, Int8Weight) else self.ops.linear)(x, weight, bias)


# As llm-compressor writes it, every field of its own classes included.
ARGUMENTS = {"actorder": None, "block_structure": None, "group_size": None, "observer_kwargs": {}, "scale_dtype": None}
COMPRESSOR_CONFIG = {
    "config_groups": {
        "group_0": {
            "format": "int-quantized",
            "input_activations": ARGUMENTS
            | {"dynamic": True, "num_bits": 8, "observer": None, "strategy": "token", "symmetric": True, "type": "int"},
            "output_activations": None,
            "targets": ["Linear"],
            "weights": ARGUMENTS
            | {
                "dynamic": False,
                "num_bits": 8,
                "observer": "minmax",
                "strategy": "channel",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "format": "int-quantized",
    "global_compression_ratio": 1.24,
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "sparsity_config": {},
    "transform_config": {},
    "version": "0.12.2",
}


@pytest.mark.parametrize(
    ("config", "expected"), [(None, "none"), (CONFIG, "w8a8"), (COMPRESSOR_CONFIG, "w8a8")], ids=["no", "own", "full"]
)
def test_configs_that_are_read(config: dict[str, Any] | None, expected: str) -> None:
    assert parse(config) == expected


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("quant_method", "gptq", " is 'gptq', must be 'compressed-tensors'"),
        ("quant_method", ..., " is missing"),
        ("format", "pack-quantized", " is 'pack-quantized', must be 'int-quantized'"),
        ("ignore", [], r" is \[\], must be \['lm_head'\]"),
        ("ignore", ["lm_head", "model.layers.0.mlp.down_proj"], r" is .*, must be \['lm_head'\]"),
        ("ignore", ..., " is missing"),
        ("kv_cache_scheme", {"num_bits": 8}, " is {'num_bits': 8}, not understood"),
        ("sparsity_config", {"format": "dense"}, " is {'format': 'dense'}, not understood"),
        ("modules_to_not_convert", ["lm_head"], r" is \['lm_head'\], not understood"),
        ("config_groups", {}, " has 0 entries, must have 1"),
        ("config_groups", {"a": {}, "b": {}}, " has 2 entries, must have 1"),
        ("config_groups", ["group_0"], r" is \['group_0'\], must be an object"),
        (f"{GROUP}.targets", ["re:.*q_proj"], r" is \['re:.*q_proj'\], must be \['Linear'\]"),
        (f"{GROUP}.format", "pack-quantized", " is 'pack-quantized', must be 'int-quantized'"),
        (f"{GROUP}.output_activations", {"num_bits": 8}, " is .*, not understood"),
        (f"{GROUP}.input_activations", None, ".num_bits is missing"),
        (f"{GROUP}.input_activations.strategy", "tensor", " is 'tensor', must be 'token'"),
        (f"{GROUP}.input_activations.dynamic", False, " is False, must be True"),
        (f"{GROUP}.input_activations.symmetric", False, " is False, must be True"),
        (f"{GROUP}.weights.num_bits", 4, " is 4, must be 8"),
        (f"{GROUP}.weights.num_bits", 8.0, " is 8.0, must be 8"),
        (f"{GROUP}.weights.symmetric", 1, " is 1, must be True"),
        (f"{GROUP}.weights.dynamic", 0, " is 0, must be False"),
        (f"{GROUP}.weights.observer", 3, " is 3, not understood"),
        (f"{GROUP}.weights.observer_kwargs", "x", " is 'x', not understood"),
        ("quantization_status", 3, " is 3, not understood"),
        ("quantization_status", [], r" is \[\], not understood"),
        ("global_compression_ratio", True, " is True, not understood"),
        ("version", {}, " is {}, not understood"),
        (f"{GROUP}.weights.type", "float", " is 'float', must be 'int'"),
        (f"{GROUP}.weights.strategy", "group", " is 'group', must be 'channel'"),
        (f"{GROUP}.weights.group_size", 128, " is 128, not understood"),
        (f"{GROUP}.weights.actorder", "group", " is 'group', not understood"),
    ],
)
def test_what_is_not_read_is_named_with_its_value(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.json: quantization_config.{key}{message}$"):
        parse(changed(key, value))


def test_a_group_need_not_repeat_the_format() -> None:
    assert parse(changed(f"{GROUP}.format", ...)) == "w8a8"


def test_a_group_may_have_any_name() -> None:
    assert parse(changed("config_groups", {"int8": CONFIG["config_groups"]["group_0"]})) == "w8a8"


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parts_of_a_product_are_stacked_with_their_scales(tmp_path: Path, scale_dtype: torch.dtype) -> None:
    weights = load(write_quantized_model(tmp_path, scale_dtype=scale_dtype), torch.bfloat16)
    stored = quantized_tensors(random_tensors(random_config()), scale_dtype)
    for weight, names in [
        (weights.layers[0].qkv, ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        (weights.layers[0].gate_up, ["mlp.gate_proj", "mlp.up_proj"]),
        (weights.layers[0].down, ["mlp.down_proj"]),
    ]:
        assert isinstance(weight, Int8Weight)
        assert torch.equal(weight.values, torch.cat([stored[f"{LAYER}{name}.weight"] for name in names]))
        scales = torch.cat([stored[f"{LAYER}{name}.weight_scale"] for name in names])
        assert torch.equal(weight.scale, scales[:, 0].float())


def test_what_is_no_product_of_a_layer_stays_in_the_run_type(tmp_path: Path) -> None:
    weights = load(write_quantized_model(tmp_path), torch.bfloat16)
    others = (weights.embedding, weights.head, weights.norm, weights.layers[0].input_norm)
    assert {tensor.dtype for tensor in others} == {torch.bfloat16}


def test_a_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    weights = load(write_quantized_model(tmp_path, tie_word_embeddings=True))
    assert weights.head.data_ptr() == weights.embedding.data_ptr()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{K_PROJ}_scale": None}, f"tensor {K_PROJ}_scale is missing"),
        ({f"{K_PROJ}_scale": torch.ones(1)}, rf"{K_PROJ}_scale has shape \[1\], the config asks \[32, 1\]"),
        ({f"{K_PROJ}_zero_point": torch.zeros(32, 1)}, f"tensor {K_PROJ}_zero_point is not used"),
        ({K_PROJ: torch.zeros(32, 64)}, rf"{K_PROJ} is stored as F32 \(I8 are read\)"),
        ({"lm_head.weight": torch.zeros(320, 64, dtype=torch.int8)}, r"lm_head.weight is stored as I8 \(F32, BF16"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Tensor | None], message: str) -> None:
    write_quantized_model(tmp_path, changes=changes)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [0.0, -0.01, float("nan"), float("inf"), float("-inf")])
def test_a_scale_that_is_none_is_refused_by_name_and_row(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    scale = torch.ones(32, 1, dtype=dtype)
    scale[[7, 9]] = value
    write_quantized_model(tmp_path, changes={f"{K_PROJ}_scale": scale})
    message = f"model.safetensors: {K_PROJ}_scale is not above 0 and finite in row 7"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load(tmp_path)


def test_int8_weights_without_a_word_in_the_config_are_refused(tmp_path: Path) -> None:
    write_quantized_model(tmp_path, quantization_config=None)
    with pytest.raises(ConfigError, match=r"tensor .*weight_scale is not used"):
        load(tmp_path)


@pytest.mark.parametrize("architecture", MODEL_TYPES)
def test_logits_are_those_of_naive_products_and_near_those_of_floats(tmp_path: Path, architecture: str) -> None:
    decoder = load_decoder(write_quantized_model(tmp_path / "int8", architecture))
    logits = logits_of(decoder, TOKEN_IDS)
    expected = logits_of(load_decoder(write_random_model(tmp_path / "float", architecture)), TOKEN_IDS)
    error = ((logits - expected).square().mean() / expected.square().mean()).sqrt()
    assert 0 < error < 0.05
    decoder.ops = NaiveProducts(decoder.ops)
    assert torch.equal(logits_of(decoder, TOKEN_IDS), logits)


def test_logits_of_a_row_have_their_bits_in_any_company(tmp_path: Path) -> None:
    decoder = load_decoder(write_quantized_model(tmp_path))
    alone = logits_of(decoder, TOKEN_IDS)
    rows = Rows(decoder, 3)
    parts = [rows.forward({0: TOKEN_IDS[:7], 1: [5]}), rows.forward({2: TOKEN_IDS, 0: TOKEN_IDS[7:], 1: [6, 7]})]
    assert torch.equal(torch.cat([part[0] for part in parts]), alone)
