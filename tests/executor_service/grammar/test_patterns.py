# SPDX-License-Identifier: Apache-2.0
"""Which regular expressions are taken as they are."""

from __future__ import annotations

import pytest

from executor_service.grammar.patterns import check_pattern
from protos.packserve.v1.sampling_pb2 import Constraint
from tests.fixtures.grammars import feed, make_grammar


@pytest.mark.parametrize("pattern", [r"\p{Lu}+", r"\P{Lu}+b", r"\x{41}+", r"\u{41}+", r"a{2}", r"[a+]+", r"\}+"])
def test_brace_of_an_escape_is_no_repeat(pattern: str) -> None:
    assert check_pattern(pattern) is None


@pytest.mark.parametrize("pattern", ["a++", "a*+", "a?+", "a{2}+", r"\p{Lu}++"])
def test_repeat_of_a_repeat_is_refused(pattern: str) -> None:
    assert "write a group where a repeat is to be repeated" in str(check_pattern(pattern))


def test_class_by_property_is_followed() -> None:
    grammar = make_grammar(Constraint(regex=r"\p{Lu}+\x{61}+"))
    assert feed(grammar, "ABa")
    assert not feed(grammar, "B")
