# SPDX-License-Identifier: Apache-2.0
"""What is asked of running pods: who they run as, what they may do, that they answer, that a stop waits for streams.

Each check asserts, and returns the line that says what was seen.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.client import Client
from protos.errors import PackserveError
from tests.containers.pods import Pod

PORTS = {"tokenizer": (50051, 50052, 9101), "executor": (50061, 50062, 9102)}
START_TIMEOUT_S = 180
CALL_TIMEOUT_S = 120
MEMORY_BYTES = 2 * 2**30
STREAM_TOKENS = 128
_FACTS = """
import json, os, pathlib
def refusal(path):
    try:
        pathlib.Path(path).write_text("x")
        return ""
    except OSError as error:
        return os.strerror(error.errno)
status = dict(line.split(":\\t", 1) for line in open("/proc/1/status").read().splitlines() if ":\\t" in line)
limits = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max")
print(json.dumps({
    "command": open("/proc/1/cmdline").read().split("\\0"),
    "ids": status["Uid"].split() + status["Gid"].split(),
    "capabilities": {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")},
    "no_new_privs": status["NoNewPrivs"],
    "refusals": {path: refusal(path) for path in ("/x", "/opt/packserve/x", "/models/x", "/tmp/x")},
    "memory": next(int(open(path).read()) for path in limits if os.path.exists(path)),
}))
"""


def wait_ready(pod: Pod) -> str:
    """Readiness on the health port, as its probe asks."""
    started = time.monotonic()
    with grpc.insecure_channel(f"{pod.address}:{PORTS[pod.service][1]}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not _is_serving(stub):
            assert time.monotonic() - started < START_TIMEOUT_S, pod.logs()
            time.sleep(0.2)
    return f"{pod.service}: readiness is SERVING after {time.monotonic() - started:.1f} s"


def _is_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    try:
        request = health_pb2.HealthCheckRequest(service="readiness")
        return bool(stub.Check(request, timeout=5).status == health_pb2.HealthCheckResponse.SERVING)
    except grpc.RpcError:
        return False


def is_confined(pod: Pod) -> str:
    facts = json.loads(pod.python(_FACTS))
    assert facts["command"][:3] == ["python", "-m", f"{pod.service}_service"], facts
    assert set(facts["ids"]) == {"10001"}, facts
    assert not any(facts["capabilities"].values()), facts
    assert facts["no_new_privs"] == "1", facts
    read_only = "Read-only file system"
    expected = {"/x": read_only, "/opt/packserve/x": read_only, "/models/x": read_only, "/tmp/x": ""}
    assert facts["refusals"] == expected, facts
    return (
        f"{pod.service}: process 1 is Python, uid and gid 10001, no capability, no_new_privs; /, /opt and /models "
        f"are read only, /tmp takes a file; memory limit {facts['memory'] // 2**20} MiB"
    )


def sizes_itself(pod: Pod) -> str:
    series = _scrape(pod)
    limit, peak = (
        int(pod.python(f"print(open('/sys/fs/cgroup/memory/memory.{name}_in_bytes').read())"))
        for name in ("limit", "max_usage")
    )
    assert limit == MEMORY_BYTES
    assert series["packserve_kv_blocks"] > 0
    chosen = re.search(r"loading: (.*blocks.*)", pod.logs())
    assert chosen, pod.logs()
    return (
        f"executor: {chosen[1]}; memory peak {peak // 2**20} of {limit // 2**20} MiB, "
        f"resident {int(series['process_resident_memory_bytes']) // 2**20} MiB"
    )


def _scrape(pod: Pod) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://{pod.address}:{PORTS[pod.service][2]}/metrics").read().decode()
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+)(?:{[^}]*})? (\S+)$", text, re.MULTILINE)}


async def answers(tokenizer: Pod, prompt: str) -> str:
    async with Client(f"{tokenizer.address}:{PORTS['tokenizer'][0]}") as client:
        choice = await client.generate(prompt, max_tokens=16, temperature=0, timeout_s=CALL_TIMEOUT_S)
    assert "Paris" in choice.text, choice
    return f"{prompt!r} -> {choice.text!r}"


async def drains(tokenizer: Pod, stopped: Pod) -> str:
    """A stop while a stream is open: the stream goes on to its end, a call begun meanwhile is refused."""
    async with Client(f"{tokenizer.address}:{PORTS['tokenizer'][0]}") as client:
        num_tokens, finish, stopping, asked_at, refused = 0, None, None, 0, ""
        async for choice in client.generate_stream(
            "Once upon a time", max_tokens=STREAM_TOKENS, temperature=0, ignore_eos=True, timeout_s=CALL_TIMEOUT_S
        ):
            num_tokens += len(choice.token_ids)
            if choice.HasField("finish"):
                finish = choice.finish
            if stopping is None and num_tokens >= 8:
                asked_at, began = num_tokens, time.monotonic()
                stopping = asyncio.create_task(asyncio.to_thread(stopped.stop))
            elif stopping and not refused and num_tokens >= asked_at + 32:
                refused = await _refusal(client)
        ended_after_s = time.monotonic() - began
        assert stopping is not None
        exit_code = await stopping
    assert num_tokens == STREAM_TOKENS, (num_tokens, finish)
    assert exit_code == 0, stopped.logs()
    assert refused
    return (
        f"podman stop {stopped.service} after {asked_at} tokens: the stream had all {num_tokens} "
        f"{ended_after_s:.1f} s later; a new call: {refused}; "
        f"exit code {exit_code} after {time.monotonic() - began:.1f} s"
    )


async def _refusal(client: Client) -> str:
    try:
        await client.generate("Hello", max_tokens=1, timeout_s=5)
    except PackserveError as error:
        return f"{type(error).__name__} ({error})"
    return ""
