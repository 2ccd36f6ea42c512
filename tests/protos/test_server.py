# SPDX-License-Identifier: Apache-2.0
"""Ports, health, drain and statuses of a server, spoken to by real stubs."""
# ruff: noqa: N802

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.errors import ConfigError, InvalidRequest, PromptTooLong
from protos.metrics import installed_version, new_registry
from protos.packserve.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from protos.server import Ports, Server
from tests.fixtures.waiting import until

SERVICE = "packserve.v1.TokenizerService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass(frozen=True)
class FakeSettings:
    ports: Ports = field(default_factory=lambda: Ports(host="127.0.0.1"))
    drain_timeout_s: float = 5.0


@dataclass
class FakeService(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Streams one message, waits for `go`, streams another; raises what a request's tenant names."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    peers: list[str] = field(default_factory=list)

    async def Generate(self, request: Any, context: Any) -> Any:
        if request.tenant == "gives up":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
        if request.tenant == "own mistake":
            raise ValueError("secret detail")
        raise PromptTooLong("prompts[0] has 9 tokens, the model's context is 8" + "!" * 1000)

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.peers.append(context.peer())
        try:
            yield tokenizer_pb2.GenerateStreamResponse()
            await self.go.wait()
            yield tokenizer_pb2.GenerateStreamResponse()
        except (asyncio.CancelledError, GeneratorExit):
            self.was_cancelled.set()
            raise
        if request.tenant == "bad":
            raise InvalidRequest("no such thing")

    async def Tokenize(self, request: Any, context: Any) -> Any: ...
    async def Detokenize(self, request: Any, context: Any) -> Any: ...
    async def GetModelInfo(self, request: Any, context: Any) -> Any: ...


@dataclass
class Running:
    server: Server
    service: FakeService
    ports: Ports
    channel: grpc.aio.Channel

    @property
    def stub(self) -> Any:
        return tokenizer_pb2_grpc.TokenizerServiceStub(self.channel)

    async def check(self, name: str, channel: grpc.aio.Channel | None = None) -> int:
        stub = health_pb2_grpc.HealthStub(channel or self.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status


@asynccontextmanager
async def running(settings: FakeSettings = FakeSettings(), max_connection_age_s: float = 0.0) -> AsyncIterator[Running]:
    server = Server(SERVICE, "TOKENIZER", settings, new_registry(), max_connection_age_s)
    service = FakeService()
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(service, server.grpc)
    ports = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.port}") as channel:
        yield Running(server, service, ports, channel)
    await server.stop()


async def test_readiness_follows_the_service_and_liveness_does_not() -> None:
    async with running() as it:
        for is_serving in (False, True, False):
            await it.server.health.set_serving(is_serving)
            for name in ("", "startup", "readiness", SERVICE):
                assert await it.check(name) == (SERVING if is_serving else NOT_SERVING)
            assert await it.check("liveness") == SERVING


async def test_health_port_answers_too_and_an_unknown_service_is_not_found() -> None:
    async with running() as it, grpc.aio.insecure_channel(f"127.0.0.1:{it.ports.health_port}") as channel:
        assert await it.check("liveness", channel) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.check("nobody", channel)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_old_connection_takes_no_new_calls_and_ends_with_its_last() -> None:
    """So that callers spread over replicas that came later; no call is cut."""
    async with running(max_connection_age_s=1) as it:
        old = it.stub.GenerateStream(tokenizer_pb2.GenerateRequest())
        assert await old.read() is not grpc.aio.EOF
        await asyncio.sleep(1.5)
        new = it.stub.GenerateStream(tokenizer_pb2.GenerateRequest())
        assert await new.read() is not grpc.aio.EOF
        it.service.go.set()
        assert await old.read() is not grpc.aio.EOF
        assert await old.read() is grpc.aio.EOF
        assert len(set(it.service.peers)) == 2


async def test_calls_are_refused_with_the_reason_until_opened() -> None:
    async with running() as it:
        it.server.calls.close("the tokenizer is loading")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.stub.Generate(tokenizer_pb2.GenerateRequest())
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert error.value.details() == "the tokenizer is loading"
        assert await it.check("liveness") == SERVING

        it.server.calls.open()
        call = it.stub.GenerateStream(tokenizer_pb2.GenerateRequest())
        assert await call.read() is not grpc.aio.EOF


async def test_used_port_refuses_to_start_and_names_the_setting() -> None:
    """B49."""
    async with running() as it:
        for taken, name in (
            (Ports("127.0.0.1", port=it.ports.port), "TOKENIZER_PORT"),
            (Ports("127.0.0.1", health_port=it.ports.health_port), "TOKENIZER_HEALTH_PORT"),
            (Ports("127.0.0.1", metrics_port=it.ports.metrics_port), "TOKENIZER_METRICS_PORT"),
        ):
            second = Server(SERVICE, "TOKENIZER", FakeSettings(taken), new_registry())
            with pytest.raises(ConfigError, match=name):
                await second.start()
            await second.stop()
        assert await it.check("liveness") == SERVING


async def test_error_of_the_domain_becomes_its_status_with_a_short_detail() -> None:
    async with running() as it:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.stub.Generate(tokenizer_pb2.GenerateRequest())
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.value.details().startswith("prompts[0] has 9 tokens")
        assert len(error.value.details()) <= 512


async def test_own_mistake_is_internal_and_keeps_its_words_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as it:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.stub.Generate(tokenizer_pb2.GenerateRequest(tenant="own mistake"))
        assert error.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in error.value.details()
        assert "secret detail" in caplog.text


async def test_call_that_the_server_cancels_is_answered() -> None:
    async with running() as it:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.stub.Generate(tokenizer_pb2.GenerateRequest(tenant="gives up"), timeout=5)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(it.server.calls.wait_idle(), 5)


async def test_error_after_messages_ends_the_stream_with_its_status() -> None:
    async with running() as it:
        it.service.go.set()
        call = it.stub.GenerateStream(tokenizer_pb2.GenerateRequest(tenant="bad"))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            assert len([message async for message in call]) == 2
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_cancelled_stream_runs_the_service_cleanup() -> None:
    async with running() as it:
        call = it.stub.GenerateStream(tokenizer_pb2.GenerateRequest())
        await call.read()
        call.cancel()
        await asyncio.wait_for(it.service.was_cancelled.wait(), 5)
        await asyncio.wait_for(it.server.calls.wait_idle(), 5)


async def test_signal_drains_open_streams_and_refuses_new_calls() -> None:
    async with running() as it:
        await it.server.health.set_serving(True)
        serving = asyncio.create_task(it.server.run_until_signal())
        call = it.stub.GenerateStream(tokenizer_pb2.GenerateRequest())
        await call.read()

        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: not it.server.health.is_serving)
        assert await it.check("readiness") == NOT_SERVING
        assert await it.check("liveness") == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.stub.Generate(tokenizer_pb2.GenerateRequest())
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not serving.done()

        it.service.go.set()
        assert await call.read() is not grpc.aio.EOF
        assert await call.read() is grpc.aio.EOF
        await asyncio.wait_for(serving, 5)


async def test_drain_ends_when_its_time_is_up() -> None:
    async with running(FakeSettings(drain_timeout_s=0.1)) as it:
        call = it.stub.GenerateStream(tokenizer_pb2.GenerateRequest())
        await call.read()
        it.server.request_stop()
        await asyncio.wait_for(it.server.run_until_signal(), 5)
        assert it.service.was_cancelled.is_set()


async def test_second_signal_stops_at_once() -> None:
    async with running(FakeSettings(drain_timeout_s=60)) as it:
        call = it.stub.GenerateStream(tokenizer_pb2.GenerateRequest())
        await call.read()
        it.server.request_stop()
        it.server.request_stop()
        await asyncio.wait_for(it.server.run_until_signal(), 5)


async def test_health_watch_hears_the_drain_and_does_not_hold_it_up() -> None:
    async with running(FakeSettings(drain_timeout_s=60)) as it:
        await it.server.health.set_serving(True)
        watch = health_pb2_grpc.HealthStub(it.channel).Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == SERVING
        it.server.request_stop()
        serving = asyncio.create_task(it.server.run_until_signal())
        assert (await watch.read()).status == NOT_SERVING
        await asyncio.wait_for(serving, 5)


async def test_metrics_and_reflection_answer() -> None:
    async with running() as it:
        url = f"http://127.0.0.1:{it.ports.metrics_port}/metrics"
        body = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
        assert b"process_cpu_seconds_total" in body

        stub = reflection_pb2_grpc.ServerReflectionStub(it.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        services = {service.name for service in (await call.read()).list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= services


@pytest.mark.parametrize("name", ["port", "health_port", "metrics_port"])
def test_port_out_of_range_names_its_setting(name: str) -> None:
    Ports(**{name: 65535}).check("EXECUTOR")
    for port in (-1, 65536):
        with pytest.raises(ConfigError, match=f"^EXECUTOR_{name.upper()}={port}: must be 0 to 65535$"):
            Ports(**{name: port}).check("EXECUTOR")


async def test_readiness_and_build_are_series_too() -> None:
    registry = new_registry()
    server = Server(SERVICE, "TOKENIZER", FakeSettings(), registry)
    assert registry.get_sample_value("packserve_ready") == 0
    labels = {"service": "tokenizer", "version": installed_version()}
    assert registry.get_sample_value("packserve_build_info", labels) == 1
    await server.health.set_serving(True)
    assert registry.get_sample_value("packserve_ready") == 1
    await server.health.drain()
    assert registry.get_sample_value("packserve_ready") == 0
