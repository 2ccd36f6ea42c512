# SPDX-License-Identifier: Apache-2.0
"""The executors of one model, a link to each, and which of them a row goes to: the one with the least work.

Executors are listed by address, or stand behind a DNS name that is looked up again and again. The first one's model
rules while any of it is connected: others are refused until then, so that a roll-out goes from one to the other. Does
not know rows.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

from protos.errors import Unavailable
from protos.packserve.v1 import executor_pb2
from tokenizer_service.handshake import check_same_model
from tokenizer_service.link import STUCK_AFTER_S, ExecutorLink

DNS_PREFIX = "dns:///"
RESOLVE_EVERY_S = 5.0

logger = logging.getLogger(__name__)


class ExecutorPool:
    """targets: "host:port", or "dns:///name:port" for every address of a name."""

    def __init__(
        self,
        targets: tuple[str, ...],
        hello: executor_pb2.Hello,
        on_change: Callable[[], Awaitable[None]],
        on_wire: Callable[[float], None],
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        self._fixed = tuple(target for target in targets if not target.startswith(DNS_PREFIX))
        self._names = tuple(target.removeprefix(DNS_PREFIX) for target in targets if target.startswith(DNS_PREFIX))
        self._on_change = on_change
        self._new_link = partial(
            ExecutorLink,
            hello=hello,
            on_change=on_change,
            on_wire=on_wire,
            admit=self._admit,
            stuck_after_s=stuck_after_s,
        )
        self._links: dict[str, ExecutorLink] = {}
        self._tasks: dict[ExecutorLink, asyncio.Task[None]] = {}
        self._resolver: asyncio.Task[None] | None = None
        self._picks = count()
        self._picked: dict[ExecutorLink, int] = {}

    @property
    def num_connected(self) -> int:
        return sum(link.is_connected for link in self._links.values())

    @property
    def num_refused(self) -> int:
        return sum(link.is_refused for link in self._links.values())

    @property
    def takes_rows(self) -> bool:
        return any(link.takes_rows for link in self._links.values())

    @property
    def welcome(self) -> executor_pb2.Welcome | None:
        """Of an executor that is connected now; they serve one model."""
        return next((link.welcome for link in self._links.values() if link.welcome), None)

    def pick(self) -> ExecutorLink:
        """The least work first; among equals the one that waited longest for a row."""
        links = [link for link in self._links.values() if link.takes_rows]
        if not links:
            state = f"({self.num_connected} of {len(self._links)})"
            raise Unavailable(f"no executor {'takes rows' if self.num_connected else 'is connected'} {state}")
        link = min(links, key=lambda link: (link.work, self._picked.get(link, -1)))
        self._picked[link] = next(self._picks)
        return link

    def _admit(self, welcome: executor_pb2.Welcome) -> None:
        """Raises OtherModel where executors of another one are connected."""
        if (ruling := self.welcome) is not None:
            check_same_model(welcome.fingerprint, ruling.fingerprint)

    async def start(self) -> None:
        await self._set_addresses(frozenset(self._fixed))
        if self._names:
            self._resolver = asyncio.create_task(self._follow_names())

    async def aclose(self) -> None:
        tasks = [*self._tasks.values(), *([self._resolver] if self._resolver else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_names(self) -> None:
        is_known = True
        while True:
            try:
                found = [await resolve(name) for name in self._names]
                await self._set_addresses(frozenset(self._fixed).union(*found))
                is_known = True
            except OSError as error:
                # A name without a ready executor behind it: told once, not every few seconds.
                if is_known:
                    logger.warning("executors can't be looked up: %s", error)
                is_known = False
            await asyncio.sleep(RESOLVE_EVERY_S)

    async def _set_addresses(self, addresses: frozenset[str]) -> None:
        """A link whose address is gone takes no more rows and ends with its last one."""
        for address in self._links.keys() - addresses:
            self._retire(self._links.pop(address))
        for address in addresses - self._links.keys():
            link = self._new_link(address)
            self._links[address] = link
            self._tasks[link] = task = asyncio.create_task(link.run(), name=address)
            task.add_done_callback(partial(self._forget, link))
        # A link that is retired here counts no more, and may never say anything again.
        await self._on_change()

    def _retire(self, link: ExecutorLink) -> None:
        link.is_retired = True
        if not link.num_open_rows:
            self._tasks[link].cancel()

    def _forget(self, link: ExecutorLink, task: asyncio.Task[None]) -> None:
        self._tasks.pop(link, None)
        self._picked.pop(link, None)
        if not task.cancelled() and (error := task.exception()):
            logger.error("executor %s: its link broke, a restart is needed", link.address, exc_info=error)


async def resolve(name: str) -> frozenset[str]:
    """Addresses behind "host:port"; of one family, so that an executor with two is not met twice."""
    host, _, port = name.rpartition(":")
    infos = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    by_family: dict[int, set[str]] = {}
    for family, _, _, _, address in infos:
        by_family.setdefault(family, set()).add(str(address[0]))
    if socket.AF_INET in by_family:
        return frozenset(f"{ip}:{port}" for ip in by_family[socket.AF_INET])
    return frozenset(f"[{ip}]:{port}" for ip in by_family.get(socket.AF_INET6, ()))
