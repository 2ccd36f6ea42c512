# SPDX-License-Identifier: Apache-2.0
"""A model written again as W8A8: what is in it, that it loads, what is refused, and that it appears whole or not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from executor_service.conversion import quantize as module
from executor_service.conversion.quantize import main, quantize
from executor_service.models.checkpoint import INDEX_FILE
from executor_service.models.model_config import load_model_config
from protos.errors import ConfigError
from tests.fixtures.decoding import load_decoder, logits_of
from tests.fixtures.quantized_model import quantized_tensors, write_quantized_model
from tests.fixtures.random_model import MODEL_TYPES, random_config, random_tensors, write_model, write_random_model

TOKEN_IDS = list(range(0, 320, 17))


def assert_equal_tensors(directory: Path, expected: dict[str, torch.Tensor]) -> None:
    found = {}
    for path in directory.glob("*.safetensors"):
        found |= load_file(path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_become_integers_and_all_else_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    source = write_random_model(tmp_path / "source", dtype=dtype, attention_bias=True)
    quantize(source, tmp_path / "target")
    tensors = random_tensors(random_config(attention_bias=True), dtype=dtype)
    assert_equal_tensors(tmp_path / "target", quantized_tensors(tensors))
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("source", "target"))
    assert after.pop("quantization_config")["quant_method"] == "compressed-tensors"
    assert after == before


def test_other_files_are_copied_and_other_weights_are_not(tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "source")
    (tmp_path / "blob").write_text("{}")
    (source / "tokenizer.json").symlink_to(tmp_path / "blob")
    (source / "chat_template.jinja").write_text("template")
    (source / "pytorch_model.bin").write_text("weights")
    (source / "model-old.safetensors").write_text("weights")
    (source / "onnx").mkdir()
    quantize(source, tmp_path / "target")
    names = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    assert {path.name for path in (tmp_path / "target").iterdir()} == names
    assert not (tmp_path / "target" / "tokenizer.json").is_symlink()
    assert (tmp_path / "target" / "model.safetensors").stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize("architecture", MODEL_TYPES)
def test_what_is_written_is_read(tmp_path: Path, architecture: str) -> None:
    source = write_random_model(tmp_path / "source", architecture)
    quantize(source, tmp_path / "target")
    assert load_model_config(tmp_path / "target").quantization == "w8a8"
    expected = load_decoder(write_quantized_model(tmp_path / "naive", architecture))
    assert torch.equal(logits_of(load_decoder(tmp_path / "target"), TOKEN_IDS), logits_of(expected, TOKEN_IDS))


def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SHARD_BYTES", 60_000)
    source = write_random_model(tmp_path / "source", shards=3)
    quantize(source, tmp_path / "target")
    tensors = quantized_tensors(random_tensors(random_config()))
    assert_equal_tensors(tmp_path / "target", tensors)
    index = json.loads((tmp_path / "target" / INDEX_FILE).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    shards = [sum(t.nbytes for t in load_file(path).values()) for path in (tmp_path / "target").glob("*.safetensors")]
    # Embedding and head are larger alone.
    assert len(shards) > 3
    assert sorted(shards)[:-2] == [size for size in sorted(shards) if size <= 60_000]
    logits_of(load_decoder(tmp_path / "target"), TOKEN_IDS)


def test_a_tied_head_that_the_file_repeats_is_kept(tmp_path: Path) -> None:
    config = random_config(tie_word_embeddings=True)
    tensors = random_tensors(config)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    write_model(tmp_path / "source", config, tensors)
    quantize(tmp_path / "source", tmp_path / "target")
    assert_equal_tensors(tmp_path / "target", quantized_tensors(tensors))


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    quantize(write_random_model(tmp_path / "source"), tmp_path / "target", lambda *numbers: seen.append(numbers))
    total = sum(tensor.nbytes for tensor in random_tensors(random_config()).values())
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


def test_a_target_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    source, target = write_random_model(tmp_path / "source"), tmp_path / "target"
    target.mkdir()
    (target / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="target: exists and is no empty directory"):
        quantize(source, target)
    with pytest.raises(ConfigError, match="notes: exists and is no empty directory"):
        quantize(source, target / "notes")
    assert [path.name for path in target.iterdir()] == ["notes"]


def test_an_empty_target_is_filled(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    quantize(write_random_model(tmp_path / "source"), tmp_path / "target")
    assert (tmp_path / "target" / "model.safetensors").exists()


def test_a_source_without_a_config_is_refused(tmp_path: Path) -> None:
    (write_random_model(tmp_path / "source") / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"source: has no config\.json"):
        quantize(tmp_path / "source", tmp_path / "target")


def test_a_quantized_source_is_refused(tmp_path: Path) -> None:
    source = write_quantized_model(tmp_path / "source")
    with pytest.raises(ConfigError, match=r"source: quantized already: {.*compressed-tensors"):
        quantize(source, tmp_path / "target")


def test_weights_that_are_no_floats_are_named(tmp_path: Path) -> None:
    source = write_quantized_model(tmp_path / "source", quantization_config=None)
    with pytest.raises(ConfigError, match=r"model\.safetensors: .*q_proj\.weight is I8, not F32, BF16, F16"):
        quantize(source, tmp_path / "target")


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    config, name = random_config(), "model.layers.1.mlp.up_proj.weight"
    tensors = random_tensors(config)
    del tensors[name]
    write_model(tmp_path / "source", config, tensors)
    with pytest.raises(ConfigError, match=f"tensor {name} is missing"):
        quantize(tmp_path / "source", tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(write_random_model(tmp_path / "source"), tmp_path / "target", stop)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


KILLED_AT_THE_INDEX = """
import os, signal, sys
from pathlib import Path
from executor_service.conversion import quantize as module
module.MAX_SHARD_BYTES = 60_000
module.write_json = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
module.quantize(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_kill_in_the_middle_leaves_no_target_and_the_next_run_makes_it(tmp_path: Path) -> None:
    source, target = write_random_model(tmp_path / "source"), tmp_path / "target"
    command = [sys.executable, "-c", KILLED_AT_THE_INDEX, str(source), str(target)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert not target.exists()
    quantize(source, target)
    assert_equal_tensors(target, quantized_tensors(random_tensors(random_config())))


def test_the_program_prints_the_target_or_one_line_of_error(tmp_path: Path) -> None:
    arguments = [str(write_random_model(tmp_path / "source")), str(tmp_path / "target")]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'target'}\n")
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "Error:" in result.stderr.splitlines()[-1]
    assert "exists and is no empty directory" in result.stderr
