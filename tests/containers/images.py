# SPDX-License-Identifier: Apache-2.0
"""Both images, built from this tree by their Containerfiles.

Where no registry answers, a minimal Debian with its Python stands in for the public base image, stripped of what that
image strips. Wheels are gathered outside by the machine's pip, and are all that the build sees of an index.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.containers.engine import Engine, run
from tests.fixtures.repository import ROOT

SUITE = "bookworm"
BUILD_IMAGE, PYTHON_IMAGE = "localhost/python:build", "localhost/python:slim"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGES = {
    "tokenizer": f"localhost/packserve-tokenizer:{VERSION}",
    "executor": f"localhost/packserve-executor:{VERSION}-cpu",
}
_PIP_PACKAGES = ("python3-pip", "python3-setuptools", "python3-wheel")
_UNWANTED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/lib/apt/lists")
_BASE = """FROM scratch
ADD root.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""


def build_bases(engine: Engine) -> None:
    """One with pip, and one as it is run."""
    if _exists(engine, PYTHON_IMAGE):
        return
    root = engine.work / "debian"
    shutil.rmtree(root, ignore_errors=True)
    packages = ",".join(("python3", "ca-certificates", *_PIP_PACKAGES))
    run("debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(root), _mirror())
    _import(engine, root, BUILD_IMAGE)
    run("chroot", str(root), "dpkg", "--purge", "--force-depends", *_PIP_PACKAGES)
    _import(engine, root, PYTHON_IMAGE)
    shutil.rmtree(root)


def _import(engine: Engine, root: Path, image: str) -> None:
    run("chroot", str(root), "apt-get", "clean")
    for path in (*(root / name for name in _UNWANTED), *list(root.rglob("__pycache__"))):
        shutil.rmtree(path, ignore_errors=True)
    context = engine.work / "base"
    context.mkdir(exist_ok=True)
    (context / "Containerfile").write_text(_BASE)
    run("tar", "-C", str(root), "-cf", str(context / "root.tar"), ".")
    engine.buildah("bud", "--isolation", "chroot", "-t", image, str(context))
    shutil.rmtree(context)


def _mirror() -> str:
    """The one that this machine's apt uses."""
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)").splitlines()
    return next(target.split()[0] for target in targets if target.split()[1:] == [SUITE])


def gather_wheels(work: Path) -> Path:
    wheels = work / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", str(wheels), "-c", "constraints.txt"]
    subprocess.run([*command, ".[tokenizer,executor]", "hatchling"], cwd=ROOT, check=True, capture_output=True)
    for own in wheels.glob("packserve-*"):  # the build makes it again
        own.unlink()
    return wheels


def build(engine: Engine, service: str, wheels: Path) -> None:
    configuration = engine.work / "pip.conf"
    configuration.write_text("[global]\nno-index = true\nfind-links = /wheelhouse\n")
    settings = {
        "BUILD_IMAGE": BUILD_IMAGE,
        "PYTHON_IMAGE": PYTHON_IMAGE if service == "tokenizer" else BUILD_IMAGE,
        "VARIANT": "cpu",
        "VERSION": VERSION,
        "REVISION": run("git", "-C", str(ROOT), "rev-parse", "HEAD"),
    }
    arguments = [f"--build-arg={name}={value}" for name, value in settings.items()]
    mounts = [f"--volume={wheels}:/wheelhouse:ro", f"--volume={configuration}:/etc/pip.conf:ro"]
    containerfile = str(ROOT / f"{service}_service" / "Containerfile")
    engine.buildah(
        "bud", "--isolation=chroot", *arguments, *mounts, "-f", containerfile, "-t", IMAGES[service], str(ROOT)
    )


def unpacked_bytes(engine: Engine, image: str) -> int:
    """Of every file in it, as podman counts too."""
    return int(engine.podman("image", "inspect", "--format", "{{.Size}}", image))


def _exists(engine: Engine, image: str) -> bool:
    return image in engine.buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines()
