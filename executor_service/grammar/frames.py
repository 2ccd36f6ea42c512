# SPDX-License-Identifier: Apache-2.0
"""What the executor and its grammar worker say to each other, over pipes: frames of a length and that many bytes.

    to the worker     the vocabulary once, then a Constraint each
    from the worker   b"R" when it is ready, then for each Constraint: b"G" and its grammar, b"I" or b"L" and why not

Does not know grammars.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protos.errors import InvalidRequest, LimitReached, PackserveError

LENGTH_BYTES = 4
READY = b"R"
GRAMMAR = b"G"
ERRORS: dict[bytes, type[PackserveError]] = {b"I": InvalidRequest, b"L": LimitReached}


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(LENGTH_BYTES, "little") + content


def pack_pieces(pieces: Sequence[bytes], vocabulary_size: int) -> bytes:
    lengths = np.array([vocabulary_size, len(pieces), *map(len, pieces)], np.uint32)
    return lengths.tobytes() + b"".join(pieces)


def unpack_pieces(content: bytes) -> tuple[list[bytes], int]:
    """pieces, vocabulary_size"""
    vocabulary_size, num_pieces = np.frombuffer(content, np.uint32, 2).tolist()
    ends = np.frombuffer(content, np.uint32, num_pieces, offset=8).cumsum() + 8 + 4 * num_pieces
    starts = [8 + 4 * num_pieces, *ends[:-1].tolist()]
    return [content[start:end] for start, end in zip(starts, ends.tolist(), strict=True)], vocabulary_size


def pack_error(error: PackserveError) -> bytes:
    code = next(code for code, kind in ERRORS.items() if isinstance(error, kind))
    return code + str(error).encode()


def unpack_answer(answer: bytes) -> str:
    """The grammar. Raises what the worker raised."""
    if answer[:1] in ERRORS:
        raise ERRORS[answer[:1]](answer[1:].decode())
    return answer[1:].decode()
