# SPDX-License-Identifier: Apache-2.0
"""GBNF: what is accepted is what the notation says, whatever a lexer would rather take."""

from __future__ import annotations

from random import Random

import pytest

from executor_service.grammar.ebnf import to_lark
from protos.errors import InvalidRequest
from protos.packserve.v1.sampling_pb2 import Constraint
from tests.fixtures.grammars import accepts, make_grammar, walk

ARITHMETIC = """
# a sum of terms
root ::= term (("+" | "-") term)*
term ::= number   # one of two
       | "(" root ")"
number ::= [1-9] [0-9]{0,2}
"""
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "taken", "refused"),
    [
        ('root ::= [a-z]+ "z"', ["azz", "zz"], ["az1", "z", "abc"]),
        ('root ::= "a" "b" "c" | "ab" "d" | root "!"', ["abc", "abd!!"], ["ab", "abc?"]),
        ('root ::= s{2}\ns ::= "" | "(" s ")"', ["()(())", "()"], ["(", "()()()"]),
        ('root ::= x{2,} y?\nx ::= .\ny ::= "é"', ["ab", "\né", "aéé"], ["a"]),
        (r'root ::= "[" [\]\-^x-z\x41\u00e9]+ "]"', ["[]-^yAé]"], ["[w]", "[]"]),
        ('root ::= a-b a_c\na-b ::= "1"{1,2}\n\na_c ::=\n  "2"\n  | "3"', ["12", "113"], ["1", "1112"]),
        ("root ::= [^a-c]*[-x]", ["xyz-", "x"], ["a-", "xyz"]),
        ('root ::= "a"{0} "b"{0,0} "c"{0,}', ["", "cc"], ["a", "b"]),
        (f"root ::= {'(' * 28}[a]{')' * 28} root?", ["a", "aa"], [""]),
        (f"root ::= [(/]{'?' * 28}", ["(", ""], ["(("]),
        (ARITHMETIC, ["1+(20-300)", "((7))"], ["1+", "0", "(1"]),
        (JSON, ['{"a": [1, {"b": "\\u00e9"}]}'], ["[]", '{"a" 1}']),
    ],
)
def test_grammar_takes_exactly_its_sentences(grammar: str, taken: list[str], refused: list[str]) -> None:
    constraint = Constraint(grammar=grammar)
    assert all(accepts(constraint, text) for text in taken)
    assert not [text for text in refused if accepts(constraint, text)]


def test_random_sums_can_be_computed() -> None:
    random = Random(0)
    outputs = [walk(make_grammar(Constraint(grammar=ARITHMETIC)), random) for _ in range(50)]
    ended = [output.decode() for output in outputs if output is not None]
    assert len(ended) > 20
    for text in ended:
        eval(text)


def test_only_a_grammar_that_never_recurs_is_one_expression() -> None:
    assert "start: R0" in to_lark("root ::= x\nx ::= [a-z]")
    assert "start: r0" in to_lark("root ::= x\nx ::= [a-z] x?")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('x ::= "a"', "rule root is not defined"),
        ("root ::= x", "rule x is not defined"),
        ('root ::= "a"\nroot ::= "b"', "rule root is defined twice"),
        ('root ::= "a', "line 1: '\"a' is not understood"),
        ('root ::= "a"\n\n  )', r"line 3: '\)' is not expected here"),
        ('root ::= ("a"', "line 1: 'the end' is not expected here"),
        ("root ::= [z-a]", "line 1: range z-a is empty"),
        ("root ::= []", r"line 1: class \[\] is empty"),
        (r'root ::= "\q"', r"line 1: '\\\\q' is no escape"),
        (r'root ::= "\ud800"', r"line 1: U\+D800 is no character"),
        ('root ::= "a"{3,2}', r"line 1: \{3,2\} must rise, to at most 10000"),
        ("root ::= " + "(" * 29, "line 1: groups nest deeper than 28"),
        ("root ::= x\nx ::= [a]" + "?" * 29, "rule x nests deeper than 28"),
        ("start: /a/", "line 1: 'start' is not expected here|line 1: ': /a/' is not understood"),
    ],
)
def test_error_names_the_line(grammar: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^constraint.grammar: ({message})"):
        to_lark(grammar)


def test_rule_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"constraint.grammar: nothing can follow"):
        make_grammar(Constraint(grammar="root ::= root"))
