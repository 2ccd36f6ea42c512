# SPDX-License-Identifier: Apache-2.0
"""buildah and podman with storage, networks and configuration of their own in one directory, without a daemon.

Knows how to run them where systemd is not: runc, cgroupfs, limits that need no privilege to raise. Does not
know images or pods.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ["aardvark-dns", "buildah", "catatonit", "debootstrap", "iptables", "netavark", "podman", "runc"]
_PROGRAMS = ("buildah", "debootstrap", "iptables", "podman", "runc")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_CONFIGURATION = """
[containers]
# Soft and hard alike: pods of podman 4.3 swap them.
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{networks}"
"""


def run(*command: str, **environment: str) -> str:
    """Its output. Raises RuntimeError with all it said where it failed."""
    return _completed(command, environment).stdout.strip()


def _completed(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result


def install_packages() -> None:
    if not all(shutil.which(program) for program in _PROGRAMS):
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "--no-install-recommends", *PACKAGES, DEBIAN_FRONTEND="noninteractive")


@dataclass(frozen=True)
class Engine:
    work: Path
    storage_driver: str

    def __post_init__(self) -> None:
        networks = self.work / "networks"
        networks.mkdir(parents=True, exist_ok=True)
        self._configuration.write_text(_CONFIGURATION.format(networks=networks))

    @property
    def _configuration(self) -> Path:
        return self.work / "containers.conf"

    def _storage(self) -> Sequence[str]:
        run_root = self.work / "run"
        return f"--root {self.work}/storage --runroot {run_root} --storage-driver {self.storage_driver}".split()

    @property
    def _environment(self) -> Mapping[str, str]:
        return {"CONTAINERS_CONF": str(self._configuration)}

    def buildah(self, *arguments: str) -> str:
        return run("buildah", *self._storage(), *arguments, **self._environment)

    def podman(self, *arguments: str) -> str:
        return run(*self._podman(), *arguments, **self._environment)

    def logs(self, container: str) -> str:
        """podman gives what went to stderr on its own stderr."""
        return _completed((*self._podman(), "logs", container), self._environment).stderr

    def _podman(self) -> Sequence[str]:
        return ("podman", *self._storage(), f"--tmpdir={self.work}/tmp")

    def unmount(self) -> None:
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (path := line.split()[1]).startswith(f"{self.work}/"):
                run("umount", path)


class HostNetwork:
    """What podman changes in it, as it was before. Chains that others made are left alone."""

    def __init__(self) -> None:
        self._forwarding = _FORWARDING.read_text()
        self._chains = _chains()

    def restore(self) -> None:
        for table, chain in _chains() - self._chains:
            for rule in re.findall(rf"^-A (.* -j {chain}(?: .*)?)$", _rules(table), re.MULTILINE):
                run("iptables", "-t", table, "-D", *shlex.split(rule))
        for table, chain in _chains() - self._chains:
            run("iptables", "-t", table, "-F", chain)
        for table, chain in _chains() - self._chains:
            run("iptables", "-t", table, "-X", chain)
        _FORWARDING.write_text(self._forwarding)


def _chains() -> set[tuple[str, str]]:
    tables = ("filter", "nat")
    return {(table, chain) for table in tables for chain in re.findall(r"^-N (\S+)", _rules(table), re.MULTILINE)}


def _rules(table: str) -> str:
    return run("iptables", "-t", table, "-S")
