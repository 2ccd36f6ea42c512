# SPDX-License-Identifier: Apache-2.0
"""A constraint as a grammar of llguidance, and a grammar as a matcher, within bounds.

Used by the worker process first and, where that survived, by the executor. Imports little: the worker starts with it.
Does not know rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark

from executor_service.grammar.ebnf import characters, to_lark
from executor_service.grammar.json_schema import Schema, parse
from executor_service.grammar.patterns import check_pattern
from protos.errors import InvalidRequest, LimitReached, PackserveError
from protos.packserve.v1 import sampling_pb2

# Tokens are the model's to choose: none is forced where several spell the same text.
HEADER = '%llguidance {"no_forcing": true}\n'
# Between two parts of a document: nothing, one space, or one line's end and indentation. Nothing before or after it.
WHITESPACE = r" |\n(?: {0,32}|\t{0,8})"
# A control character that has no short escape is left out, so that each key is spelled in one way.
JSON_OPTIONS = {"whitespace_pattern": WHITESPACE, "json_allowed_escapes": 'nrbtf"\\'}
# A lexer's state takes 1 to 2 kB.
MAX_LEXER_STATES = 16_000


def _limits(max_items: int, max_step_items: int) -> LLParserLimits:
    """max_items: ways to go on at one place. For one step: 200,000 of fuel is some 15 ms."""
    return LLParserLimits(
        max_items_in_row=max_items,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=max_step_items,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


# A property that may come next takes up to 5 items, and the square of their number the time: 10,000 some 35 ms.
LIMITS = _limits(10_000, 50_000)
# Where each character is a lexeme, an ambiguous grammar has items for each place of the output, and takes the cube of
# their number: 600 some 12 ms.
CHARACTER_LIMITS = _limits(600, 12_000)

_MAX_FAULT = 200
_PARSER_LIMIT = re.compile("Current row has ([0-9]+) items; max is ([0-9]+)|Too many items .limit ([0-9]+)")
_LIMIT = re.compile(
    "fuel|limit|max is|too (?:large|many|complex|big|deep)|exceeded|exhausted|unable to determine", re.I
)
_PREFIX = re.compile(
    r"^(?:at \d+\(\d+\): |failed to compile JSON schema: |Parser Error: |invalid regex .* \(in regex\): )+"
)
_ADVICE = {
    "oneOf constraints are not supported": "oneOf is enforced only where its alternatives differ in type, in a constant"
    " or in a required property",
}


def grammar_of(constraint: sampling_pb2.Constraint) -> str:
    """For `GrammarTokenizer.matcher`. Raises InvalidRequest naming the field."""
    kind = constraint.WhichOneof("kind")
    if kind == "json_schema":
        return _json_grammar(parse(constraint.json_schema))
    if kind == "json_object" and constraint.json_object:
        return _json_grammar({"type": "object"})
    if kind == "regex" and constraint.regex:
        return _regex_grammar(constraint.regex)
    if kind == "grammar" and constraint.grammar:
        return HEADER + to_lark(constraint.grammar)
    if kind == "choices":
        return HEADER + _choices_grammar(constraint.choices.choices)
    raise InvalidRequest(f"constraint.{kind} is empty" if kind else "constraint has no kind")


def _json_grammar(schema: Schema) -> str:
    if schema is False:
        raise InvalidRequest("constraint.json_schema: false allows nothing")
    options = {"x-guidance": JSON_OPTIONS}
    text = json.dumps(options if schema is True else {**schema, **options}, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("constraint.json_schema: holds half of a surrogate pair") from error
    return f"{HEADER}start: %json {text}"


def _regex_grammar(regex: str) -> str:
    if wrong := check_pattern(regex):
        raise InvalidRequest(f"constraint.regex {wrong}")
    return f"{HEADER}start: /{regex_to_lark(regex, 'dw')}/"


def _choices_grammar(choices: Sequence[str]) -> str:
    if not choices:
        raise InvalidRequest("constraint.choices is empty")
    for i, choice in enumerate(choices):
        if not choice:
            raise InvalidRequest(f"constraint.choices[{i}] is empty")
    if len({*choices}) < len(choices):
        twice = next(choice for i, choice in enumerate(choices) if choice in choices[:i])
        raise InvalidRequest(f"constraint.choices has {twice[:50]!r} twice")
    return "start: CHOICE\nCHOICE: " + " | ".join(map(characters, choices))


class _Pieces:
    """What llguidance reads of a tokenizer. It calls it to force tokens, which HEADER forbids."""

    # Gives it an id of its own past the vocabulary: each row has its own stop ids.
    eos_token_id = None
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens

    def __call__(self, text: object) -> list[int]:
        return []


class GrammarTokenizer:
    """pieces: the bytes of ids [0, n), b"" for those that are no text. Ids [n, vocabulary_size) are none either."""

    def __init__(self, pieces: Sequence[bytes], vocabulary_size: int) -> None:
        tokens = [*pieces[:vocabulary_size], *[b""] * (vocabulary_size - len(pieces))]
        self.vocabulary_size = vocabulary_size
        self.is_text = np.array([bool(token) for token in tokens])  # [V]
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Pieces(tokens)))

    def matcher(self, grammar: str, kind: str | None) -> LLMatcher:
        """Before its first token. Raises InvalidRequest where no output is allowed, LimitReached past a bound."""
        matcher = LLMatcher(
            self._tokenizer, grammar, log_level=0, limits=CHARACTER_LIMITS if kind == "grammar" else LIMITS
        )
        num_allowed = 0 if matcher.is_error() else int.from_bytes(matcher.compute_bitmask()).bit_count()
        if matcher.is_error():
            raise fault(matcher, f"constraint.{kind}")
        if num_allowed == 1 and matcher.is_accepting():  # the end
            raise InvalidRequest(f"constraint.{kind} allows the empty output only")
        return matcher


def is_parser_limit(matcher: LLMatcher) -> bool:
    """Of a matcher in its error state: it has too many ways to go on, which no other matcher has to do with."""
    return _PARSER_LIMIT.search(matcher.get_error()) is not None


def fault(matcher: LLMatcher, what: str) -> PackserveError:
    """Of a matcher in its error state."""
    message = matcher.get_error().removesuffix("\n<non-verbose/>")
    if message.startswith("NoExtension"):
        return InvalidRequest(f"{what}: nothing can follow, in this vocabulary")
    if limit := _PARSER_LIMIT.search(message):
        num_items, max_items, max_step_items = limit.groups()
        if max_step_items:
            return LimitReached(f"{what}: one step follows more than {max_step_items} ways to go on")
        return LimitReached(f"{what}: has {num_items} ways to go on at one place, the limit is {max_items}")
    lines = [line.strip() for line in _PREFIX.sub("", message).splitlines()]
    reason = next((line for line in lines if line.startswith("error: ")), lines[0]).removeprefix("error: ")
    reason = next((advice for start, advice in _ADVICE.items() if reason.startswith(start)), reason)
    error = LimitReached if _LIMIT.search(reason) else InvalidRequest
    return error(f"{what}: {reason[:_MAX_FAULT]}")
