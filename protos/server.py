# SPDX-License-Identifier: Apache-2.0
"""What every server has beside its service: ports, health, reflection, metrics, drain, and errors made statuses.

Does not know what a service answers. A service adds its servicer to `Server.grpc` and tells `Server.health` when it
can answer.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol
from wsgiref.simple_server import WSGIServer

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, start_http_server

from protos.calls import Calls
from protos.errors import ConfigError
from protos.metrics import watch_server

# What Hello and Welcome carry. Changes when an older peer would misread a message.
PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 4 * 2**20
# Rows, and cancellations, in one ExecuteRequest.
MAX_ROWS_PER_MESSAGE = 8192

OPTIONS: tuple[tuple[str, int], ...] = (
    # Without it a second server on a used port starts and takes some of the first one's calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Callers may ping every 10 s, also without calls.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)

# Set in a child's environment to its parent's process id: the service then drains when the parent is gone.
STOP_WITH_PARENT = "PACKSERVE_STOP_WITH_PARENT"
_PR_SET_PDEATHSIG = 1

# How long a server that drains refuses new calls at least.
NOTICE_S = 2.0

READINESS_SERVICES = ("", "startup", "readiness")
LIVENESS_SERVICE = "liveness"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ports:
    """Where a server listens; 0 takes a free port."""

    # Every address of the machine, of both families where it has both.
    host: str = "[::]"
    port: int = 0
    health_port: int = 0
    metrics_port: int = 0

    def check(self, prefix: str) -> None:
        """Raises ConfigError with the setting's name, which begins with ``prefix``."""
        for name in ("port", "health_port", "metrics_port"):
            if not 0 <= (port := getattr(self, name)) < 65536:
                raise ConfigError(f"{prefix}_{name.upper()}={port}: must be 0 to 65535")

    def __str__(self) -> str:
        return f"host={self.host} port={self.port} health_port={self.health_port} metrics_port={self.metrics_port}"


def new_server(*interceptors: grpc.aio.ServerInterceptor, max_connection_age_s: float = 0.0) -> grpc.aio.Server:
    """max_connection_age_s: after so long a connection takes no new calls, and closes when its calls have ended; the
    caller makes another, perhaps to another replica. 0: never."""
    age = (("grpc.max_connection_age_ms", int(max_connection_age_s * 1000)),) if max_connection_age_s else ()
    return grpc.aio.server(interceptors=interceptors, options=(*OPTIONS, *age))


def bind(server: grpc.aio.Server, host: str, port: int, setting: str) -> int:
    """The port that was bound. Raises ConfigError, naming the setting, where another process has it."""
    try:
        return server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise ConfigError(f"{setting}={port}: can't listen on {host}:{port}, is it in use?") from error


def serve_metrics(host: str, port: int, setting: str, registry: CollectorRegistry) -> WSGIServer:
    """Answers /metrics from a thread of its own until shut down."""
    if host == Ports.host and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104
    try:
        httpd, _ = start_http_server(port, host.strip("[]"), registry)
    except OSError as error:
        raise ConfigError(f"{setting}={port}: can't listen on {host}:{port}: {error.strerror}") from error
    return httpd


def _close(httpd: WSGIServer) -> None:
    """Blocks until the server's next look at its flag, half a second away at most."""
    httpd.shutdown()
    httpd.server_close()


class Health:
    """What grpc.health.v1 says. Readiness is NOT_SERVING until `set_serving(True)`, and for good after `drain`.

    Liveness is SERVING as long as the event loop answers.
    """

    def __init__(self, *service_names: str) -> None:
        self.servicer = health.aio.HealthServicer()
        self._readiness_services = (*READINESS_SERVICES, *service_names)
        self._is_draining = False
        self.is_serving = False

    async def start(self) -> None:
        await self.servicer.set(LIVENESS_SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await self._publish()

    async def set_serving(self, is_serving: bool) -> None:
        is_serving = is_serving and not self._is_draining
        if is_serving != self.is_serving:
            self.is_serving = is_serving
            await self._publish()

    async def drain(self) -> None:
        self._is_draining = True
        await self.set_serving(False)

    async def _publish(self) -> None:
        status = health_pb2.HealthCheckResponse
        for name in self._readiness_services:
            await self.servicer.set(name, status.SERVING if self.is_serving else status.NOT_SERVING)


class Settings(Protocol):
    """What a server reads of its service's configuration."""

    @property
    def ports(self) -> Ports: ...
    @property
    def drain_timeout_s(self) -> float: ...


class Server:
    """A service's main port, its health port and its metrics port, from bind to drained.

    ``prefix`` starts the names of the settings in messages: TOKENIZER or EXECUTOR. ``max_connection_age_s`` is the main
    port's.
    """

    def __init__(
        self,
        service_name: str,
        prefix: str,
        settings: Settings,
        registry: CollectorRegistry,
        max_connection_age_s: float = 0.0,
    ) -> None:
        self.calls = Calls()
        self.grpc = new_server(self.calls, max_connection_age_s=max_connection_age_s)
        self.health = Health(service_name)
        self._health_grpc = new_server()
        self._service_name = service_name
        self._prefix = prefix
        self._settings = settings
        self._registry = registry
        self._httpd: WSGIServer | None = None
        self._stop_requests: asyncio.Queue[None] = asyncio.Queue()
        self._closing: asyncio.Task[None] | None = None
        watch_server(registry, prefix.lower(), lambda: self.health.is_serving)

    async def start(self) -> Ports:
        """Binds all three ports and answers. Returns them as bound. Readiness is the service's to set."""
        ports, prefix = self._settings.ports, self._prefix
        for server in (self.grpc, self._health_grpc):
            health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        names = (self._service_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)
        port = bind(self.grpc, ports.host, ports.port, f"{prefix}_PORT")
        health_port = bind(self._health_grpc, ports.host, ports.health_port, f"{prefix}_HEALTH_PORT")
        self._httpd = serve_metrics(ports.host, ports.metrics_port, f"{prefix}_METRICS_PORT", self._registry)
        await self.health.start()
        await self._health_grpc.start()
        await self.grpc.start()
        return replace(ports, port=port, health_port=health_port, metrics_port=self._httpd.server_port)

    def request_stop(self) -> None:
        """As a signal does: the first drains, the second stops at once."""
        self._stop_requests.put_nowait(None)

    async def run_until_signal(self, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serves until SIGTERM or SIGINT, drains, stops. ``on_drain`` runs when the drain begins."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.request_stop)
        self._watch_parent()
        try:
            await self._stop_requests.get()
            await self.drain(on_drain)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await self.stop()

    def _watch_parent(self) -> None:
        if parent := os.environ.get(STOP_WITH_PARENT):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != int(parent):  # it went before we asked
                self.request_stop()

    async def drain(self, on_drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """No new calls; returns when the open ones have ended, time is up, or another stop is requested."""
        logger.info("draining %d open calls", self.calls.num_open)
        await self.health.drain()
        self.calls.close("the server is draining")
        if on_drain is not None:
            await on_drain()
        waits = [asyncio.ensure_future(self._idle_and_known()), asyncio.ensure_future(self._stop_requests.get())]
        await asyncio.wait(waits, timeout=self._settings.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _idle_and_known(self) -> None:
        """Balancers ask for health every second or so. Until they know, what they still send is refused with a status
        that they retry elsewhere; a server that is gone would end it as cancelled."""
        await asyncio.sleep(NOTICE_S)
        # Connections are told to end with their last call: callers that know no other replica look for one.
        self._closing = asyncio.create_task(self.grpc.stop(self._settings.drain_timeout_s))
        await self.calls.wait_idle()

    async def stop(self) -> None:
        """Calls that are still open are cancelled; answers that are on their way get a moment to leave."""
        await self.grpc.stop(0.2)
        await self._health_grpc.stop(0.2)
        if self._httpd is not None:
            threading.Thread(target=_close, args=(self._httpd,), daemon=True).start()
