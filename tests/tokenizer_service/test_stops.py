# SPDX-License-Identifier: Apache-2.0
"""Stop strings: which wins, what is held back, and that cuts change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.errors import InvalidRequest
from tokenizer_service.stops import MAX_STOP_CHARS, MAX_STOPS, StopMatcher, check_stops


def shown(parts: list[str], stops: list[str], include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop)
    return "".join([matcher.push(part) for part in parts]) + matcher.finish(), matcher.matched


def test_b09_match_ends_the_text_and_its_beginning_is_never_shown() -> None:
    matcher = StopMatcher(["456"], include_stop=False)
    assert [matcher.push(digit) for digit in "12345678"] == ["1", "2", "3", "", "", "", "", ""]
    assert matcher.finish() == ""
    assert matcher.matched == "456"


def test_b09_near_match_is_given_back() -> None:
    matcher = StopMatcher(["457"], include_stop=False)
    assert [matcher.push(digit) for digit in "12345678"] == ["1", "2", "3", "", "", "456", "7", "8"]
    assert matcher.matched is None


@pytest.mark.parametrize(("include_stop", "text"), [(False, "ab"), (True, "ab,")])
def test_b11_nothing_behind_the_stop(include_stop: bool, text: str) -> None:
    assert shown(["a", "b,c"], [","], include_stop) == (text, ",")


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("a,b;c", [";", ","], ("a", ",")),  # earliest in the text, not first listed
        ("xabcd", ["abcd", "bc"], ("xa", "bc")),  # completes first, though it begins later
        ("xabc", ["c", "bc", "abc"], ("x", "abc")),  # complete together: begins earliest
        ("aab", ["aab", "ab"], ("", "aab")),
        ("ababac", ["abac"], ("ab", "abac")),  # overlaps itself
        ("abc", [], ("abc", None)),
        ("abc", ["cd"], ("abc", None)),  # the held tail comes at the end
    ],
)
def test_which_stop_wins(text: str, stops: list[str], expected: tuple[str, str | None]) -> None:
    assert shown([text], stops) == shown(list(text), stops) == expected


def test_only_a_tail_that_may_become_a_stop_is_held() -> None:
    matcher = StopMatcher(["</end>", "\n\n"], include_stop=False)
    assert matcher.push("a < b </e") == "a < b "
    assert matcher.push("x\n") == "</ex"
    assert matcher.push("y") == "\ny"
    assert matcher.finish() == ""


def test_stop_completed_too_early_is_text_and_may_begin_the_next() -> None:
    matcher = StopMatcher(["aba", "xx"], include_stop=False)
    assert matcher.push("aba", may_match=False) == "ab"  # the last a may begin it again
    assert (matcher.push("xx", may_match=False), matcher.matched) == ("ax", None)
    assert matcher.push("ab") == "x"
    assert matcher.push("a") == ""
    assert matcher.matched == "aba"


def test_stop_that_begins_early_and_is_completed_later_ends_the_text() -> None:
    matcher = StopMatcher(["456"], include_stop=False)
    assert matcher.push("345", may_match=False) + matcher.push("6") == "3"
    assert matcher.matched == "456"


SHORT_TEXT = st.text(alphabet="ab", max_size=6)


@given(parts=st.lists(SHORT_TEXT, max_size=6), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_any_split_equals_the_definition(parts: list[str], stops: list[str]) -> None:
    text = "".join(parts)
    ends = [(i, -len(stop), stop) for stop in stops for i in range(len(text) + 1) if text[:i].endswith(stop)]
    if not ends:
        assert shown(parts, stops) == (text, None)
        return
    end, _, stop = min(ends)
    assert shown(parts, stops) == (text[: end - len(stop)], stop)
    assert shown(parts, stops, include_stop=True) == (text[:end], stop)


@given(parts=st.lists(SHORT_TEXT, max_size=6))
def test_what_is_held_is_the_longest_possible_beginning_of_a_stop(parts: list[str]) -> None:
    stops, text, out = ["abba", "bab"], "", ""
    matcher = StopMatcher(stops, include_stop=False)
    for part in parts:
        text, out = text + part, out + matcher.push(part)
        if matcher.matched:
            return
        beginnings = {stop[:i] for stop in stops for i in range(len(stop))}
        assert text.removeprefix(out) == max((b for b in beginnings if text.endswith(b)), key=len)


def test_b12_caps_name_both_numbers() -> None:
    check_stops([])
    check_stops(["x" * MAX_STOP_CHARS] * MAX_STOPS)
    with pytest.raises(InvalidRequest, match=r"stop\[0\] is empty"):
        check_stops([""])
    with pytest.raises(InvalidRequest, match=r"stop\[1\] is empty"):
        check_stops(["x", ""])
    with pytest.raises(InvalidRequest, match="5000 strings, at most 64"):
        check_stops(["x"] * 5000)
    with pytest.raises(InvalidRequest, match=r"stop\[0\] has 1000000 characters, at most 1024"):
        check_stops(["x" * 1_000_000])
