# SPDX-License-Identifier: Apache-2.0
"""A bad setting stops the start and names itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from protos.errors import ConfigError
from protos.server import Ports
from tokenizer_service.config import TokenizerConfig


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("TOKENIZER_PORT=99999: must be 0 to 65535", {"ports": Ports(port=99999)}),
        ("TOKENIZER_METRICS_PORT=-1: must be 0 to 65535", {"ports": Ports(metrics_port=-1)}),
        ("TOKENIZER_MODEL=nowhere: must be a directory", {"model": Path("nowhere")}),
        ("TOKENIZER_EXECUTORS=: must name at least one", {"executors": ()}),
        ("TOKENIZER_EXECUTORS=host: must be host:port", {"executors": ("a:1", "host")}),
        ("TOKENIZER_EXECUTORS=dns:///a:x: must be", {"executors": ("dns:///a:x",)}),
        ("TOKENIZER_DRAIN_TIMEOUT_S=-1: must be 0 or more", {"drain_timeout_s": -1}),
        ("TOKENIZER_EXECUTOR_STUCK_AFTER_S=0: must be above 0", {"executor_stuck_after_s": 0}),
        ("TOKENIZER_MAX_CONNECTION_AGE_S=0.5: must be 0 (none)", {"max_connection_age_s": 0.5}),
    ],
)
def test_bad_setting_names_itself(tmp_path: Path, words: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        TokenizerConfig(**{"model": tmp_path, **settings})


def test_name_is_the_directory_unless_given(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    assert TokenizerConfig(tmp_path / "tiny").model_name == "tiny"
    assert TokenizerConfig(tmp_path / "tiny", "other").model_name == "other"
