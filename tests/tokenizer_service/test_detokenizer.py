# SPDX-License-Identifier: Apache-2.0
"""Ids to text as they come: every cut gives the same text, and nothing sent is taken back."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from protos.errors import InvalidRequest
from protos.vocabulary import BYTE_OF_CHARACTER, Vocabulary
from tests.fixtures import byte_tokenizer as fx_byte
from tests.fixtures import spm_tokenizer as fx_spm
from tests.fixtures.spm_tokenizer import FIRST_BYTE, spm_token_id
from tokenizer_service.detokenizer import Detokenizer


@pytest.fixture(scope="module")
def byte_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary.load(fx_byte.write_byte_tokenizer(tmp_path_factory.mktemp("byte")))


@pytest.fixture(scope="module")
def spm_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fx_spm.write_spm_tokenizer(tmp_path_factory.mktemp("spm"), bos=False)


@pytest.fixture(scope="module")
def spm_vocabulary(spm_directory: Path) -> Vocabulary:
    return Vocabulary.load(spm_directory)


def deltas(vocabulary: Vocabulary, token_ids: Sequence[int], **options: object) -> list[str]:
    """Text of each id pushed alone, then of the end."""
    detokenizer = Detokenizer(vocabulary, **options)  # type: ignore[arg-type]
    return [*(detokenizer.push([token_id]) for token_id in token_ids), detokenizer.finish()]


def decode(vocabulary: Vocabulary, token_ids: Sequence[int], **options: object) -> str:
    detokenizer = Detokenizer(vocabulary, **options)  # type: ignore[arg-type]
    return detokenizer.push(token_ids) + detokenizer.finish()


def test_b01_character_that_begins_in_the_prompt_is_completed(byte_vocabulary: Vocabulary) -> None:
    prompt = [*b"Hello ", 0xE4, 0xB8]
    assert deltas(byte_vocabulary, [0x96, 0x21], context=prompt) == ["世", "!", ""]
    assert deltas(byte_vocabulary, [0x96, 0x21], context=np.array(prompt, np.int32)) == ["世", "!", ""]


def test_b03_stray_byte_does_not_stop_the_stream(spm_vocabulary: Vocabulary) -> None:
    token_ids = [FIRST_BYTE + byte for byte in (0xEC, 0x84, 0xAC, 0xE1)] + [spm_token_id("lo")]
    assert deltas(spm_vocabulary, token_ids) == ["", "", "섬", "", "\ufffdlo", ""]
    assert decode(spm_vocabulary, token_ids) == "섬\ufffdlo"


@pytest.mark.parametrize(
    ("max_tokens", "text"), [(3, "Hi "), (4, "Hi \ufffd"), (5, "Hi \ufffd"), (6, "Hi \ufffd"), (7, "Hi 🌶")]
)
def test_b04_incomplete_tail_is_one_replacement_at_every_cut(
    byte_vocabulary: Vocabulary, max_tokens: int, text: str
) -> None:
    token_ids = [*b"Hi ", 0xF0, 0x9F, 0x8C, 0xB6][:max_tokens]
    assert decode(byte_vocabulary, token_ids) == text
    assert "".join(deltas(byte_vocabulary, token_ids)) == text


def test_b06_lone_bytes_come_out_as_they_go(byte_vocabulary: Vocabulary) -> None:
    assert deltas(byte_vocabulary, [0x80] * 2000) == ["\ufffd"] * 2000 + [""]


def test_b06_cost_of_a_token_is_flat(byte_vocabulary: Vocabulary) -> None:
    detokenizer = Detokenizer(byte_vocabulary)
    tenths = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(800):
            detokenizer.push([ord("a")])
        tenths.append(time.perf_counter() - start)
    assert min(tenths[-3:]) <= 2 * max(tenths[:3])


def test_b07_words_keep_their_spaces(spm_vocabulary: Vocabulary) -> None:
    hello, world = spm_token_id("▁Hello"), spm_token_id("▁world")
    assert deltas(spm_vocabulary, [world], context=[hello]) == [" world", ""]
    assert deltas(spm_vocabulary, [world] * 5) == ["world", *[" world"] * 4, ""]
    # Control tokens have no text, so the output is still the text's beginning; shown, they are.
    assert deltas(spm_vocabulary, [world], context=[fx_spm.BOS]) == ["world", ""]
    assert deltas(spm_vocabulary, [world], context=[fx_spm.BOS], skip_special_tokens=False) == [" world", ""]


@pytest.mark.parametrize("num_prompt_tokens", range(6))
def test_b07_context_and_output_are_the_whole_text(
    spm_directory: Path, spm_vocabulary: Vocabulary, num_prompt_tokens: int
) -> None:
    library = Tokenizer.from_file(str(spm_directory / "tokenizer.json"))
    token_ids = [fx_spm.BOS, *library.encode("Hello world now a wolf").ids]
    prompt, output = token_ids[:num_prompt_tokens], token_ids[num_prompt_tokens:]
    prompt_text, text = library.decode(prompt), library.decode(token_ids)
    assert prompt_text + decode(spm_vocabulary, output, context=prompt) == text


def test_b08_nothing_is_tidied_up(byte_vocabulary: Vocabulary) -> None:
    token_ids = [fx_byte.THINK, *b"ok", fx_byte.END_THINK, *b"1"]
    for skip_special_tokens in (True, False):
        assert decode(byte_vocabulary, token_ids, skip_special_tokens=skip_special_tokens) == "<think>ok</think>1"
    assert decode(byte_vocabulary, list(b"a ' b . c , d")) == "a ' b . c , d"


def test_special_ids_are_shown_only_where_asked(byte_vocabulary: Vocabulary) -> None:
    token_ids = [fx_byte.BOS, *b"a", fx_byte.END]
    assert decode(byte_vocabulary, token_ids) == "a"
    assert decode(byte_vocabulary, token_ids, skip_special_tokens=False) == "<|bos|>a<|end|>"


def test_b56_padding_rows_have_no_text_and_negative_ids_are_refused(byte_vocabulary: Vocabulary) -> None:
    detokenizer = Detokenizer(byte_vocabulary)
    assert detokenizer.push([300, 0x41, 2**31]) == "A"
    with pytest.raises(InvalidRequest, match="-1"):
        detokenizer.push([0x42, -1])
    assert detokenizer.push([0x43]) == "C"


def test_only_a_short_tail_of_the_context_is_read(byte_vocabulary: Vocabulary) -> None:
    class Counting(list[int]):
        num_read = 0

        def __getitem__(self, key: object) -> list[int]:  # type: ignore[override]
            Counting.num_read += 1
            return super().__getitem__(key)  # type: ignore[call-overload, no-any-return]

    Detokenizer(byte_vocabulary, context=Counting([0x41] * 100_000))
    assert Counting.num_read == 3
    Detokenizer(byte_vocabulary, context=Counting([fx_byte.BOS] * 100_000))
    assert Counting.num_read <= 67


# Any ids of FX-BYTE: bytes that are no UTF-8, control and added tokens, padding rows.
ANY_TOKEN_IDS = st.lists(st.integers(0, fx_byte.VOCABULARY_SIZE - 1) | st.sampled_from("é世🌶".encode()), max_size=30)
PARTS = st.lists(ANY_TOKEN_IDS, max_size=8)


@given(parts=PARTS, skip_special_tokens=st.booleans())
def test_sum_of_deltas_is_the_text_at_once(parts: list[list[int]], skip_special_tokens: bool) -> None:
    vocabulary = Vocabulary(PIECES, frozenset({256, 257, 258, 259}), strips_leading_space=True)
    token_ids = [token_id for part in parts for token_id in part]
    detokenizer = Detokenizer(vocabulary, skip_special_tokens=skip_special_tokens)
    streamed = "".join([detokenizer.push(part) for part in parts]) + detokenizer.finish()
    assert streamed == decode(vocabulary, token_ids, skip_special_tokens=skip_special_tokens)
    hidden = vocabulary.special_token_ids if skip_special_tokens else frozenset()
    raw = b"".join(vocabulary.piece(token_id) for token_id in token_ids if token_id not in hidden)
    assert streamed == raw.decode(errors="replace").removeprefix(" ")


@given(text=st.text(max_size=20), cut=st.integers(0, 80))
def test_context_then_output_is_the_whole_text(text: str, cut: int) -> None:
    """Where the context ends inside a character, that character is the output's."""
    vocabulary = Vocabulary(PIECES, frozenset(), strips_leading_space=False)
    token_ids = list(text.encode())
    shown = bytes(token_ids[:cut]).decode(errors="ignore")
    assert shown + decode(vocabulary, token_ids[cut:], context=token_ids[:cut]) == text


PIECES = (*(bytes([i]) for i in range(256)), *(t.encode() for t in fx_byte.SPECIAL_TOKENS + fx_byte.ADDED_TOKENS))
BYTE_LIBRARY = fx_byte.byte_tokenizer()


@given(text=st.text(max_size=40))
def test_valid_text_decodes_as_the_library_does(text: str) -> None:
    vocabulary = Vocabulary(PIECES, frozenset(range(256, 260)), strips_leading_space=False)
    token_ids = BYTE_LIBRARY.encode(text).ids
    assert decode(vocabulary, token_ids) == BYTE_LIBRARY.decode(token_ids)
    assert len(BYTE_OF_CHARACTER) == 256


@given(text=st.text(alphabet=st.sampled_from("Helo wrdnaf섬🌶\n"), max_size=40))
def test_valid_spm_text_decodes_as_the_library_does(spm_directory: Path, spm_vocabulary: Vocabulary, text: str) -> None:
    library = Tokenizer.from_file(str(spm_directory / "tokenizer.json"))
    token_ids = library.encode(text).ids
    assert "".join(deltas(spm_vocabulary, token_ids)) == library.decode(token_ids) == text
