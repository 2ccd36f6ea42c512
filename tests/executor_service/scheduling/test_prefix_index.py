# SPDX-License-Identifier: Apache-2.0
"""Hashes of blocks are the same everywhere, and never believed alone."""

from __future__ import annotations

import hashlib

import numpy as np

from executor_service.scheduling.prefix_index import Content, PrefixIndex, block_hash, root_hash
from tests.fixtures.sequences import make_cache, make_sequence


def test_hashes_are_of_bytes_and_chained_on_the_parent() -> None:
    """Written out: another process, on another machine, must find the same."""
    sequence = make_sequence(token_ids=np.array([1, -1, 70000, 3, 5, 6, 7, 8, 9], np.int32), cache_salt=b"s")
    first, second = make_cache(block_tokens=4).contents(sequence, 2)
    root = hashlib.blake2b(b"s", digest_size=16).digest()
    ids = bytes.fromhex("01000000 ffffffff 70110100 03000000")
    assert first == Content(hashlib.blake2b(root + ids, digest_size=16).digest(), root, ids)
    assert second.parent == first.hash
    assert first.hash.hex() == "a16d14a040af8e3cfdd67523916f71b6"


def test_equal_ids_after_others_or_under_another_salt_are_another_block() -> None:
    ids = bytes(16)
    hashes = {block_hash(root_hash(b""), ids), block_hash(root_hash(b"s"), ids)}
    hashes.add(block_hash(block_hash(root_hash(b""), ids), ids))
    assert len(hashes) == 3


def test_collision_is_a_miss() -> None:
    index = PrefixIndex()
    index.enter(3, Content(b"hash", b"parent", b"ids"))
    assert index.find(Content(b"hash", b"parent", b"ids")) == 3
    assert index.find(Content(b"hash", b"parent", b"others")) is None
    assert index.find(Content(b"hash", b"another", b"ids")) is None


def test_first_of_two_equal_blocks_stays() -> None:
    index = PrefixIndex()
    content = Content(b"hash", b"parent", b"ids")
    index.enter(3, content)
    index.enter(4, content)
    assert index.find(content) == 3
    assert 4 not in index
    index.forget(4)
    index.check()
    index.forget(3)
    assert (index.find(content), len(index)) == (None, 0)
