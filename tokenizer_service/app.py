# SPDX-License-Identifier: Apache-2.0
"""Puts the tokenizer service together: config, tokenizer, pool, servicer, server. The one place that knows all of them.

The ports and liveness are there before the tokenizer is loaded; it is ready while it has one, and an executor that
takes rows.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from uuid import uuid4

from protos.errors import ConfigError
from protos.metrics import new_registry
from protos.packserve.v1 import executor_pb2, tokenizer_pb2_grpc
from protos.server import PROTOCOL_VERSION, Ports, Server
from tokenizer_service.chat import ChatTemplate
from tokenizer_service.config import TokenizerConfig
from tokenizer_service.encoder import Encoder
from tokenizer_service.generation import Generator
from tokenizer_service.metrics import Metrics
from tokenizer_service.pool import ExecutorPool
from tokenizer_service.prompts import PromptEncoder
from tokenizer_service.servicer import TokenizerServicer
from tokenizer_service.tokenizer import Tokenizer, load_tokenizer

SERVICE_NAME = "packserve.v1.TokenizerService"

logger = logging.getLogger(__name__)


async def serve(config: TokenizerConfig) -> None:
    """Until SIGTERM. Raises ConfigError where a setting or the model directory stops the start."""
    metrics = Metrics(new_registry(), config.model_name)
    server = Server(SERVICE_NAME, "TOKENIZER", config, metrics.registry, config.max_connection_age_s)
    metrics.open_calls.set_function(lambda: server.calls.num_open)
    app = App(config, metrics, server)
    try:
        ports = await app.start()
    except ConfigError:
        await server.stop()
        raise
    print(f"packserve tokenizer: {ports}", flush=True)
    await server.run_until_signal()
    await app.aclose()


@dataclass
class App:
    """From open ports to a pool that looks for executors."""

    config: TokenizerConfig
    metrics: Metrics
    server: Server

    async def start(self) -> Ports:
        servicer = TokenizerServicer()
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(servicer, self.server.grpc)
        self.server.calls.close("the tokenizer is loading")
        ports = await self.server.start()
        servicer.open(await self._load())
        self.server.calls.open()
        await self.pool.start()
        logger.info("%s: looking for executors %s", self.config.model_name, ", ".join(self.config.executors))
        return ports

    async def _load(self) -> Generator:
        config, metrics = self.config, self.metrics
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        template = await asyncio.to_thread(ChatTemplate.load, config.model)
        self.encoder = Encoder(tokenizer, on_encode=metrics.on_encode)
        metrics.encode_waiting.set_function(lambda: self.encoder.num_waiting_chars)
        self.pool = ExecutorPool(
            config.executors, _hello(tokenizer), self._on_change, metrics.wire.observe, config.executor_stuck_after_s
        )
        prompts = PromptEncoder(self.encoder, template)
        return Generator(config.model_name, tokenizer.vocabulary, prompts, self.pool, metrics)

    async def aclose(self) -> None:
        await self.pool.aclose()
        await self.encoder.aclose()

    async def _on_change(self) -> None:
        """An executor came or went, or takes rows where it did not, or the reverse."""
        self.metrics.executors_connected.set(self.pool.num_connected)
        self.metrics.executors_refused.set(self.pool.num_refused)
        await self.server.health.set_serving(self.pool.takes_rows)


def _hello(tokenizer: Tokenizer) -> executor_pb2.Hello:
    return executor_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        instance_id=uuid4().hex,
        vocabulary_sha256=tokenizer.vocabulary.sha256,
    )
