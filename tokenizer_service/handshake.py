# SPDX-License-Identifier: Apache-2.0
"""Whether an executor that says Welcome is one of ours: its protocol, its vocabulary, and its model.

Does not know connections, nor how long to wait before an executor is asked again.
"""

from __future__ import annotations

from protos.errors import NotReady
from protos.packserve.v1 import executor_pb2
from protos.server import PROTOCOL_VERSION

# Where these are equal, equal seeds give equal ids; the vocabulary is the tokenizer's to compare.
MODEL_FIELDS = ("config_sha256", "weights_sha256", "dtype", "quantization")
NUM_SHOWN_CHARS = 12


class OtherModel(NotReady):
    """Right for this tokenizer, but executors of another model are connected. Ends when the last of those goes."""


def check_welcome(welcome: executor_pb2.Welcome, hello: executor_pb2.Hello) -> None:
    """Raises NotReady where the executor can't serve this tokenizer."""
    if welcome.protocol_version != PROTOCOL_VERSION:
        raise NotReady(f"executor's protocol version is {welcome.protocol_version}, ours is {PROTOCOL_VERSION}")
    vocabulary_sha256 = welcome.fingerprint.vocabulary_sha256
    if vocabulary_sha256 != hello.vocabulary_sha256:
        raise NotReady(
            f"executor's vocabulary is {vocabulary_sha256[:NUM_SHOWN_CHARS]}, "
            f"this tokenizer's {hello.vocabulary_sha256[:NUM_SHOWN_CHARS]}"
        )


def check_same_model(theirs: executor_pb2.ModelFingerprint, ours: executor_pb2.ModelFingerprint) -> None:
    """Raises OtherModel, naming the first field that differs from that of the executors that are connected."""
    for field in MODEL_FIELDS:
        found, expected = getattr(theirs, field), getattr(ours, field)
        if found != expected:
            raise OtherModel(
                f"executor's {field} is {found[:NUM_SHOWN_CHARS]!r}, "
                f"that of those connected {expected[:NUM_SHOWN_CHARS]!r}"
            )
