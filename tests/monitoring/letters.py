# SPDX-License-Identifier: Apache-2.0
"""A model that says the alphabet, and now and then ends: its answers are many, of known law, and take no time."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.byte_tokenizer import END, write_byte_tokenizer
from tests.fixtures.scripted_model import VOCABULARY_SIZE, write_scripted_model

LETTERS = range(ord("a"), ord("z") + 1)
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write_letters_model(directory: Path) -> Path:
    law = {last: {LETTERS[(last + 1) % 26]: 0.95, END: 0.05} for last in range(VOCABULARY_SIZE)}
    return write_byte_tokenizer(write_scripted_model(directory, law, eos=END), chat_template=TEMPLATE)
