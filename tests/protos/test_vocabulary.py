# SPDX-License-Identifier: Apache-2.0
"""The bytes of each id, from every kind of tokenizer file."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from protos.errors import ConfigError, InvalidRequest
from protos.vocabulary import SPM_DECODER, SPM_STRIP_DECODER, Vocabulary
from tests.fixtures import byte_tokenizer as fx_byte
from tests.fixtures import spm_tokenizer as fx_spm


def write_tokenizer_json(
    directory: Path, decoder: Any, tokens: list[str], added: Sequence[dict[str, Any]] = ()
) -> Path:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    document = {"decoder": decoder, "model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": list(added)}
    (directory / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    return directory


def test_byte_level_pieces_are_bytes_and_added_content(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(fx_byte.write_byte_tokenizer(tmp_path))
    assert vocabulary.pieces[:256] == tuple(bytes([i]) for i in range(256))
    assert vocabulary.pieces[fx_byte.BOS] == b"<|bos|>"
    assert vocabulary.pieces[fx_byte.THINK] == b"<think>"
    assert vocabulary.special_token_ids == {fx_byte.BOS, fx_byte.END, fx_byte.IM_START, fx_byte.IM_END}
    assert not vocabulary.strips_leading_space
    assert len(vocabulary) == fx_byte.NUM_PIECES


def test_spm_pieces_have_spaces_and_bytes(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(fx_spm.write_spm_tokenizer(tmp_path))
    assert vocabulary.pieces[fx_spm.FIRST_BYTE + 0xE4] == b"\xe4"
    assert vocabulary.pieces[fx_spm.spm_token_id("▁Hello")] == b" Hello"
    assert vocabulary.special_token_ids == {0, 1, 2}
    assert vocabulary.strips_leading_space


def test_ids_without_text_are_empty_and_negative_ids_refused(tmp_path: Path) -> None:
    added = [{"id": 3, "content": "é<x>", "special": False}]
    vocabulary = Vocabulary.load(write_tokenizer_json(tmp_path, {"type": "ByteLevel"}, ["a"], added))
    assert vocabulary.pieces == (b"a", b"", b"", "é<x>".encode())
    assert vocabulary.piece(300) == b""
    with pytest.raises(InvalidRequest, match="-1"):
        vocabulary.piece(-1)


@pytest.mark.parametrize(
    ("decoder", "strips"),
    [
        ({"type": "Sequence", "decoders": SPM_DECODER}, False),
        ({"type": "Sequence", "decoders": SPM_STRIP_DECODER}, True),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, True),
        ({"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}, True),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, False),
    ],
)
def test_space_marks_become_spaces(tmp_path: Path, decoder: Any, strips: bool) -> None:
    vocabulary = Vocabulary.load(write_tokenizer_json(tmp_path, decoder, ["▁a▁b", "<0xE4>"]))
    assert vocabulary == Vocabulary((b" a b", b"\xe4"), frozenset(), strips)


def test_unigram_ids_are_places(tmp_path: Path) -> None:
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁a", -1.0]]}
    document = {"decoder": {"type": "Metaspace", "replacement": "▁"}, "model": model, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    assert Vocabulary.load(tmp_path).pieces == (b"<unk>", b" a")


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        ({"type": "Sequence", "decoders": [*SPM_DECODER, {"type": "Strip", "content": " ", "start": 2}]}, "Strip"),
        ({"type": "Metaspace", "replacement": "_"}, "Metaspace"),
        (None, "null"),
    ],
)
def test_other_decoders_are_refused_by_name(tmp_path: Path, decoder: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Vocabulary.load(write_tokenizer_json(tmp_path, decoder, ["a"]))


def test_directory_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        Vocabulary.load(tmp_path)


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{", "utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: not JSON"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"decoder": null}', "utf-8")
    with pytest.raises(ConfigError, match="decoder"):
        Vocabulary.load(tmp_path)


def test_sentencepiece_model_and_tokens_added_beside_it(tmp_path: Path) -> None:
    plain = Vocabulary.load(fx_spm.write_sentencepiece_model(tmp_path / "plain"))
    added = {str(len(plain) + 1): {"content": "<tool>", "special": True}}
    vocabulary = Vocabulary.load(fx_spm.write_sentencepiece_model(tmp_path / "added", added_tokens_decoder=added))
    model = SentencePieceProcessor(model_file=str(tmp_path / "plain" / "tokenizer.model"))
    assert b"".join(map(plain.piece, model.encode("Hello world é"))) == " Hello world é".encode()
    assert plain.pieces[model.piece_to_id("<0xE4>")] == b"\xe4"
    assert plain.special_token_ids == {0, 1, 2}
    assert plain.strips_leading_space
    assert vocabulary.strips_leading_space
    assert vocabulary.pieces == (*plain.pieces, b"", b"<tool>")
    assert vocabulary.special_token_ids == {0, 1, 2, len(plain) + 1}


def test_digest_is_stable_across_processes_and_covers_every_field(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(fx_byte.write_byte_tokenizer(tmp_path))
    script = (
        "import sys, pathlib, protos.vocabulary as v; print(v.Vocabulary.load(pathlib.Path(sys.argv[1])).sha256);"
        "assert 'tokenizers' not in sys.modules"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", script, str(tmp_path)]
        output = subprocess.check_output(command, env=os.environ | {"PYTHONHASHSEED": seed}, text=True)
        assert output.strip() == vocabulary.sha256
    pieces, special = vocabulary.pieces, vocabulary.special_token_ids
    others = [
        Vocabulary((*pieces, b""), special, False),
        Vocabulary((b"ab", b"", *pieces[2:]), special, False),
        Vocabulary((b"a", b"b", *pieces[2:]), special, False),
        Vocabulary(pieces, special - {256}, False),
        Vocabulary(pieces, special, True),
    ]
    assert len({vocabulary.sha256, *(other.sha256 for other in others)}) == 6


def test_pieces_join_to_what_the_library_decodes(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(fx_spm.write_spm_tokenizer(tmp_path, bos=False))
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    token_ids = library.encode("Hello world 섬 now").ids
    assert b"".join(vocabulary.piece(i) for i in token_ids).decode() == " " + library.decode(token_ids)
