# SPDX-License-Identifier: Apache-2.0
"""The console script: what reaches the service, what reaches the terminal, and how a run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from protos.packserve.v1.sampling_pb2 import Choices, Constraint
from protos.server import Ports
from tests.fixtures import fake_service
from tests.fixtures.echo_service import EchoServicer, serve_echo
from tests.fixtures.random_model import write_random_model
from tests.fixtures.repository import ROOT
from tokenizer_service.cli import main
from tokenizer_service.cli.children import with_free_ports
from tokenizer_service.cli.services import names_a_model
from tokenizer_service.cli.up import chosen_ports

SCRIPT = [sys.executable, "-P", "-c", "from tokenizer_service.cli import main; main()"]


@pytest.fixture
def servicer() -> EchoServicer:
    return EchoServicer()


@pytest.fixture
async def address(servicer: EchoServicer) -> AsyncIterator[str]:
    async with serve_echo(servicer) as address:
        yield address


async def invoke(*arguments: str, text: str = "") -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, input=text)


async def test_generate_continues_the_text(servicer: EchoServicer, address: str) -> None:
    result = await invoke("generate", "hello", "--address", address, "--top-k", "5", "--stop", "x")
    assert (result.output, result.exit_code) == ("hello\n", 0)
    (request,) = servicer.requests
    assert (request.prompts[0].text, request.stop, request.sampling.top_k) == ("hello", ["x"], 5)
    assert request.sampling.temperature == 0
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("seed")


async def test_generate_hands_on_penalties(servicer: EchoServicer, address: str) -> None:
    options = ["--min-p", "0.5", "--repetition-penalty", "1.5", "--presence-penalty", "-1", "--frequency-penalty", "2"]
    assert (await invoke("generate", "hi", "--address", address, *options)).exit_code == 0
    sampling = servicer.requests[0].sampling
    assert (sampling.min_p, sampling.repetition_penalty) == (0.5, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1, 2)
    assert not sampling.HasField("constraint")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--json-schema", "-"], Constraint(json_schema="a schema")),
        (["--json"], Constraint(json_object=True)),
        (["--regex", "a+"], Constraint(regex="a+")),
        (["--grammar", "-"], Constraint(grammar="a schema")),
        (["--choice", "yes", "--choice", "no"], Constraint(choices=Choices(choices=["yes", "no"]))),
    ],
)
async def test_generate_hands_on_a_constraint(
    servicer: EchoServicer, address: str, options: list[str], expected: Constraint
) -> None:
    assert (await invoke("generate", "hi", "--address", address, *options, text="a schema")).exit_code == 0
    assert servicer.requests[0].sampling.constraint == expected


async def test_two_constraints_are_one_too_many(servicer: EchoServicer, address: str) -> None:
    result = await invoke("generate", "hi", "--address", address, "--json", "--regex", "a")
    assert result.exit_code == 2
    assert "only one of json_object, regex can be given" in result.stderr
    assert not servicer.requests


async def test_generate_reads_standard_input(address: str) -> None:
    assert (await invoke("generate", "-", "--address", address, text="from a pipe")).output == "from a pipe\n"


async def test_generate_chat_sends_a_message(servicer: EchoServicer, address: str) -> None:
    assert (await invoke("generate", "hi", "--chat", "--address", address)).output == "hi\n"
    (message,) = servicer.requests[0].prompts[0].chat.messages
    assert (message.role, message.text) == ("user", "hi")


async def test_error_is_one_line_and_status_1(address: str) -> None:
    result = await invoke("generate", "hello", "--address", address, "--max-tokens", "-1")
    assert result.exit_code == 1
    assert result.stderr == "Error: max_tokens is -1, must be at least 1\n"


async def test_chat_keeps_the_conversation(servicer: EchoServicer, address: str) -> None:
    result = await invoke("chat", "--system", "S", "--address", address, text="one\ntwo\n")
    assert result.exit_code == 0
    messages = servicer.requests[1].prompts[0].chat.messages
    assert [(message.role, message.text) for message in messages] == [
        ("system", "S"),
        ("user", "one"),
        ("assistant", "Sone"),
        ("user", "two"),
    ]


@pytest.mark.parametrize("command", ["up", "generate", "chat", "model", "quantize"])
async def test_help_is_there(command: str) -> None:
    result = await invoke(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_quantize_becomes_the_program_that_writes_the_target(tmp_path: Path) -> None:
    write_random_model(tmp_path / "-source")
    command = [*SCRIPT, "quantize", "--", "-source", "target"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "target\n"), result.stderr
    assert {path.name for path in (tmp_path / "target").iterdir()} == {"config.json", "model.safetensors"}


async def test_quantize_names_a_source_that_is_not_there(tmp_path: Path) -> None:
    result = await invoke("quantize", str(tmp_path / "nothing"), str(tmp_path / "target"))
    assert result.exit_code == 2
    assert "does not exist" in result.stderr


def test_a_named_model_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_a_model(("--model", "x"), "EXECUTOR_MODEL")
    assert names_a_model(("--model=x",), "EXECUTOR_MODEL")
    assert not names_a_model(("--port", "1"), "EXECUTOR_MODEL")
    monkeypatch.setenv("EXECUTOR_MODEL", "x")
    assert names_a_model((), "EXECUTOR_MODEL")


def test_ports_are_known_while_serving_and_free_for_one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the known ones are in use on this machine is not the question here."""
    names = [prefix + name for prefix in ("", "executor_") for name in ("port", "health_port", "metrics_port")]
    given = dict.fromkeys(names) | {"metrics_port": 9000}
    with monkeypatch.context() as patch:
        patch.setitem(chosen_ports.__globals__, "with_free_ports", lambda *ports: ports)
        tokenizer, executor = chosen_ports("0.0.0.0", True, **given)
    assert tokenizer == Ports("0.0.0.0", 50051, 50052, 9000)
    assert executor == Ports("127.0.0.1", 50061, 50062, 9102)
    tokenizer, executor = chosen_ports("127.0.0.1", False, **given)
    ports = {tokenizer.port, tokenizer.health_port, executor.port, executor.health_port, executor.metrics_port}
    assert len(ports) == 5
    assert 0 not in ports
    assert tokenizer.metrics_port == 9000


def test_free_ports_of_several_services_all_differ() -> None:
    chosen = with_free_ports(*[Ports("127.0.0.1")] * 100)
    assert len({port for each in chosen for port in (each.port, each.health_port, each.metrics_port)}) == 300


class Up:
    """``packserve up`` over fake services, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        fake_service.install(directory)
        self.directory = directory
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "PACKSERVE_HOME": str(directory / "home")}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*SCRIPT, "up", *arguments],
            cwd=self.directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[str, str, int]:
        """stdout, stderr, exit status."""
        process = self.start(*arguments)
        stdout, stderr = process.communicate()
        return stdout, stderr, process.returncode

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[str]]:
        free_ports = [f"--{prefix}{name}=0" for prefix in ("", "executor-") for name in ("port", "health-port")]
        metrics = ["--metrics-port=0", "--executor-metrics-port=0"]
        with self.start("--model", "fine", *free_ports, *metrics) as process:
            assert process.stdout
            while "Ctrl-C stops" not in process.stdout.readline():
                assert process.poll() is None
            yield process
            process.kill()

    def child(self, name: str) -> int:
        return int((self.directory / f"{name}.pid").read_text())

    def is_running(self, name: str) -> bool:
        return Path("/proc", str(self.child(name))).exists()


@pytest.fixture
def packserve_up(tmp_path: Path) -> Up:
    return Up(tmp_path)


def test_up_answers_one_prompt_and_stops_both(packserve_up: Up) -> None:
    assert packserve_up.run("--model", "fine", "--prompt", "hello") == ("hello\n", "", 0)
    assert not packserve_up.is_running("executor")
    assert not packserve_up.is_running("tokenizer")
    assert list((packserve_up.directory / "home" / "logs").iterdir()) == []


def test_up_says_which_service_did_not_start_and_keeps_its_log(packserve_up: Up) -> None:
    stdout, stderr, status = packserve_up.run("--model", "broken", "--prompt", "hello")
    assert (stdout, status) == ("", 1)
    (log,) = (packserve_up.directory / "home" / "logs").iterdir()
    assert "the executor service ended with status 3" in stderr
    assert str(log) in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_both_and_ends_well(packserve_up: Up, number: signal.Signals) -> None:
    with packserve_up.serving() as process:
        process.send_signal(number)
        assert process.wait(20) == 0
        assert not packserve_up.is_running("executor")
        assert not packserve_up.is_running("tokenizer")


@pytest.mark.parametrize("name", ["executor", "tokenizer"])
def test_death_of_a_service_ends_the_other(packserve_up: Up, name: str) -> None:
    with packserve_up.serving() as process:
        os.kill(packserve_up.child(name), signal.SIGKILL)
        _, stderr = process.communicate(timeout=20)
        assert process.returncode == 1
        assert f"the {name} service ended with status -9" in stderr
        assert not packserve_up.is_running("executor")
        assert not packserve_up.is_running("tokenizer")


def test_killed_up_takes_its_services_along(packserve_up: Up) -> None:
    with packserve_up.serving() as process:
        process.kill()
        process.wait()
        deadline_s = time.monotonic() + 20
        while packserve_up.is_running("executor") or packserve_up.is_running("tokenizer"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "-1"], "-1 is not in the range 0<=x<=18446744073709551615"),
        (["--seed", str(2**64)], "is not in the range"),
        (["--max-tokens", "99999999999"], "99999999999 is not in the range"),
        (["--top-k", "99999999999"], "99999999999 is not in the range"),
    ],
)
def test_number_that_no_field_holds_is_refused_in_one_line(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["generate", "Hello", *arguments])
    assert result.exit_code == 2
    assert words in result.output


def test_file_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_bytes(b"{\xff}")
    result = CliRunner().invoke(main, ["generate", "Hello", "--json-schema", str(tmp_path / "schema.json")])
    assert (result.exit_code, "byte 1 is not UTF-8" in result.output) == (1, True)
