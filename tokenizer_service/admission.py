# SPDX-License-Identifier: Apache-2.0
"""What a GenerateRequest must hold, checked before any work; and its prompts, once they are ids.

Sampling ranges are in protos/sampling.py, stop strings in stops.py. Does not know executors beyond their Welcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from protos.batch import Int32Array, check_token_range
from protos.errors import InvalidRequest, LimitReached, NotSupported, PromptTooLong
from protos.packserve.v1 import executor_pb2, tokenizer_pb2
from protos.sampling import MAX_BAD_BYTES, MAX_ENTRIES, check_sampling
from protos.supported import refuse_unsupported
from tokenizer_service.stops import check_stops

UNSUPPORTED = frozenset(
    f"packserve.v1.GenerateRequest.{name}"
    for name in ("echo", "stream_interval_ms", "stream_interval_tokens", "tenant", "truncate_prompt_tokens")
)
OUTPUT_KINDS = (tokenizer_pb2.OUTPUT_KIND_UNSPECIFIED, tokenizer_pb2.OUTPUT_KIND_BOTH)

MAX_CHOICES = 128
# Prompts x choices of one call.
MAX_ROWS = 1024
# Of cache_salt and request_id, which travel with every row.
MAX_LABEL_LENGTH = 256
# Of the sampling parameters of all rows of a call: each row takes its own along.
MAX_CALL_BYTES = 32 * 2**20


def num_choices(request: tokenizer_pb2.GenerateRequest) -> int:
    return request.n if request.HasField("n") else 1


def check_request(request: tokenizer_pb2.GenerateRequest, model_name: str) -> None:
    """Raises InvalidRequest or NotSupported, naming the field."""
    refuse_unsupported(request, UNSUPPORTED)
    if request.output_kind not in OUTPUT_KINDS:
        raise NotSupported(f"output_kind {request.output_kind} is not supported")
    if request.model not in ("", model_name):
        raise InvalidRequest(f"model is {request.model[:100]!r}, this server has {model_name!r}")
    for name in ("cache_salt", "request_id"):
        if len(value := getattr(request, name)) > MAX_LABEL_LENGTH:
            raise InvalidRequest(f"{name} has length {len(value)}, at most {MAX_LABEL_LENGTH} is taken")
    _check_rows(request)
    check_stops(request.stop)
    check_sampling(request.sampling)
    _check_bad_words(request)
    _check_size(request)


def _check_rows(request: tokenizer_pb2.GenerateRequest) -> None:
    n = num_choices(request)
    if not 1 <= n <= MAX_CHOICES:
        raise InvalidRequest(f"n is {n}, must be 1 to {MAX_CHOICES}")
    if not request.prompts:
        raise InvalidRequest("prompts is empty, must have at least 1")
    if len(request.prompts) * n > MAX_ROWS:
        raise InvalidRequest(f"{len(request.prompts)} prompts x {n} choices exceed {MAX_ROWS} for one call")
    for i, prompt in enumerate(request.prompts):
        if prompt.WhichOneof("kind") is None:
            raise InvalidRequest(f"prompts[{i}] has no text, chat or token_ids")
        if prompt.HasField("add_special_tokens") and not prompt.HasField("text"):
            kind = prompt.WhichOneof("kind")
            raise InvalidRequest(f"prompts[{i}].add_special_tokens is set beside {kind}, it is for text")


def _check_bad_words(request: tokenizer_pb2.GenerateRequest) -> None:
    """They are bad_bytes of every row, beside those that are given as bytes."""
    num_words, most = len(request.bad_words), MAX_ENTRIES["bad_bytes"]
    if num_words + len(request.sampling.bad_bytes) > most:
        raise InvalidRequest(
            f"bad_words has {num_words} entries, sampling.bad_bytes {len(request.sampling.bad_bytes)},"
            f" together must be at most {most}"
        )
    for i, word in enumerate(request.bad_words):
        if not 1 <= (num_bytes := len(word.encode())) <= MAX_BAD_BYTES:
            raise InvalidRequest(f"bad_words[{i}] has {num_bytes} bytes, must have 1 to {MAX_BAD_BYTES}")


def _check_size(request: tokenizer_pb2.GenerateRequest) -> None:
    num_rows, num_bytes = len(request.prompts) * num_choices(request), request.sampling.ByteSize()
    if num_rows * num_bytes > MAX_CALL_BYTES:
        raise LimitReached(
            f"sampling has {num_bytes} bytes, {num_rows} rows of it exceed {MAX_CALL_BYTES} for one call"
        )


def check_prompts(prompts: Sequence[Int32Array], model: executor_pb2.ExecutorModel) -> None:
    """Every prompt leaves room for at least one id, and every id is in the model's vocabulary."""
    for i, token_ids in enumerate(prompts):
        if not len(token_ids):
            raise InvalidRequest(f"prompts[{i}] has 0 tokens, must have at least 1")
        if len(token_ids) >= model.max_context_tokens:
            raise PromptTooLong(
                f"prompts[{i}] has {len(token_ids)} tokens, the model's context is {model.max_context_tokens}"
            )
        check_token_range(token_ids, model.vocabulary_size, f"prompts[{i}].token_ids")
