# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of callers: those that mean something else in the grammar library than in JSON Schema and Python.

It refuses what it does not know (look-around, back references, word borders) by itself. Does not know grammars.
"""

from __future__ import annotations

import re

_PART = re.compile(
    r"\\[pPxuU]\{[^}]*\}|\\.|\[\^?(?P<members>\]?(?:[^\]\\]|\\.)*)\]|(?P<possessive>[*+?}]\+)", re.DOTALL
)
_SET_OPERATION = re.compile(r"(?:\\.|[^\\\[])*?(?:\[|&&|--|~~)", re.DOTALL)


def check_pattern(pattern: str) -> str | None:
    """What is wrong with it; None where nothing is."""
    for part in _PART.finditer(pattern):
        if part["possessive"]:
            return f"has {part[0]!r}, write a group where a repeat is to be repeated"
        members = part["members"]
        if members and (members.startswith("]") or _SET_OPERATION.match(members)):
            return f"has the class {part[0]!r}, in which [, ], &&, -- and ~~ have to be escaped"
    return None
