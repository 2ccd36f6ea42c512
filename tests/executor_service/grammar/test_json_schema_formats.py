# SPDX-License-Identifier: Apache-2.0
"""Each format's pattern takes what is common and nothing that the format's own rules refuse."""

from __future__ import annotations

import calendar
import datetime
import ipaddress
import re
from itertools import product

import pytest

from executor_service.grammar.json_formats import FORMATS

TAKEN = {
    "date": ["2024-02-29", "1999-12-31", "2000-02-29"],
    "time": ["10:00:00Z", "23:59:59.123+01:30"],
    "date-time": ["2024-02-29T10:00:00Z"],
    "duration": ["P1Y2M3DT4H5M6S", "P2W", "PT5M", "P3D"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["0.0.0.0", "255.1.20.99"],
    "ipv6": ["::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"],
    "hostname": ["localhost", "www.example-site.org"],
    "email": ["first.last@example.org"],
    "uri": ["https://example.org", "ftp://a.b:21/c/d%20e?f=g#h"],
}
REFUSED = {
    "date": ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "0000-01-01", "24-01-01"],
    "time": ["24:00:00Z", "10:00:60Z", "10:00:00", "10:00Z"],
    "date-time": ["2023-02-29T10:00:00Z", "2024-02-29 10:00:00Z"],
    "duration": ["P", "PT", "P1Y3D", "1Y", "P1W2D"],
    "uuid": ["123e4567e89b12d3a456426614174000"],
    "ipv4": ["256.0.0.1", "1.2.3", "01.2.3.4"],
    "ipv6": ["1:2:3:4:5:6:7:8:9", "1::2::3", ":", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8::"],
    "hostname": ["-a", "a-", "a..b", "a_b", ""],
    "email": ["a@", "@b", "a b@c", "a..b@c"],
    "uri": ["example.org", "http://", "http://a b"],
}


@pytest.mark.parametrize("name", FORMATS)
def test_examples(name: str) -> None:
    assert all(re.fullmatch(FORMATS[name], text) for text in TAKEN[name])
    assert not [text for text in REFUSED[name] if re.fullmatch(FORMATS[name], text)]


def test_dates_are_those_of_the_calendar() -> None:
    for year, month, day in product([1, 4, 100, 400, 1900, 2000, 2023, 2024], range(14), range(33)):
        is_day = 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
        text = f"{year:04}-{month:02}-{day:02}"
        assert bool(re.fullmatch(FORMATS["date"], text)) == is_day, text
        if is_day:
            datetime.date.fromisoformat(text)


def test_ipv6_addresses_are_those_of_the_standard_library() -> None:
    for num_before, num_after in product(range(9), range(9)):
        text = ":".join("1" * num_before) + "::" + ":".join("2" * num_after)
        try:
            is_address = bool(ipaddress.IPv6Address(text)) and num_before + num_after < 8
        except ValueError:
            is_address = False
        assert bool(re.fullmatch(FORMATS["ipv6"], text)) == is_address or text == "::", text
