# SPDX-License-Identifier: Apache-2.0
"""What holds for every file: a licence header, English, a small size."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from tests.fixtures.repository import ROOT, files, is_generated

HEADER = "SPDX-License-Identifier: Apache-2.0"
SOURCES = {".py", ".proto", ".yaml", ".sh", ".cpp", ".h"}
TEXTS = SOURCES | {".md", ".toml", ".json", ".txt"}
MAX_FILE_BYTES = 1_000_000


def own_files(suffixes: set[str]) -> list[Path]:
    scripts = {Path("Makefile"), *(path for path in files() if path.parts[0] == ".ci")}
    return [path for path in files() if not is_generated(path) and (path.suffix in suffixes or path in scripts)]


def test_every_source_file_says_its_licence_on_top() -> None:
    def has_header(path: Path) -> bool:
        lines = (ROOT / path).read_text().splitlines()
        return not lines or any(HEADER in line for line in lines[:2])  # the first of a script is for the shell

    assert [str(path) for path in own_files(SOURCES) if not has_header(path)] == []


def test_sources_and_pages_are_in_english() -> None:
    """Letters are Latin, or Greek symbols. Tests may hold text in any script."""

    def strange_letters(path: Path) -> set[str]:
        letters = {char for char in (ROOT / path).read_text() if char.isalpha() and not char.isascii()}
        return {char for char in letters if not unicodedata.name(char, "").startswith(("LATIN", "GREEK", "MICRO"))}

    found = {str(path): strange_letters(path) for path in own_files(TEXTS) if path.parts[0] != "tests"}
    assert {path: letters for path, letters in found.items() if letters} == {}


def test_no_file_is_large() -> None:
    assert [str(path) for path in files() if (ROOT / path).stat().st_size > MAX_FILE_BYTES] == []


def test_licence_is_the_whole_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
