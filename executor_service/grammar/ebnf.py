# SPDX-License-Identifier: Apache-2.0
"""Grammars in GBNF, the EBNF of llama.cpp, vLLM and xgrammar: read, checked, and written for the grammar library.

root ::= item ("," item)*    rules of names, "literals", [classes], ".", groups, "|", * + ? {m} {m,} {m,n}, # comments

Does not know tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from protos.errors import InvalidRequest

START = "root"
# Of groups and repeats in a rule as the library gets it.
MAX_DEPTH = 28
MAX_REPEATS = 10_000

_TOKEN = re.compile(
    r"""(?P<space>[\s]+|\#[^\n]*)
      | (?P<rule>[A-Za-z_][A-Za-z0-9_-]*)(?=(?:\s|\#[^\n]*\n)*::=)
      | (?P<name>[A-Za-z_][A-Za-z0-9_-]*)
      | (?P<define>::=)
      | (?P<literal>"(?:[^"\\\n]|\\.)*")
      | (?P<class>\[\^?(?:[^\]\\\n]|\\.)*\])
      | (?P<repeat>[*+?]|\{\s*[0-9]+\s*(?:,\s*[0-9]*\s*)?\})
      | (?P<mark>[|().])""",
    re.VERBOSE,
)
_CHARACTER = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|[^\\]", re.DOTALL)
_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {c: c for c in "\"'\\[]-^/.|(){}*+?"}


class Token(NamedTuple):
    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class Rule:
    """body: in the library's words, with {name} for each rule of `names`."""

    body: str
    names: frozenset[str]


def to_lark(text: str) -> str:
    """The library's grammar. Raises InvalidRequest with the line.

    Its lexer takes the longest match, which `[a-z]+ "z"` is not. So a grammar that never recurs becomes one regular
    expression, and in any other each character is a lexeme of its own: both accept exactly what GBNF says.
    """
    rules = _Parser(text).rules()
    recurring = _is_recurring(rules)
    spelled = {name: f"r{i}" if recurring else f"R{i}" for i, name in enumerate(rules)}
    lines = [f"start: {spelled[START]}"]
    for name, rule in rules.items():
        lines.append(f"{spelled[name]}: " + re.sub("<([^>]*)>", lambda match: spelled[match[1]], rule.body))
    return "\n".join(lines)


def characters(text: str) -> str:
    """A text, exactly, as an expression of the library's."""
    return " ".join(f"/{_code(character)}/" for character in text) or '""'


def _code(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text)]
        self._next = 0
        self._num_open = 0
        self._names: set[str] = set()

    def rules(self) -> dict[str, Rule]:
        rules: dict[str, Rule] = {}
        while self._kind != "end":
            name = self._take("rule").text
            if name in rules:
                raise InvalidRequest(f"constraint.grammar: rule {name} is defined twice")
            self._take("define")
            self._names = set()
            body = self._alternatives()
            if _depth(body) > MAX_DEPTH:
                raise InvalidRequest(f"constraint.grammar: rule {name} nests deeper than {MAX_DEPTH}")
            rules[name] = Rule(body, frozenset(self._names))
        missing = frozenset({START}).union(*(rule.names for rule in rules.values())) - rules.keys()
        if missing:
            raise InvalidRequest(f"constraint.grammar: rule {min(missing)} is not defined")
        return rules

    @property
    def _kind(self) -> str:
        """The next token's; a mark is its own kind."""
        token = self._tokens[self._next]
        return token.text if token.kind == "mark" else token.kind

    def _take(self, kind: str) -> Token:
        token = self._tokens[self._next]
        if self._kind != kind:
            raise InvalidRequest(f"constraint.grammar: line {token.line}: {token.text[:20]!r} is not expected here")
        self._next += 1
        return token

    def _alternatives(self) -> str:
        alternatives = [self._sequence()]
        while self._kind == "|":
            self._take("|")
            alternatives.append(self._sequence())
        return " | ".join(alternatives)

    def _sequence(self) -> str:
        items = []
        while self._kind in ("name", "literal", "class", ".", "("):
            item = self._item()
            while self._kind == "repeat":
                repeat = _repeat(self._take("repeat"))
                item = f"({item}){repeat}" if repeat else '""'
            items.append(item)
        return " ".join(items) or '""'

    def _item(self) -> str:
        kind = self._kind
        token = self._take(kind)
        if kind == "name":
            self._names.add(token.text)
            return f"<{token.text}>"
        if kind == "literal":
            return f"({characters(''.join(_characters(token.text[1:-1], token.line)))})"
        if kind == "class":
            return _class(token)
        return self._group() if kind == "(" else "/(?s:.)/"

    def _group(self) -> str:
        self._num_open += 1
        if self._num_open > MAX_DEPTH:
            line = self._tokens[self._next].line
            raise InvalidRequest(f"constraint.grammar: line {line}: groups nest deeper than {MAX_DEPTH}")
        inner = self._alternatives()
        self._take(")")
        self._num_open -= 1
        return f"({inner})"


def _depth(body: str) -> int:
    """Of its parentheses, those in expressions left out."""
    depth = deepest = 0
    for mark in re.findall("[()]", re.sub("/[^/]*/", "", body)):
        depth += 1 if mark == "(" else -1
        deepest = max(deepest, depth)
    return deepest


def _tokens(text: str) -> Iterator[Token]:
    place, line = 0, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise InvalidRequest(f"constraint.grammar: line {line}: {text[place : place + 20]!r} is not understood")
        assert match.lastgroup
        if match.lastgroup != "space":
            yield Token(match.lastgroup, match[0], line)
        line += match[0].count("\n")
        place = match.end()
    yield Token("end", "the end", line)


def _characters(text: str, line: int) -> Iterator[str]:
    for match in _CHARACTER.finditer(text):
        spelled = match[0]
        if len(spelled) == 1:
            yield spelled
        elif len(spelled) > 2:
            yield _from_code(int(spelled[2:], 16), line)
        elif spelled[1] in _SIMPLE_ESCAPES:
            yield _SIMPLE_ESCAPES[spelled[1]]
        else:
            raise InvalidRequest(f"constraint.grammar: line {line}: {spelled!r} is no escape")


def _from_code(code: int, line: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise InvalidRequest(f"constraint.grammar: line {line}: U+{code:X} is no character")
    return chr(code)


def _class(token: Token) -> str:
    """Ranges are read before escapes are undone: in [\\-z] the dash is itself."""
    inner = token.text[1:-1]
    negation = "^" if inner.startswith("^") else ""
    pieces = _CHARACTER.findall(inner.removeprefix("^"))
    codes = [*_characters("".join(pieces), token.line)]
    members, i = [], 0
    while i < len(codes):
        is_range = i + 2 < len(codes) and pieces[i + 1] == "-"
        last = codes[i + 2] if is_range else codes[i]
        if last < codes[i]:
            raise InvalidRequest(f"constraint.grammar: line {token.line}: range {codes[i]}-{last} is empty")
        members.append(_code(codes[i]) + (f"-{_code(last)}" if is_range else ""))
        i += 3 if is_range else 1
    if not members:
        raise InvalidRequest(f"constraint.grammar: line {token.line}: class {token.text} is empty")
    return f"/[{negation}{''.join(members)}]/"


def _repeat(token: Token) -> str:
    """Empty where it stands for no time at all."""
    if token.text in "*+?":
        return token.text
    bounds = [int(number) for number in re.findall("[0-9]+", token.text)]
    if bounds[-1] < bounds[0] or bounds[-1] > MAX_REPEATS:
        raise InvalidRequest(f"constraint.grammar: line {token.line}: {token.text} must rise, to at most {MAX_REPEATS}")
    if bounds[-1] == 0 and not token.text.replace(" ", "").endswith(",}"):
        return ""
    first, last = bounds[0], bounds[-1] if "," not in token.text or len(bounds) == 2 else ""
    return f"{{{first},{last}}}"


def _is_recurring(rules: dict[str, Rule]) -> bool:
    """A rule can come up again inside of itself: leaves are taken off until none is left, or only rings are."""
    left = {name: set(rule.names) for name, rule in rules.items()}
    while leaves := {name for name, names in left.items() if not names}:
        left = {name: names - leaves for name, names in left.items() if name not in leaves}
    return bool(left)
