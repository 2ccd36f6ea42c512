# SPDX-License-Identifier: Apache-2.0
"""Stop strings in text that comes in parts: what may be shown now, and where it ends. Does not know tokens.

The stop that the text completes first wins; of those completed by the same character, the longest, which begins
earliest. How the text is cut into parts changes nothing. Only a tail that may yet become a stop is held back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache

from protos.errors import InvalidRequest

MAX_STOPS = 64
MAX_STOP_CHARS = 1024


def check_stops(stops: Sequence[str]) -> None:
    """Raises InvalidRequest for a stop that is empty, and for too many or too long ones."""
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop has {len(stops)} strings, at most {MAX_STOPS} are taken")
    for i, stop in enumerate(stops):
        if not stop:
            raise InvalidRequest(f"stop[{i}] is empty, it takes 1 to {MAX_STOP_CHARS} characters")
        if len(stop) > MAX_STOP_CHARS:
            raise InvalidRequest(f"stop[{i}] has {len(stop)} characters, at most {MAX_STOP_CHARS} are taken")


class StopMatcher:
    """Follows every stop at once (Knuth-Morris-Pratt). `matched` is the stop that ended the text, or None."""

    def __init__(self, stops: Sequence[str], include_stop: bool) -> None:
        self.matched: str | None = None
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._first_chars = frozenset(stop[0] for stop in stops)
        # Of each stop: how many of its characters the text so far ends with.
        self._lengths = [0] * len(stops)
        self._held = ""

    def push(self, text: str, may_match: bool = True) -> str:
        """What may be shown now; nothing once a stop has matched. may_match: whether this text can complete one."""
        if self.matched is not None:
            return ""
        if not self._held and self._first_chars.isdisjoint(text):
            self._lengths = [0] * len(self._stops)
            return text
        num_before = len(self._held)
        self._held += text
        for end, char in enumerate(text, num_before + 1):
            self._lengths = [_advance(stop, n, char) for stop, n in zip(self._stops, self._lengths, strict=True)]
            complete = [stop for stop, n in zip(self._stops, self._lengths, strict=True) if n == len(stop)]
            if complete and may_match:
                return self._end(max(complete, key=len), end)
            if complete:
                self._lengths = [_uncompleted(stop, n) for stop, n in zip(self._stops, self._lengths, strict=True)]
        return self._show(len(self._held) - max(self._lengths))

    def finish(self) -> str:
        """The tail that was held back, where no stop came of it."""
        return self._show(len(self._held))

    def _show(self, num_chars: int) -> str:
        shown, self._held = self._held[:num_chars], self._held[num_chars:]
        return shown

    def _end(self, stop: str, end: int) -> str:
        self.matched = stop
        shown, self._held = self._held[: end if self._include_stop else end - len(stop)], ""
        return shown


def _advance(stop: str, length: int, char: str) -> int:
    """How many characters of stop the text ends with after char, where it was length (< len(stop)) before."""
    borders = _borders(stop)
    while length and stop[length] != char:
        length = borders[length - 1]
    return length + (stop[length] == char)


def _uncompleted(stop: str, length: int) -> int:
    """As if a stop that is complete were not: what of its end may begin it again."""
    return _borders(stop)[-1] if length == len(stop) else length


@lru_cache(maxsize=1024)
def _borders(stop: str) -> array[int]:
    """borders[i]: length of the longest proper prefix of stop[:i + 1] that also ends it."""
    borders = array("H", [0])
    for i in range(1, len(stop)):
        length = borders[-1]
        while length and stop[length] != stop[i]:
            length = borders[length - 1]
        borders.append(length + (stop[length] == stop[i]))
    return borders
