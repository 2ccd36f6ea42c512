# SPDX-License-Identifier: Apache-2.0
"""A name server for one name on loopback, for gRPC clients: its answer is whatever list it is given."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

TYPE_A = 1
ANSWERED = 0x8180  # a response, recursion asked for and available


class DnsServer(asyncio.DatagramProtocol):
    """Answers any question for A records with ``addresses``, and every other one with nothing."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: Any) -> None:
        name_end = data.index(b"\0", 12) + 1
        (kind,) = struct.unpack("!H", data[name_end : name_end + 2])
        addresses = self.addresses if kind == TYPE_A else []
        header = data[:2] + struct.pack("!HHHHH", ANSWERED, 1, len(addresses), 0, 0)
        answers = b"".join(
            struct.pack("!HHHIH", 0xC00C, TYPE_A, 1, 0, 4) + socket.inet_aton(address) for address in addresses
        )
        self._transport.sendto(header + data[12 : name_end + 4] + answers, sender)


@asynccontextmanager
async def dns_server(addresses: list[str]) -> AsyncIterator[str]:
    """What gRPC puts before a name to have it looked up here. A change of the list is the next answer."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: DnsServer(addresses), ("127.0.0.1", 0))
    try:
        yield f"dns://127.0.0.1:{transport.get_extra_info('sockname')[1]}/"
    finally:
        transport.close()
