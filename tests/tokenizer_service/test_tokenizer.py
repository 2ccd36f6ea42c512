# SPDX-License-Identifier: Apache-2.0
"""Text to ids by both libraries, from many threads, and without the lengths that files were saved with."""

import threading
import time
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor

from protos.errors import ConfigError
from tests.fixtures import byte_tokenizer as fx_byte
from tests.fixtures import spm_tokenizer as fx_spm
from tokenizer_service.chat import ChatTemplate
from tokenizer_service.detokenizer import Detokenizer
from tokenizer_service.tokenizer import Tokenizer, load_tokenizer


def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    (row,) = tokenizer.encode_batch([text], add_special_tokens)
    assert row.dtype.name == "int32"
    return row.tolist()


def test_rows_follow_their_texts(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(fx_byte.write_byte_tokenizer(tmp_path))
    rows = tokenizer.encode_batch(["ab", "", "c"], True)
    assert [row.tolist() for row in rows] == [[97, 98], [], [99]]
    assert tokenizer.encode_batch([], True) == []


def test_b16_plain_text_gets_one_bos_and_a_rendered_chat_none_beside_its_own(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    directory = fx_byte.write_byte_tokenizer(tmp_path, bos=True, chat_template=template)
    tokenizer, chat = load_tokenizer(directory), ChatTemplate.load(directory)
    assert chat is not None
    assert encode(tokenizer, "a") == [fx_byte.BOS, 97]
    assert encode(tokenizer, "") == [fx_byte.BOS]
    rendered = chat.render([{"role": "user", "content": "a"}])
    assert encode(tokenizer, rendered, add_special_tokens=False) == [fx_byte.BOS, 97]


def test_spelling_of_a_control_token_is_that_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(fx_byte.write_byte_tokenizer(tmp_path))
    assert encode(tokenizer, "a<|end|>b,c") == [97, fx_byte.END, fx_byte.B_COMMA_C]


def test_b59_saved_truncation_and_padding_are_off(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(fx_byte.write_byte_tokenizer(tmp_path, bos=True, max_length=8))
    rows = tokenizer.encode_batch(["a" * 50, "a"], True)
    assert [len(row) for row in rows] == [51, 2]


def test_spm_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(fx_spm.write_spm_tokenizer(tmp_path))
    hello, world = fx_spm.spm_token_id("▁Hello"), fx_spm.spm_token_id("▁world")
    assert encode(tokenizer, "Hello world") == [fx_spm.BOS, hello, world]
    assert encode(tokenizer, "섬")[-3:] == [fx_spm.FIRST_BYTE + byte for byte in "섬".encode()]


def test_sentencepiece_model_encodes_and_comes_back(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(fx_spm.write_sentencepiece_model(tmp_path))
    model = SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    text = "Hello lone 섬 wolf"
    assert encode(tokenizer, text) == [model.bos_id(), *model.encode(text)]
    assert encode(tokenizer, text, add_special_tokens=False) == model.encode(text)
    detokenizer = Detokenizer(tokenizer.vocabulary)
    assert detokenizer.push(encode(tokenizer, text)) + detokenizer.finish() == text == model.decode(model.encode(text))


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (False, True), (False, False)])
def test_sentencepiece_begin_and_end_follow_the_config(tmp_path: Path, bos: bool, eos: bool) -> None:
    directory = fx_spm.write_sentencepiece_model(tmp_path, add_bos_token=bos, add_eos_token=eos)
    row = encode(load_tokenizer(directory), "Hello")
    assert (row[0] == fx_spm.BOS, row[-1] == fx_spm.EOS) == (bos, eos)


def test_sentencepiece_finds_control_and_added_spellings(tmp_path: Path) -> None:
    size = len(load_tokenizer(fx_spm.write_sentencepiece_model(tmp_path / "plain")).vocabulary)
    added = {str(size): {"content": "<tool>"}, str(size + 1): {"content": "<tool>s"}}
    directory = fx_spm.write_sentencepiece_model(tmp_path / "added", added_tokens_decoder=added)
    tokenizer = load_tokenizer(directory)
    hello = encode(tokenizer, "Hello", add_special_tokens=False)
    row = encode(tokenizer, "<s>Hello<tool><tool>s</s>", add_special_tokens=False)
    assert row == [fx_spm.BOS, *hello, size, size + 1, fx_spm.EOS]


def test_sentencepiece_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    added = {"400": {"content": "<mask>", "lstrip": True}}
    with pytest.raises(ConfigError, match="<mask>"):
        load_tokenizer(fx_spm.write_sentencepiece_model(tmp_path, added_tokens_decoder=added))


def test_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(
        '{"decoder": {"type": "ByteLevel"}, "model": {"vocab": {}}, "added_tokens": []}', "utf-8"
    )
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_b50_many_threads_share_one_tokenizer(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    directory = fx_byte.write_byte_tokenizer(tmp_path, bos=True, chat_template=template, max_length=8)
    tokenizer, chat = load_tokenizer(directory), ChatTemplate.load(directory)
    assert chat is not None
    failures: list[str] = []
    end = time.monotonic() + 2

    def use(text: str) -> None:
        while time.monotonic() < end:
            rendered = chat.render([{"role": "user", "content": text}])
            rows = tokenizer.encode_batch([rendered, text], add_special_tokens=True)
            short = tokenizer.encode_batch([text], add_special_tokens=False)
            detokenizer = Detokenizer(tokenizer.vocabulary)
            texts = detokenizer.push(rows[0]) + detokenizer.finish(), detokenizer.push(short[0])
            if texts != (text, text) or [len(row) for row in rows] != [len(text.encode()) + 1] * 2:
                failures.append(text)
                return

    threads = [threading.Thread(target=use, args=(f"thread {i} 世界 " * (i + 1),)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
