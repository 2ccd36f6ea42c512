# SPDX-License-Identifier: Apache-2.0
"""The values of `format` that are enforced, each as a pattern whose every match is right.

Where a format's own rules go past what a pattern can say (leap seconds, lengths), the pattern takes less, never more.
Does not know JSON.
"""

from __future__ import annotations

_DAY_OF_ANY_MONTH = "0[1-9]|1[0-9]|2[0-8]"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
# Divisible by 4 and not by 100, or by 400.
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:{_DAY_OF_ANY_MONTH})|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_IPV4_PART = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9a-fA-F]{1,4}"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9]{0,58}|[a-zA-Z0-9]{0,28}-[a-zA-Z0-9]{1,28})"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,15}"
_PATH_CHARACTER = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"


def _ipv6() -> str:
    """All eight groups, or `::` for those left out between the first i and the last few."""
    forms = [f"(?:{_GROUP}:){{7}}{_GROUP}", "::", f"::{_GROUP}(?::{_GROUP}){{0,6}}"]
    for num_before in range(1, 8):
        after = f"(?:{_GROUP}(?::{_GROUP}){{0,{6 - num_before}}})?" if num_before < 7 else ""
        forms.append(f"{_GROUP}(?::{_GROUP}){{{num_before - 1}}}::{after}")
    return f"(?:{'|'.join(forms)})"


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"(?:{_IPV4_PART}\.){{3}}{_IPV4_PART}",
    "ipv6": _ipv6(),
    "hostname": _HOSTNAME,
    "email": rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@{_HOSTNAME}",
    "uri": (
        rf"[a-z][a-z0-9+.-]*://{_HOSTNAME}(?::[0-9]{{1,5}})?(?:/{_PATH_CHARACTER}*)*"
        rf"(?:\?(?:{_PATH_CHARACTER}|[/?])*)?(?:#(?:{_PATH_CHARACTER}|[/?])*)?"
    ),
}
