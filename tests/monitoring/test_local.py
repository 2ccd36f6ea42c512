# SPDX-License-Identifier: Apache-2.0
"""The stack on one machine: what it asks of Prometheus, what its page serves, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from k8s.monitoring.local import programs
from k8s.monitoring.local.page_server import PAGE, serving_page
from k8s.monitoring.local.panels import read_panels
from k8s.monitoring.local.programs import ALERTMANAGER, CHROMIUM, PROMETHEUS, ensure
from protos.errors import ConfigError
from tests.fixtures.repository import ROOT
from tests.monitoring.letters import write_letters_model

PNG = b"\x89PNG\r\n\x1a\n"
PANELS = read_panels()


def test_expressions_have_no_variable_left() -> None:
    exprs = [target.expr for panel in PANELS for target in panel.targets]
    assert len(exprs) > 60
    assert [expr for expr in exprs if "$" in expr] == []


def test_panels_that_need_the_exporter_are_named() -> None:
    """And they are a row of their own, so that a whole row is empty or none of it."""
    rows = {(panel.row, panel.needs_npu_exporter) for panel in PANELS}
    assert [row for row, needs in rows if needs] == ["Ascend NPU"]
    assert ("Ascend NPU", False) not in rows


def test_missing_programs_are_named_where_they_cannot_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"missing: no-such-program.*apt-get install .* no-such-program"):
        ensure("sh", "no-such-program")


class FakePrometheus(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(400 if "bad" in self.path else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"asked": self.path}).encode())

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), FakePrometheus) as fake:
        thread = threading.Thread(target=fake.serve_forever, args=(0.05,))
        thread.start()
        with serving_page(f"http://127.0.0.1:{fake.server_port}") as url:
            yield url
        fake.shutdown()
        thread.join()


def test_page_passes_queries_on(page: str) -> None:
    """Prometheus' API, errors included, is on the page's own origin."""
    answer = urllib.request.urlopen(f"{page}api/v1/query?query=up").read()
    assert json.loads(answer) == {"asked": "/api/v1/query?query=up"}
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(f"{page}api/v1/query?query=bad")
    caught.value.close()


def test_page_serves_its_own_files_alone(page: str) -> None:
    """Every file that the page or one of its scripts names; nothing above its folder."""
    for file in PAGE.iterdir():
        assert urllib.request.urlopen(f"{page}{file.name}").read() == file.read_bytes()
        named = re.findall(r'(?:src|href|from)[ =]"(?:\./)?([^"]+)"', file.read_text())
        assert [name for name in named if not (PAGE / name).is_file()] == []
    for path in ("nothing.js", "../page_server.py", "%2e%2e/page_server.py", "//etc/passwd"):
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(page + path)
        caught.value.close()


def test_page_says_that_it_is_not_grafana(page: str) -> None:
    text = " ".join(urllib.request.urlopen(page).read().decode().split())
    assert "It is not Grafana" in text
    assert len(json.load(urllib.request.urlopen(f"{page}panels"))) == len(PANELS)


@contextmanager
def running_stack_command(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Its children are told apart from others' by the folder in their environment."""
    try:
        ensure(PROMETHEUS, ALERTMANAGER, CHROMIUM)
    except ConfigError as error:
        pytest.skip(str(error))
    model = write_letters_model(folder / "model")
    command = [sys.executable, "-m", "k8s.monitoring.local", "--model", str(model), *arguments]
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def processes_of(folder: Path) -> list[str]:
    mark = f"TMPDIR={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.slow
def test_one_command_takes_a_picture_with_data_in_every_panel(tmp_path: Path) -> None:
    """In Chromium. Nothing is left behind, neither processes nor files."""
    file = tmp_path / "picture.png"
    with running_stack_command(tmp_path, "--for", "25", "--screenshot", str(file)) as process:
        printed, _ = process.communicate(timeout=150)
    assert process.returncode == 0, printed
    assert f"{len(PANELS)} panels" in printed
    picture = file.read_bytes()
    assert picture.startswith(PNG)
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert width == 1600
    assert height > 2000
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("packserve-monitor-*")) == []


@pytest.mark.slow
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with running_stack_command(tmp_path, "--callers", "2") as process:
        assert process.stdout
        while "Ctrl-C" not in process.stdout.readline():
            assert process.poll() is None
        names = " ".join(processes_of(tmp_path))
        assert all(name in names for name in ("tokenizer_service", "executor_service", PROMETHEUS, ALERTMANAGER))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert processes_of(tmp_path) == []
