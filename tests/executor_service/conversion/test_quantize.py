# SPDX-License-Identifier: Apache-2.0
"""A model written again as W8A8: what is in it, that it loads, what is refused, and that it appears whole or not."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor

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


@pytest.mark.parametrize("section", [{}, {"quant_method": "gptq"}, []], ids=["empty", "other", "list"])
def test_a_section_that_load_does_not_read_is_refused_in_the_same_words(tmp_path: Path, section: Any) -> None:
    source = tmp_path / "source"
    write_model(source, random_config() | {"quantization_config": section}, random_tensors(random_config()))
    with pytest.raises(ConfigError, match=r"^config\.json: quantization_config") as by_load:
        load_decoder(source)
    with pytest.raises(ConfigError) as by_quantize:
        quantize(source, tmp_path / "target")
    assert str(by_quantize.value) == str(by_load.value)


UP_PROJ, EMBEDDING = "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"


def write_changed(directory: Path, changes: dict[str, Tensor | None], dtype: torch.dtype = torch.float32) -> Path:
    """A random model with tensors added or replaced, and those given as None left out."""
    config = random_config()
    tensors = random_tensors(config, dtype=dtype) | changes
    write_model(directory, config, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    return directory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({UP_PROJ: None}, f"tensor {UP_PROJ} is missing"),
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing"),
        ({"model.norm.weight": torch.zeros(3)}, "model.norm.weight has shape [3], the config asks [64]"),
        ({UP_PROJ: torch.zeros(96 * 64)}, f"{UP_PROJ} has shape [6144], the config asks [96, 64]"),
        ({UP_PROJ: torch.zeros(())}, f"{UP_PROJ} has shape [], the config asks [96, 64]"),
        ({UP_PROJ: torch.zeros(96, 64, dtype=torch.int8)}, f"{UP_PROJ} is stored as I8 (F32, BF16, F16 are read)"),
        ({EMBEDDING: torch.zeros(320, 64, dtype=torch.int32)}, f"{EMBEDDING} is stored as I32 (F32, BF16"),
        ({"extra": torch.zeros(())}, "tensor extra is not used by this config"),
        ({"extra": torch.zeros(0, 3)}, "tensor extra is not used by this config"),
        ({f"{UP_PROJ}_scale": torch.ones(96, 1)}, f"tensor {UP_PROJ}_scale is not used by this config"),
    ],
)
def test_a_source_that_does_not_load_is_refused_in_the_same_words(
    tmp_path: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    source = write_changed(tmp_path / "source", changes)
    with pytest.raises(ConfigError, match=re.escape(message)) as by_load:
        load_decoder(source)
    with pytest.raises(ConfigError) as by_quantize:
        quantize(source, tmp_path / "target")
    assert str(by_quantize.value) == str(by_load.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("shape", [(), (8,), (0, 3)])
def test_buffers_that_are_computed_are_left_out(tmp_path: Path, shape: tuple[int, ...]) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    quantize(write_changed(tmp_path / "source", {name: torch.zeros(shape)}), tmp_path / "target")
    assert_equal_tensors(tmp_path / "target", quantized_tensors(random_tensors(random_config())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", [UP_PROJ, EMBEDDING, "model.norm.weight"])
def test_values_that_are_no_numbers_are_refused_by_name_and_row(
    tmp_path: Path, name: str, value: float, dtype: torch.dtype
) -> None:
    tensor = random_tensors(random_config(), dtype=dtype)[name]
    tensor.view(len(tensor), -1)[[5, 8], -1] = value
    source = write_changed(tmp_path / "source", {name: tensor}, dtype)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'model.safetensors: {name} is not finite in row 5')}$"):
        quantize(source, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_links_are_followed_to_an_empty_directory_or_none(tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "source")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
        quantize(source, tmp_path / f"to-{name}")
        assert (tmp_path / f"to-{name}").is_symlink()
        assert (tmp_path / name / "model.safetensors").exists()


def test_targets_that_cannot_appear_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_random_model(tmp_path / "source")
    (tmp_path / "work" / "empty").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    Path("full").symlink_to(source)
    Path("loop").symlink_to("loop")
    Path("up").symlink_to("..")
    for target, message in {
        ".": "work: is the current directory",
        "new/..": "work: is the current directory",
        "new/../..": f"{tmp_path}: exists and is no empty directory",
        "up": f"{tmp_path}: exists and is no empty directory",
        "full": "source: exists and is no empty directory",
        "loop": "loop: is a symbolic link that leads to itself",
        "/": "/: is a mount point",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(message)):
            quantize(source, Path(target))
    monkeypatch.chdir("empty")
    with pytest.raises(ConfigError, match="empty: is the current directory"):
        quantize(source, Path("."))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from executor_service.conversion.quantize import main
main()
"""


@pytest.mark.parametrize("max_bytes", [10_000, 1_000_000], ids=["weights", "another file"])
def test_a_file_that_cannot_be_written_is_one_line_of_error_and_leaves_nothing(tmp_path: Path, max_bytes: int) -> None:
    source = write_random_model(tmp_path / "source")
    (source / "tokenizer.json").write_bytes(bytes(2_000_000))
    command = [sys.executable, "-B", "-c", LIMITED, str(max_bytes), str(source), str(tmp_path / "target")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert re.search("^Error: .*File too large", result.stderr, re.MULTILINE)
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
