# SPDX-License-Identifier: Apache-2.0
"""Puts the executor together: config, model, engine, streams, server. The one place that knows all of them.

The port and liveness are there before the model is loaded; readiness comes after a warm-up step.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from executor_service.config import ExecutorConfig
from executor_service.engine import Engine
from executor_service.grammar.grammars import Grammars
from executor_service.loading import LoadedModel, load_model
from executor_service.metrics import Metrics
from executor_service.observer import EngineObserver
from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence_cache import SequenceCache
from executor_service.wire.admission import Admission
from executor_service.wire.servicer import ExecutorServicer
from executor_service.wire.streams import Streams
from protos.errors import EngineFailure
from protos.metrics import new_registry
from protos.packserve.v1 import executor_pb2, executor_pb2_grpc
from protos.server import PROTOCOL_VERSION, Server

SERVICE_NAME = "packserve.v1.ExecutorService"
_HEALTH_POLL_S = 0.2
# The thread that loads the model.
LOADING = "loading"

log = logging.getLogger(__name__)
T = TypeVar("T")


async def serve(config: ExecutorConfig) -> None:
    """Until SIGTERM. Raises ConfigError where a setting or the model directory stops the start."""
    metrics = Metrics(new_registry(), config.model_name)
    server = Server(SERVICE_NAME, "EXECUTOR", config, metrics.registry)
    servicer = ExecutorServicer()
    executor_pb2_grpc.add_ExecutorServiceServicer_to_server(servicer, server.grpc)
    ports = await server.start()
    log.info("listening on port %d, health %d, metrics %d", ports.port, ports.health_port, ports.metrics_port)
    executor = Executor(config, metrics, server, servicer)
    running = asyncio.create_task(executor.run())
    serving = asyncio.create_task(server.run_until_signal(executor.drain))
    await asyncio.wait({running, serving}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        server.request_stop()
        await serving
        running.result()
    running.cancel()
    await executor.aclose()


@dataclass
class Executor:
    config: ExecutorConfig
    metrics: Metrics
    server: Server
    servicer: ExecutorServicer
    streams: Streams | None = None

    async def run(self) -> None:
        """Loads, warms up, then keeps the health service truthful. Raises EngineFailure: only a restart helps then."""
        model, admission = await _in_daemon_thread(lambda: _load(self.config))
        self.streams = self._start(model, admission)
        while True:
            was_serving = self.server.health.is_serving
            await self.server.health.set_serving(self.streams.engine.can_serve(self.config.stuck_after_s))
            if error := self.streams.engine.error:
                raise EngineFailure(f"the engine has stopped: {error}") from error
            if self.server.health.is_serving is not was_serving:
                log.info("%s is %s", model.info.name, "not served" if was_serving else "served")
            await asyncio.sleep(_HEALTH_POLL_S)

    def _start(self, model: LoadedModel, admission: Admission) -> Streams:
        config, info = self.config, model.info
        runner = model.runner
        cache = SequenceCache(runner.model.cache_groups, runner.num_blocks, config.block_tokens)
        scheduler = Scheduler(cache, config.max_step_tokens, config.max_sequences)
        engine = Engine(scheduler, runner, config.depth)
        grammars = Grammars(model.vocabulary, info.vocabulary_size, self.metrics.grammar_seconds.observe)
        streams = Streams(engine, admission, grammars, config.max_queued)
        self.metrics.watch(engine, grammars, _labels(model, config))
        engine.start(EngineObserver(streams, self.metrics))
        self.servicer.open(streams, _welcome(model))
        return streams

    async def drain(self) -> None:
        if self.streams:
            self.streams.drain()

    async def aclose(self) -> None:
        if self.streams:
            self.streams.engine.stop(timeout_s=5)
            await self.streams.grammars.aclose()


def _load(config: ExecutorConfig) -> tuple[LoadedModel, Admission]:
    model = load_model(config)
    info = model.info
    eos_token_ids = frozenset(info.eos_token_ids)
    return model, Admission(
        info.vocabulary_size, info.max_context_tokens, eos_token_ids, info.defaults, model.vocabulary
    )


def _labels(model: LoadedModel, config: ExecutorConfig) -> dict[str, str]:
    """Of packserve_model_info."""
    return {
        "model": model.info.name,
        "architecture": model.info.architecture,
        "dtype": model.fingerprint.dtype,
        "quantization": model.fingerprint.quantization,
        "device": config.device,
    }


def _welcome(model: LoadedModel) -> executor_pb2.Welcome:
    return executor_pb2.Welcome(
        protocol_version=PROTOCOL_VERSION,
        instance_id=uuid4().hex,
        fingerprint=model.fingerprint,
        model=model.info,
    )


def _in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """As asyncio.to_thread, but a process that is told to stop need not wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            settle = functools.partial(future.set_result, work())
        except Exception as error:  # noqa: BLE001 handed to the one who waits
            settle = functools.partial(future.set_exception, error)
        loop.call_soon_threadsafe(lambda: future.done() or settle())

    threading.Thread(target=run, name=LOADING, daemon=True).start()
    return future
