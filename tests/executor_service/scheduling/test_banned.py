# SPDX-License-Identifier: Apache-2.0
"""Ids that an output forbids, compared with trying every id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor_service.scheduling.banned import BadBytes, BadTokenIds, Pieces, beginning_with
from protos.vocabulary import Vocabulary
from tests.fixtures.byte_tokenizer import B_COMMA_C, END, THINK, byte_tokenizer


def vocabulary(*pieces: bytes, special: frozenset[int] = frozenset()) -> Vocabulary:
    return Vocabulary(pieces, special, strips_leading_space=False)


def output(*token_ids: int) -> np.ndarray:
    return np.array(token_ids, np.int32)


def forbidden(bad: BadTokenIds | BadBytes, token_ids: np.ndarray) -> list[int]:
    """Always, and after this output."""
    return [*bad.always, *bad.next_token_ids(token_ids)]


def text(vocabulary: Vocabulary, token_ids: list[int]) -> bytes:
    return b"".join(vocabulary.piece(i) for i in token_ids if i not in vocabulary.special_token_ids)


def completing(vocabulary: Vocabulary, words: list[bytes], token_ids: list[int]) -> set[int]:
    """By the definition: those whose bytes make a word that was not there."""
    before = text(vocabulary, token_ids)
    found = set()
    for i in range(len(vocabulary) + 2):
        after = before + text(vocabulary, [i])
        if any(after.find(word, max(0, len(before) - len(word) + 1)) >= 0 for word in words):
            found.add(i)
    return found


@pytest.fixture(scope="module")
def fx_byte() -> Vocabulary:
    tokenizer = byte_tokenizer()
    spellings = [tokenizer.id_to_token(i).encode() for i in range(256, 263)]
    return vocabulary(*(bytes([i]) for i in range(256)), *spellings, special=frozenset(range(256, 260)))


def test_single_id_is_never_allowed_and_a_sequence_not_to_its_end() -> None:
    bad = BadTokenIds([[7], [1, 2], [1, 1, 3], [2, 2]])
    assert forbidden(bad, output()) == [7]
    assert forbidden(bad, output(1)) == [7, 2]
    assert forbidden(bad, output(1, 1)) == [7, 2, 3]
    assert forbidden(bad, output(1, 2)) == [7, 2]
    assert forbidden(bad, output(1, 5)) == [7]


@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=5),
    token_ids=st.lists(st.integers(0, 2), max_size=6),
)
def test_ids_that_complete_a_sequence_are_those_of_the_definition(
    sequences: list[list[int]], token_ids: list[int]
) -> None:
    expected = {i for i in range(3) for bad in sequences if [*token_ids, i][-len(bad) :] == bad}
    assert set(forbidden(BadTokenIds(sequences), output(*token_ids))) == expected


def test_word_is_found_inside_one_id_and_over_several(fx_byte: Vocabulary) -> None:
    pieces = Pieces(fx_byte)
    bad = BadBytes([b"b,c", b"think", "é".encode()], pieces)
    assert set(forbidden(bad, output())) == {B_COMMA_C, THINK, THINK + 1}
    assert set(forbidden(bad, output(ord("b")))) == {B_COMMA_C, THINK, THINK + 1}
    assert ord("c") in forbidden(bad, output(*b"b,"))
    assert 0xA9 in forbidden(bad, output(*b"b,", 0xC3))


def test_special_ids_and_ids_without_text_neither_part_a_word_nor_make_one(fx_byte: Vocabulary) -> None:
    bad = BadBytes([b"ab", b"<|end|>"], Pieces(fx_byte))
    token_ids = [ord("a"), END, 300, END]
    assert ord("b") in forbidden(bad, output(*token_ids))
    assert END not in forbidden(bad, output(*token_ids))
    assert ord(">") in forbidden(BadBytes([b"<|end|>"], Pieces(fx_byte)), output(*b"<|end|"))


def test_id_that_completes_a_word_and_goes_on_counts() -> None:
    words = vocabulary(b"a", b"b", b"bc", b"xab", b"ba")
    bad = BadBytes([b"ab"], Pieces(words))
    assert set(forbidden(bad, output())) == {3}
    assert set(forbidden(bad, output(4))) == {1, 2, 3, 4}


LETTERS = st.binary(min_size=1, max_size=4).map(lambda raw: bytes(b"ab\xff"[byte % 3] for byte in raw))


@settings(max_examples=200)
@given(
    pieces=st.lists(st.one_of(LETTERS, st.just(b"")), min_size=2, max_size=12),
    special=st.frozensets(st.integers(0, 12), max_size=2),
    words=st.lists(LETTERS, min_size=1, max_size=4),
    data=st.data(),
)
def test_ids_that_complete_a_word_are_those_of_the_definition(
    pieces: list[bytes], special: frozenset[int], words: list[bytes], data: st.DataObject
) -> None:
    """Over random vocabularies, each step of an output that keeps to the rule; and of one that starts in the middle."""
    vocab = vocabulary(*pieces, special=special)
    index = Pieces(vocab)
    bad, token_ids = BadBytes(words, index), list[int]()
    for _ in range(8):
        expected = completing(vocab, words, token_ids)
        assert set(forbidden(bad, output(*token_ids))) == expected
        assert set(forbidden(BadBytes(words, index), output(*token_ids))) == expected
        allowed = sorted(set(range(len(pieces) + 2)) - expected)
        token_ids.append(data.draw(st.sampled_from(allowed)))
    assert not any(word in text(vocab, token_ids) for word in words)


def test_large_vocabulary_by_the_definition() -> None:
    rng = np.random.default_rng(3)
    letters = np.frombuffer(b"etaoin shrdlu", np.uint8)
    pieces = [rng.choice(letters, rng.integers(0, 9)).tobytes() for _ in range(20_000)]
    vocab, words = vocabulary(*pieces), [b"tea", b" oil", b"a", b"shout" * 9]
    bad = BadBytes(words, Pieces(vocab))
    for length in (0, 3, 9):
        token_ids = rng.integers(0, 20_000, length).tolist()
        assert set(forbidden(bad, output(*token_ids))) == completing(vocab, words, token_ids)


def test_choices_share_what_their_words_are_found_in(fx_byte: Vocabulary) -> None:
    pieces = Pieces(fx_byte)
    assert pieces.words(frozenset([b"b,c"])) is pieces.words(frozenset([b"b,c"]))


def test_words_that_begin_alike_are_looked_at_once_for_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an output runs along them: what the end of the text forbids is remembered."""
    pieces = Pieces(vocabulary(b"a", b"b", b"c"))
    words = [b"a" * 60 + end for end in (b"b", b"c", b"bc", b"cb")]
    searches: list[bytes] = []
    search = pieces.beginning_with
    monkeypatch.setattr(pieces, "beginning_with", lambda prefix: searches.append(prefix) or search(prefix))
    bad = BadBytes(words, pieces)
    for length in range(1, 400):
        bad.next_token_ids(output(*[0] * length))
    assert len(searches) <= 60 * len(words)
    assert set(bad.next_token_ids(output(*[0] * 400))) == {1, 2}


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"a\xff", b"a", b"\xfe", b"b"])
def test_strings_that_begin_so_stand_together(prefix: bytes) -> None:
    strings = sorted([b"", b"a", b"ab", b"a\xff", b"a\xff\xff", b"b", b"\xfe", b"\xff", b"\xff\xff", b"\xffa"])
    assert strings[beginning_with(strings, prefix)] == [string for string in strings if string.startswith(prefix)]
