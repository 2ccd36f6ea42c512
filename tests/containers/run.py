# SPDX-License-Identifier: Apache-2.0
"""Both images built and the local overlay run with podman: ``python -m tests.containers.run`` prints what it saw.

Needs root on Debian, and installs buildah, podman and debootstrap where they are missing. Leaves nothing behind: pods,
networks, chains of iptables; images and the base stay in --work, where that is given, for the next run.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console

from executor_service.conversion import demo_model
from tests.containers import checks, images, pods
from tests.containers.engine import Engine, HostNetwork, install_packages

MAX_TOKENIZER_BYTES = 250_000_000
_STARTED = time.monotonic()


def say(line: str) -> None:
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {line}", flush=True)


def build_images(engine: Engine) -> None:
    images.build_bases(engine)
    say("base image: a minimal Debian with Python 3.11, in place of the public one")
    wheels = images.gather_wheels(engine.work)
    for service, image in images.IMAGES.items():
        began = time.monotonic()
        images.build(engine, service, wheels)
        num_bytes = images.unpacked_bytes(engine, image)
        say(f"{image}: built in {time.monotonic() - began:.0f} s, {num_bytes / 1e6:.0f} MB unpacked")
    assert images.unpacked_bytes(engine, images.IMAGES["tokenizer"]) < MAX_TOKENIZER_BYTES


async def check(executor: pods.Pod, tokenizer: pods.Pod) -> None:
    for pod in (executor, tokenizer):
        say(checks.wait_ready(pod))
        say(checks.is_confined(pod))
    say(await checks.answers(tokenizer, "The capital of France is"))
    say(checks.sizes_itself(executor))
    for stopped in (tokenizer, executor):
        say(await checks.drains(tokenizer, stopped))
        stopped.start()
        checks.wait_ready(stopped)
        checks.wait_ready(tokenizer)
    say(await checks.answers(tokenizer, "The capital of France is"))


@click.command()
@click.option(
    "--work", type=Path, help="Keeps base, images and wheels there; without it, in a directory that goes away."
)
@click.option("--storage-driver", default="overlay", help="vfs where the file system takes no overlay.")
@click.option("--build/--no-build", default=True, help="Without it, the images of --work are taken as they are.")
def main(work: Path | None, storage_driver: str, build: bool) -> None:
    """Build both images and prove them in pods."""
    install_packages()
    directory = work.resolve() if work else Path(tempfile.mkdtemp(prefix="packserve-containers-"))
    model = demo_model.ensure(Console(stderr=True))
    engine = Engine(directory, storage_driver)
    network = HostNetwork()
    try:
        if build:
            build_images(engine)
        with pods.playing(engine, model) as playing:
            asyncio.run(check(playing["executor"], playing["tokenizer"]))
    finally:
        network.restore()
        engine.unmount()
        if work is None:
            shutil.rmtree(directory)
    say("cleaned up")


if __name__ == "__main__":
    main()
