# SPDX-License-Identifier: Apache-2.0
"""What waits together is encoded together, and callers do not feel each other."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from protos.batch import Int32Array
from protos.errors import LimitReached, Unavailable
from protos.vocabulary import Vocabulary
from tokenizer_service import encoder as encoder_module
from tokenizer_service.encoder import Encoder


class GatedTokenizer:
    """A text's ids are its bytes. Each batch waits for the gate; a text with "bad" in it cannot be encoded."""

    vocabulary = Vocabulary(tuple(bytes([i]) for i in range(256)), frozenset(), strips_leading_space=False)

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.started = threading.Event()
        self.batches: list[tuple[list[str], bool]] = []

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[Int32Array]:
        self.started.set()
        assert self.gate.acquire(timeout=10)
        self.batches.append((list(texts), add_special_tokens))
        if "bad" in texts:
            raise ValueError("bad text")
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def open(self) -> None:
        self.gate.release(100)

    async def until_started(self) -> None:
        assert await asyncio.to_thread(self.started.wait, 10)


@pytest.fixture
def tokenizer() -> GatedTokenizer:
    return GatedTokenizer()


@pytest.fixture
async def encoder(tokenizer: GatedTokenizer) -> AsyncIterator[Encoder]:
    encoder = Encoder(tokenizer, max_batch_texts=4)
    yield encoder
    tokenizer.open()
    await encoder.aclose()


async def start_calls(
    encoder: Encoder, calls: list[list[str]], add_special_tokens: bool = True
) -> list[asyncio.Task[list[Int32Array]]]:
    tasks = [asyncio.create_task(encoder.encode(texts, add_special_tokens)) for texts in calls]
    await asyncio.sleep(0)
    return tasks


def as_texts(rows: list[Int32Array]) -> list[str]:
    return [bytes(row.tolist()).decode() for row in rows]


async def test_calls_that_wait_are_one_batch(encoder: Encoder, tokenizer: GatedTokenizer) -> None:
    first = await start_calls(encoder, [["a"]])
    await tokenizer.until_started()
    others = await start_calls(encoder, [["b"], ["c", "d"], [], ["e", "f"]])
    tokenizer.open()
    answers = await asyncio.gather(*first, *others)
    assert [as_texts(rows) for rows in answers] == [["a"], ["b"], ["c", "d"], [], ["e", "f"]]
    assert tokenizer.batches == [(["a"], True), (["b", "c", "d"], True), (["e", "f"], True)]


async def test_a_call_larger_than_a_batch_goes_alone(encoder: Encoder, tokenizer: GatedTokenizer) -> None:
    tokenizer.open()
    assert as_texts(await encoder.encode(list("abcdefg"), False)) == list("abcdefg")


async def test_calls_with_and_without_special_tokens_are_apart(encoder: Encoder, tokenizer: GatedTokenizer) -> None:
    first = await start_calls(encoder, [["a"]])
    await tokenizer.until_started()
    others = await start_calls(encoder, [["b"]], False) + await start_calls(encoder, [["c"]])
    others += await start_calls(encoder, [["d"]], False)
    tokenizer.open()
    await asyncio.gather(*first, *others)
    assert tokenizer.batches == [(["a"], True), (["b", "d"], False), (["c"], True)]


async def test_cancelled_call_hurts_no_other(encoder: Encoder, tokenizer: GatedTokenizer) -> None:
    running = await start_calls(encoder, [["a"], ["b"]])
    await tokenizer.until_started()
    waiting = await start_calls(encoder, [["c"], ["d"]])
    running[0].cancel()
    waiting[0].cancel()
    await asyncio.sleep(0)
    tokenizer.open()
    assert as_texts(await running[1]) == ["b"]
    assert as_texts(await waiting[1]) == ["d"]
    assert tokenizer.batches[-1] == (["d"], True)
    assert running[0].cancelled()
    assert waiting[0].cancelled()


async def test_bad_text_fails_only_its_own_call(encoder: Encoder, tokenizer: GatedTokenizer) -> None:
    tokenizer.open()
    good, bad, other = await start_calls(encoder, [["a"], ["bad"], ["c"]])
    with pytest.raises(ValueError, match="bad text"):
        await bad
    assert as_texts(await good + await other) == ["a", "c"]
    assert as_texts(await encoder.encode(["later"], True)) == ["later"]


@pytest.mark.parametrize(
    ("constant", "limit", "words"),
    [
        ("MAX_WAITING_TEXTS", 3, "4 texts would wait to be encoded, at most 3 do"),
        ("MAX_WAITING_CHARS", 5, "6 characters would wait to be encoded, at most 5 do"),
    ],
)
async def test_what_waits_is_bounded(
    encoder: Encoder, tokenizer: GatedTokenizer, monkeypatch: pytest.MonkeyPatch, constant: str, limit: int, words: str
) -> None:
    monkeypatch.setattr(encoder_module, constant, limit)
    calls = await start_calls(encoder, [["a"], ["bb", "c"]])
    with pytest.raises(LimitReached, match=f"^{words}$"):
        await encoder.encode(["dd"], True)
    calls[1].cancel()
    await asyncio.sleep(0)
    calls += await start_calls(encoder, [["dd"]])  # there is room again
    tokenizer.open()
    assert as_texts(await calls[-1]) == ["dd"]


async def test_event_loop_stays_free(encoder: Encoder, tokenizer: GatedTokenizer) -> None:
    (call,) = await start_calls(encoder, [["a"]])
    await tokenizer.until_started()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    tokenizer.open()
    assert as_texts(await call) == ["a"]


async def test_every_batch_is_reported(tokenizer: GatedTokenizer) -> None:
    reports: list[float] = []
    encoder = Encoder(tokenizer, on_encode=reports.append)
    tokenizer.open()
    await encoder.encode(["a", "b"], True)
    await encoder.aclose()
    (elapsed_s,) = reports
    assert elapsed_s >= 0


async def test_close_answers_what_waits_and_takes_no_more(tokenizer: GatedTokenizer) -> None:
    encoder = Encoder(tokenizer)
    (call,) = await start_calls(encoder, [["a"]])
    await tokenizer.until_started()
    closing = asyncio.create_task(encoder.aclose())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="closed"):
        await encoder.encode(["b"], True)
    tokenizer.open()
    await closing
    assert as_texts(await call) == ["a"]
