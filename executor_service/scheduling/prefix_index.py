# SPDX-License-Identifier: Apache-2.0
"""Which block holds which tokens after which others: hashes of bytes, each chained on the one before.

The same in every process. Does not know who holds a block, or when one may be entered.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple


def root_hash(salt: bytes) -> bytes:
    """What the first block of a row is chained on: rows of different salts share nothing."""
    return blake2b(salt, digest_size=16).digest()


def block_hash(parent: bytes, token_ids: bytes) -> bytes:
    """token_ids: of one whole block, little-endian int32."""
    return blake2b(parent + token_ids, digest_size=16).digest()


class Content(NamedTuple):
    """Of one block: its own hash, the one before, its ids as little-endian int32."""

    hash: bytes
    parent: bytes
    token_ids: bytes


class PrefixIndex:
    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._contents: dict[int, Content] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._contents

    def has(self, content_hash: bytes) -> bool:
        return content_hash in self._blocks

    def find(self, content: Content) -> int | None:
        """The block with this content. Of equal hashes alone nothing follows: parent and ids are compared."""
        block_id = self._blocks.get(content.hash)
        return block_id if block_id is not None and self._contents[block_id] == content else None

    def enter(self, block_id: int, content: Content) -> None:
        """Of two blocks with one hash the first stays; the other remains without known content."""
        assert block_id not in self._contents, f"block {block_id} was entered twice"
        if content.hash not in self._blocks:
            self._blocks[content.hash] = block_id
            self._contents[block_id] = content

    def forget(self, block_id: int) -> None:
        content = self._contents.pop(block_id, None)
        if content:
            del self._blocks[content.hash]

    def check(self) -> None:
        assert {content.hash: block_id for block_id, content in self._contents.items()} == self._blocks
