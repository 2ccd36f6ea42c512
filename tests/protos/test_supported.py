# SPDX-License-Identifier: Apache-2.0
"""Fields that a server does not honour are named in the refusal."""

from __future__ import annotations

import pytest

from protos.errors import NotSupported
from protos.packserve.v1 import sampling_pb2, tokenizer_pb2
from protos.supported import refuse_unsupported

UNSUPPORTED = frozenset(
    {
        "packserve.v1.SamplingParameters.min_p",
        "packserve.v1.SamplingParameters.logit_bias",
        "packserve.v1.GenerateRequest.echo",
        "packserve.v1.ChatMessage.name",
    }
)


def test_top_level_field_is_named() -> None:
    with pytest.raises(NotSupported, match=r"^echo is not supported$"):
        refuse_unsupported(tokenizer_pb2.GenerateRequest(echo=False), UNSUPPORTED)


def test_nested_field_is_named_with_its_path() -> None:
    request = tokenizer_pb2.GenerateRequest(sampling=sampling_pb2.SamplingParameters(min_p=0.1))
    with pytest.raises(NotSupported, match=r"^sampling\.min_p is not supported$"):
        refuse_unsupported(request, UNSUPPORTED)


def test_map_field_is_named() -> None:
    with pytest.raises(NotSupported, match=r"^logit_bias is not supported$"):
        refuse_unsupported(sampling_pb2.SamplingParameters(logit_bias={7: 1.0}), UNSUPPORTED)


def test_repeated_message_is_named_with_its_index() -> None:
    chat = tokenizer_pb2.Chat(messages=[tokenizer_pb2.ChatMessage(role="user"), tokenizer_pb2.ChatMessage(name="x")])
    request = tokenizer_pb2.GenerateRequest(prompts=[tokenizer_pb2.Prompt(text="a"), tokenizer_pb2.Prompt(chat=chat)])
    with pytest.raises(NotSupported, match=r"^prompts\[1\]\.chat\.messages\[1\]\.name is not supported$"):
        refuse_unsupported(request, UNSUPPORTED)


def test_honoured_fields_pass() -> None:
    sampling = sampling_pb2.SamplingParameters(temperature=0, max_tokens=3, stop_token_ids=[1])
    refuse_unsupported(
        tokenizer_pb2.GenerateRequest(prompts=[tokenizer_pb2.Prompt(text="a")], sampling=sampling), UNSUPPORTED
    )
