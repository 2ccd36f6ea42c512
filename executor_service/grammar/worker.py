# SPDX-License-Identifier: Apache-2.0
"""The process in which a constraint is compiled first, and may run out of memory, stack or time without harm.

python -m executor_service.grammar.worker PARENT_PID MAX_BYTES, with frames on stdin and stdout. Ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import numpy as np
from llguidance import LLMatcher

from executor_service.grammar.compiler import GrammarTokenizer, fault, grammar_of
from executor_service.grammar.frames import GRAMMAR, LENGTH_BYTES, READY, frame, pack_error, unpack_pieces
from protos.errors import InvalidRequest, LimitReached
from protos.packserve.v1 import sampling_pb2

# Tokens that are tried after the first: what a later step costs shows here before it can in the executor.
NUM_STEPS = 16
_PR_SET_PDEATHSIG = 1
# Of a thread, where the limit of the main one's stack is no number.
_DEFAULT_STACK_BYTES = 2 * 2**20


def main(parent: int, max_bytes: int) -> None:
    _end_with(parent)
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print is no frame
    content = _read(sys.stdin.buffer)
    if content is None:
        return
    tokenizer = GrammarTokenizer(*unpack_pieces(content))
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + max_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Half of what the executor's thread has: what fits here fits there.
    stack_bytes, _ = resource.getrlimit(resource.RLIMIT_STACK)
    threading.stack_size(max((_DEFAULT_STACK_BYTES if stack_bytes < 0 else stack_bytes) // 2 & ~0xFFFF, 2**19))
    thread = threading.Thread(target=_serve, args=(tokenizer, frames))
    thread.start()
    thread.join()


def _serve(tokenizer: GrammarTokenizer, frames: BinaryIO) -> None:
    answer = READY
    while True:
        frames.write(frame(answer))
        frames.flush()
        content = _read(sys.stdin.buffer)
        if content is None:
            return
        answer = _answer(tokenizer, sampling_pb2.Constraint.FromString(content))


def _answer(tokenizer: GrammarTokenizer, constraint: sampling_pb2.Constraint) -> bytes:
    try:
        grammar = grammar_of(constraint)
        kind = constraint.WhichOneof("kind")
        _walk(tokenizer.matcher(grammar, kind), f"constraint.{kind}")
    except (InvalidRequest, LimitReached) as error:
        return pack_error(error)
    return GRAMMAR + grammar.encode()


def _walk(matcher: LLMatcher, what: str) -> None:
    """A limit that is reached after the first token is one output's, and no fault of the grammar."""
    for step in range(NUM_STEPS):
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        if step == 1 and matcher.is_error() and isinstance(error := fault(matcher, what), LimitReached):
            raise error
        if matcher.is_error() or matcher.is_stopped():
            return
        matcher.consume_token(int(allowed[step * 7919 % len(allowed)]))


def _read(stream: BinaryIO) -> bytes | None:
    """None at its end."""
    length = stream.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    return stream.read(int.from_bytes(length, "little"))


def _data_bytes() -> int:
    """What RLIMIT_DATA counts, now."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["VmData"].split()[0])


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
