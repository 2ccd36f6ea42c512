# SPDX-License-Identifier: Apache-2.0
"""A row's grammar: what its masks allow, where it ends, and that whatever it lets through is right."""

from __future__ import annotations

import json
import re
from random import Random

import jsonschema
import numpy as np
import pytest

from executor_service.grammar import compiler, matcher_grammar
from executor_service.grammar import prototype as prototype_module
from executor_service.grammar.compiler import WHITESPACE, GrammarTokenizer, grammar_of
from executor_service.grammar.matcher_grammar import MatcherGrammar
from protos.errors import InvalidRequest, LimitReached
from protos.packserve.v1.sampling_pb2 import Choices, Constraint
from tests.fixtures.byte_tokenizer import B_COMMA_C, END, IM_END, NUM_PIECES, VOCABULARY_SIZE
from tests.fixtures.grammars import (
    accepts,
    allowed_ids,
    choices_constraint,
    feed,
    make_grammar,
    make_prototype,
    schema_constraint,
    walk,
)
from tests.fixtures.random_schemas import random_schema

NEWLINE = ord("\n")


def next_bytes(grammar: MatcherGrammar) -> str:
    return "".join(chr(i) for i in allowed_ids(grammar.mask()) if i < 256)


def test_mask_has_a_bit_for_each_id_of_the_models_table() -> None:
    mask = make_grammar(Constraint(regex="(?s:.)*")).mask()
    assert mask.dtype == np.uint32
    assert mask.shape == (-(-VOCABULARY_SIZE // 32),)
    assert max(allowed_ids(mask)) < NUM_PIECES


def test_special_and_empty_ids_are_never_text() -> None:
    grammar = make_grammar(Constraint(regex="[^x]{3}"), frozenset({IM_END}))
    assert [i for i in allowed_ids(grammar.mask()) if i > 255] == [B_COMMA_C]
    assert not grammar.accept(END)
    assert not grammar.accept(VOCABULARY_SIZE - 1)
    assert feed(grammar, "abc")


def test_all_stop_ids_are_allowed_where_the_output_may_end_and_none_elsewhere() -> None:
    stops = frozenset({END, IM_END, ord("c")})
    grammar = make_grammar(Constraint(regex="ab(c|d)*"), stops)
    assert allowed_ids(grammar.mask()) == [ord("a")]
    assert feed(grammar, "ab")
    assert allowed_ids(grammar.mask()) == [ord("c"), ord("d"), END, IM_END]
    assert grammar.accept(IM_END)
    grammar = make_grammar(Constraint(regex="ab?c"), stops)
    assert feed(grammar, "a")
    assert allowed_ids(grammar.mask()) == [ord("b")]


def test_without_stop_ids_only_text_is_allowed() -> None:
    grammar = make_grammar(Constraint(regex="a{1,2}"), frozenset())
    assert feed(grammar, "a")
    assert allowed_ids(grammar.mask()) == [ord("a")]
    assert not grammar.is_complete
    assert feed(grammar, "a")
    assert grammar.is_complete


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (choices_constraint("a", "ab"), "ab"),
        (Constraint(json_object=True), "{}"),
        (schema_constraint({"type": "boolean"}), "true"),
        (Constraint(regex="a{0,3}"), "aaa"),
        (Constraint(grammar='root ::= "(" root ")" | "x"'), "((x))"),
    ],
)
def test_row_is_complete_as_soon_as_nothing_but_an_end_can_follow(constraint: Constraint, text: str) -> None:
    grammar = make_grammar(constraint)
    for character in text:
        assert not grammar.is_complete
        assert feed(grammar, character)
    assert grammar.is_complete
    assert allowed_ids(grammar.mask()) == [END]


def test_row_is_complete_where_only_its_stop_ids_would_go_on() -> None:
    grammar = make_grammar(Constraint(regex="a(\n)*"), frozenset({NEWLINE}))
    assert feed(grammar, "a")
    assert grammar.is_complete


def test_id_that_is_refused_changes_nothing() -> None:
    grammar = make_grammar(choices_constraint("yes"))
    assert feed(grammar, "y")
    assert not grammar.accept(ord("x"))
    assert feed(grammar, "es")
    assert grammar.is_complete


def test_dead_end_of_the_vocabulary_is_an_error() -> None:
    tokenizer = GrammarTokenizer([b"a"], 32)
    with pytest.raises(InvalidRequest, match=r"^constraint.regex: nothing can follow, in this vocabulary"):
        tokenizer.matcher(grammar_of(Constraint(regex="b")), "regex")
    grammar = MatcherGrammar(make_prototype(Constraint(regex="ab"), tokenizer), frozenset())
    assert grammar.accept(0)
    with pytest.raises(InvalidRequest, match=r"^constraint: nothing can follow"):
        grammar.mask()


def test_limit_that_is_reached_on_the_way_is_the_rows_error() -> None:
    """Five hundred ways to be in the middle of it."""
    grammar = make_grammar(Constraint(regex="(([a-z]{1,50}){1,50}){1,50}"))
    with pytest.raises(LimitReached, match=r"^constraint: lexer error: too many"):
        feed(grammar, "abcdefgh" * 100)


def test_ambiguous_grammar_ends_its_row_before_it_holds_up_others() -> None:
    """Its ways to go on grow with the output: past a bound there are too many, whatever the time they take."""
    names = " | ".join(f"r{i}" for i in range(20))
    rules = "\n".join(f'r{i} ::= "a" | "a" root r{(i * 7 + 1) % 20}' for i in range(20))
    grammar = make_grammar(Constraint(grammar=f'root ::= (root | "a") ({names})\n{rules}'))
    with pytest.raises(LimitReached, match=r"ways to go on"):
        feed(grammar, "a" * 300)


def test_row_whose_masks_take_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.grammar.matcher_grammar.FREE_S", 0.0)
    monkeypatch.setattr("executor_service.grammar.matcher_grammar.MAX_MEAN_S", 0.0)
    with pytest.raises(LimitReached, match=r"^constraint: its masks took 0\.\d\d s for \d+ ids, the limit is 0 s"):
        feed(make_grammar(Constraint(regex="[a-z]+")), "abc")


def test_stop_ids_outside_the_vocabulary_are_nothing() -> None:
    grammar = make_grammar(Constraint(regex="ab?"), frozenset({-1, END, 10**6}))
    assert feed(grammar, "a")
    assert allowed_ids(grammar.mask()) == [ord("b"), END]


def ambiguous(num_rules: int) -> Constraint:
    """Each place of the output may be one where something began."""
    names = [f"r{i}" for i in range(num_rules)]
    rules = [f'{name} ::= "a" | "a" root {names[(7 * i + 1) % num_rules]}' for i, name in enumerate(names)]
    return Constraint(grammar="\n".join([f'root ::= (root | "a") ({" | ".join(names)})', *rules]))


@pytest.mark.parametrize("num_rules", [20, 150])
def test_ways_to_go_on_are_bounded_where_each_character_is_a_lexeme(num_rules: int) -> None:
    with pytest.raises(LimitReached, match=r"^constraint: has [0-9]+ ways to go on at one place, the limit is 600$"):
        feed(make_grammar(ambiguous(num_rules)), "a" * 50)


def test_time_of_a_rows_masks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_grammar, "FREE_S", 0.001)
    monkeypatch.setattr(matcher_grammar, "MAX_MEAN_S", 0.0)
    with pytest.raises(LimitReached, match=r"^constraint: its masks took [0-9.]+ s for [0-9]+ ids, the limit is 0.001"):
        feed(make_grammar(Constraint(regex="[a-z]*")), "a" * 10_000)


MULTIPLES = schema_constraint({"type": "array", "minItems": 90, "items": {"type": "integer", "multipleOf": 997}})


@pytest.fixture
def small_lexers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one row of MULTIPLES, not for two."""
    monkeypatch.setattr(compiler, "MAX_LEXER_STATES", 800)
    monkeypatch.setattr(compiler, "LIMITS", compiler._limits(10_000, 50_000))


def outputs(rows: list[MatcherGrammar], seeds: range, num_tokens: int = 150) -> list[list[int] | str]:
    """In turns: each row's ids, or how it failed."""
    randoms = [Random(seed) for seed in seeds]
    results: list[list[int] | str] = [[] for _ in rows]
    for _ in range(num_tokens):
        for i, (row, random) in enumerate(zip(rows, randoms, strict=True)):
            result = results[i]
            if isinstance(result, list):
                try:
                    result.append(random.choice(allowed_ids(row.mask())))
                    assert row.accept(result[-1])
                except LimitReached as error:
                    results[i] = str(error)
    return results


@pytest.mark.usefixtures("small_lexers")
def test_what_a_row_gets_does_not_depend_on_the_rows_that_share_its_lexer() -> None:
    company = make_prototype(MULTIPLES)
    rows = [MatcherGrammar(company, frozenset({END})) for _ in range(6)]
    alone = [outputs([make_grammar(MULTIPLES)], range(seed, seed + 1))[0] for seed in range(6)]
    assert not any(isinstance(result, str) for result in alone)
    assert outputs(rows, range(6)) == alone
    assert any(row._place for row in rows)
    assert not company.is_shared


@pytest.mark.usefixtures("small_lexers")
def test_row_that_needs_a_lexer_where_all_are_taken_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prototype_module, "MAX_OWN_LEXERS", 0)
    company = make_prototype(MULTIPLES)
    results = outputs([MatcherGrammar(company, frozenset({END})) for _ in range(6)], range(6))
    assert any(isinstance(result, str) and "needs a lexer of its own" in result for result in results)


def test_known_output_is_replayed() -> None:
    grammar = make_grammar(schema_constraint({"type": "array", "items": {"type": "integer"}}))
    grammar.begin(np.frombuffer(b"[1, 2", np.uint8).astype(np.int32))
    assert next_bytes(grammar) == "\n ,0123456789]"


@pytest.mark.parametrize("output", [[ord("x")], [ord("["), END], [ord("["), ord("]"), ord("]")], [VOCABULARY_SIZE - 1]])
def test_known_output_that_does_not_fit_is_refused(output: list[int]) -> None:
    grammar = make_grammar(schema_constraint({"type": "array", "items": {"type": "integer"}}))
    with pytest.raises(InvalidRequest, match=f"known output's id {output[-1]} at position {len(output) - 1} breaks"):
        grammar.begin(np.array(output, np.int32))


def test_row_may_begin_where_only_its_stop_ids_are_allowed() -> None:
    grammar = make_grammar(Constraint(regex="a{0,3}"), frozenset({ord("a")}))
    grammar.begin(np.zeros(0, np.int32))
    assert allowed_ids(grammar.mask()) == [ord("a")]
    assert grammar.accept(ord("a"))
    with pytest.raises(InvalidRequest, match="known output's id 97 at position 0 breaks"):
        grammar.begin(np.array([ord("a")], np.int32))


def test_known_output_that_is_complete_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="known output of 1 ids completes the constraint"):
        make_grammar(Constraint(regex="a")).begin(np.array([ord("a")], np.int32))


def test_stop_ids_outside_of_the_vocabulary_are_nobodys() -> None:
    grammar = make_grammar(Constraint(regex="ab?"), frozenset({END, -1, VOCABULARY_SIZE, 10**9}))
    assert feed(grammar, "a")
    assert allowed_ids(grammar.mask()) == [ord("b"), END]


def test_copies_are_independent() -> None:
    prototype = make_prototype(choices_constraint("ab", "ac"))
    first, second = (MatcherGrammar(prototype, frozenset()) for _ in range(2))
    assert feed(first, "ab")
    assert first.is_complete
    assert next_bytes(second) == "a"


def test_whitespace_is_bounded_and_only_within_a_document() -> None:
    constraint = schema_constraint({"type": "array", "items": {"type": "integer"}})
    assert accepts(constraint, "[1,2]")
    assert accepts(constraint, "[\n\t1,\n  2\n]")
    assert accepts(constraint, "[\n" + " " * 32 + "1 , 2 ]")
    assert not any(accepts(constraint, text) for text in (" [1]", "[1]\n", "[  1]", "[\n\n1]", "[\n" + " " * 33 + "1]"))
    assert re.fullmatch(WHITESPACE, "\n" + " " * 32)


def test_key_has_one_spelling() -> None:
    """Written as \\u0061, a name would escape the schema of its property."""
    constraint = schema_constraint({"properties": {"a": {"type": "integer"}}, "additionalProperties": True})
    assert accepts(constraint, '{"a":1}')
    assert not accepts(constraint, '{"\\u0061":"x"}')


@pytest.mark.parametrize("seed", range(60))
def test_random_outputs_of_random_schemas_are_valid(seed: int) -> None:
    random = Random(seed)
    schema = random_schema(random)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    for _ in range(3):
        output = walk(make_grammar(schema_constraint(schema)), random)
        if output is not None:
            validator.validate(json.loads(output))


def test_random_json_objects_are_objects() -> None:
    random = Random(0)
    outputs = [walk(make_grammar(Constraint(json_object=True)), random) for _ in range(30)]
    ended = [output for output in outputs if output is not None]
    assert len(ended) > 10
    assert all(isinstance(json.loads(output), dict) for output in ended)


@pytest.mark.parametrize(
    "regex",
    [r"\d{3}-\w+", "(red|green|blue)( (red|green|blue))*", "[a-z]+z", "^a|b$", "(?i)yes|no", r"a/b\/[/]", "é{2}[^a]"],
)
def test_random_outputs_of_a_regex_match_it_in_full(regex: str) -> None:
    random = Random(1)
    for _ in range(20):
        output = walk(make_grammar(Constraint(regex=regex)), random)
        assert output is None or re.fullmatch(regex, output.decode())


def test_regex_takes_ascii_digits_and_word_characters() -> None:
    assert not accepts(Constraint(regex=r"\d"), "٣")
    assert not accepts(Constraint(regex=r"\w"), "é")


def test_random_outputs_of_choices_are_exactly_those() -> None:
    random, choices = Random(2), ["yes", "no", "no way", 'a "quote"\\', "héllo\n", "/x/"]
    assert {walk(make_grammar(choices_constraint(*choices)), random) for _ in range(100)} == {
        choice.encode() for choice in choices
    }


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint(), "constraint has no kind"),
        (Constraint(json_object=False), "constraint.json_object is empty"),
        (Constraint(regex=""), "constraint.regex is empty"),
        (Constraint(grammar=""), "constraint.grammar is empty"),
        (Constraint(choices=Choices()), "constraint.choices is empty"),
        (choices_constraint("a", ""), r"constraint.choices\[1\] is empty"),
        (choices_constraint("a", "b", "a"), "constraint.choices has 'a' twice"),
        (Constraint(regex="a{0}"), "constraint.regex allows the empty output only"),
        (Constraint(regex="(a"), "constraint.regex: unclosed group"),
        (Constraint(regex="a(?=b)"), "constraint.regex: look-around, including look-ahead and look-behind, is not"),
        (Constraint(regex=r"(a)\1"), "constraint.regex: backreferences are not supported"),
        (Constraint(regex=r"\bword"), "constraint.regex: lookarounds not supported yet"),
        (Constraint(regex="[a&&b]"), r"constraint.regex has the class '\[a&&b\]'"),
        (schema_constraint(False), "constraint.json_schema: false allows nothing"),
        (schema_constraint({"const": "\ud800"}), "constraint.json_schema: holds half of a surrogate pair"),
        (schema_constraint({"minimum": 2, "maximum": 1, "type": "integer"}), "constraint.json_schema: Unsatisfiable"),
        (schema_constraint({"pattern": "a(?=b)"}), "constraint.json_schema: look-around"),
        (schema_constraint({"oneOf": [{"minimum": 1}, {"maximum": 2}]}), "constraint.json_schema: oneOf is enforced"),
        (
            schema_constraint({"patternProperties": {"a": {}, "b": {}}}),
            "constraint.json_schema: patternProperty regexes /b/ and /a/ are not disjoint|.*/a/ and /b/",
        ),
        (
            schema_constraint({"properties": {"a": {}, "b": {}}, "maxProperties": 1}),
            "constraint.json_schema: min/maxProperties only supported when all keys listed",
        ),
    ],
)
def test_constraint_without_a_meaning_is_refused_by_name(constraint: Constraint, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{message}"):
        make_grammar(constraint)
