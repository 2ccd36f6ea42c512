# SPDX-License-Identifier: Apache-2.0
"""B60: a folder of metrics, left from an old run or not to be written, shows at start."""

import pytest

from protos.errors import ConfigError
from protos.metrics import new_registry


def test_metrics_folder_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/tmp/old")
    with pytest.raises(ConfigError, match="PROMETHEUS_MULTIPROC_DIR=/tmp/old"):
        new_registry()
