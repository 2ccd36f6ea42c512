# SPDX-License-Identifier: Apache-2.0
"""Same ids, logits and scores whatever the company: cached prefixes, preemption, small steps, choices that share their
prompt, neighbours of every kind, two steps in flight. Each against the same request alone with nothing cached. B40."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor_service.scheduling.sequence import Sampling, Sequence
from tests.fixtures.decoding import load_decoder
from tests.fixtures.engine_run import BLOCK, EngineRun, Result
from tests.fixtures.parity_grammar import ParityGrammar
from tests.fixtures.random_model import write_random_model
from tests.fixtures.sequences import make_sequence

CHUNK = 32
NUM_OUTPUT = 8

SAMPLED = Sampling(temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=11)
PENALIZED = Sampling(
    temperature=0.8, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4, seed=5, logprobs=3
)
BIASED = Sampling(logit_bias=((7, 4.0), (9, -3.0)), allowed_token_ids=tuple(range(0, 320, 3)), temperature=1.0, seed=2)
SCORED = Sampling(temperature=1.1, seed=9, logprobs=5, prompt_logprobs=2)

# Prompts below, at and above block and chunk edges; one that crosses several windows.
KINDS: dict[str, tuple[int, Sampling, dict[str, Any]]] = {
    "greedy": (CHUNK + 1, Sampling(), {}),
    "plain": (CHUNK - 1, Sampling(), {}),
    "sampled": (2 * CHUNK, SAMPLED, {}),
    "penalized": (BLOCK, PENALIZED, {}),
    "biased": (BLOCK - 1, BIASED, {}),
    "scored": (3 * CHUNK + 5, SCORED, {}),
    "grammar": (BLOCK + 1, replace(SAMPLED, seed=3), {"has_grammar": True}),
    "patient": (
        CHUNK,
        Sampling(temperature=1.0, seed=4),
        {"min_output_tokens": 6, "stop_token_ids": frozenset(range(0, 320, 2))},
    ),
    "long": (170, SAMPLED, {}),
    "short": (1, Sampling(temperature=1.0, seed=8), {}),
}


def prompt(num_tokens: int, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(0, 256, num_tokens).astype(np.int32)


def request(kind: str, request_id: int | None = None, **changes: Any) -> Sequence:
    num_tokens, sampling, fields = KINDS[kind]
    number = list(KINDS).index(kind)
    values = {"sampling": sampling} | fields | changes
    if values.pop("has_grammar", False):
        values["grammar"] = ParityGrammar()
    token_ids = values.pop("token_ids", None)
    token_ids = prompt(num_tokens, number) if token_ids is None else token_ids
    return make_sequence(
        number if request_id is None else request_id,
        token_ids=token_ids.copy(),
        num_known=len(token_ids),
        num_prompt_tokens=len(token_ids),
        max_output_tokens=NUM_OUTPUT,
        **values,
    )


FAMILIES = {
    "full": {"architecture": "Qwen3ForCausalLM"},
    "windows": {"architecture": "Gemma3ForCausalLM", "sliding_window": 24, "num_layers": 3},
}


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory: Path = tmp_path_factory.mktemp("model")
    write_random_model(directory, **FAMILIES[request.param])
    return load_decoder(directory)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def alone(decoder: Any) -> dict[str, Result]:
    """Each kind by itself: a pool of its own, its prompt in one step."""
    return {kind: EngineRun(decoder).run([request(kind)])[number] for number, kind in enumerate(KINDS)}


def assert_same(results: dict[int, Result], alone: dict[str, Result], kinds: dict[int, str]) -> None:
    assert {i: kind for i, kind in kinds.items() if not results[i].is_same(alone[kind])} == {}


def numbered(*kinds: str) -> dict[int, str]:
    return {list(KINDS).index(kind): kind for kind in kinds}


ALL = numbered(*KINDS)


@pytest.mark.parametrize(("num_threads", "depth"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("max_step_tokens", [7, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 512])
def test_in_company(decoder: Any, alone: dict[str, Result], max_step_tokens: int, num_threads: int, depth: int) -> None:
    torch.set_num_threads(num_threads)
    run = EngineRun(decoder, max_step_tokens=max_step_tokens, depth=depth)
    assert_same(run.run([request(kind) for kind in KINDS]), alone, ALL)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("size", range(2, len(KINDS)))
def test_in_batches_of_every_size(decoder: Any, alone: dict[str, Result], size: int, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    for kinds in (list(KINDS)[:size], list(KINDS)[:-size:-1]):
        assert_same(EngineRun(decoder).run([request(kind) for kind in kinds]), alone, numbered(*kinds))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_step_tokens", [CHUNK, 512])
def test_when_all_was_cached_before(decoder: Any, alone: dict[str, Result], max_step_tokens: int, depth: int) -> None:
    """The second time every full block is there; a row that wants its prompt's scores computes it again."""
    run = EngineRun(decoder, max_step_tokens=max_step_tokens, depth=depth)
    run.run([request(kind) for kind in KINDS])
    assert_same(run.run([request(kind) for kind in KINDS]), alone, ALL)
    assert run.scheduler.num_prefix_hit_tokens > 200


@pytest.mark.parametrize("num_shared", [BLOCK - 1, BLOCK, BLOCK + 1, CHUNK, CHUNK + 1, 160, 169])
@pytest.mark.parametrize("kind", ["long", "scored"])
def test_when_a_part_was_cached(decoder: Any, alone: dict[str, Result], kind: str, num_shared: int) -> None:
    """Hits of whole blocks, at a block's edge, and such that leave less than a chunk."""
    run = EngineRun(decoder, max_step_tokens=CHUNK)
    other = request(kind).token_ids[: KINDS[kind][0]].copy()
    other[num_shared:] += 1
    run.run([request("greedy", 50, token_ids=other)])
    assert_same(run.run([request(kind)]), alone, numbered(kind))
    hits = run.scheduler.num_prefix_hit_tokens
    assert hits == (0 if kind == "scored" else num_shared // BLOCK * BLOCK)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_at_every_point(decoder: Any, alone: dict[str, Result], kind: str, depth: int) -> None:
    (number,) = numbered(kind)
    num_steps = -(-KINDS[kind][0] // CHUNK) + len(alone[kind].token_ids) - 1
    for step in range(1, num_steps):
        run = EngineRun(decoder, max_step_tokens=CHUNK, depth=depth, preempt={step: number})
        assert_same(run.run([request(kind), request("greedy", 60)]), alone, numbered(kind))
        # At depth 2 the last step may be on its way already.
        assert run.scheduler.num_preemptions == 1 or (depth == 2 and step == num_steps - 1)


def test_preempted_again_and_again(decoder: Any, alone: dict[str, Result]) -> None:
    """A pool that holds a part of the rows at once, which they outgrow."""
    kinds = ("greedy", "sampled", "penalized", "biased", "grammar", "patient", "short")
    run = EngineRun(decoder, num_blocks=8, max_step_tokens=CHUNK, depth=2)
    assert_same(run.run([request(kind) for kind in kinds]), alone, numbered(*kinds))
    assert run.scheduler.num_preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["sampled", "penalized", "grammar", "long"])
def test_choices_of_one_prompt(decoder: Any, alone: dict[str, Result], kind: str, depth: int) -> None:
    """Beside other rows; the second time their prompt is cached."""
    neighbours = [other for other in ("greedy", "scored", "biased") if other != kind]

    def choice(i: int) -> Sequence:
        return request(kind, 100 + i, sampling=replace(KINDS[kind][1], choice_index=i))

    run = EngineRun(decoder, max_step_tokens=CHUNK, depth=depth)
    expected = [EngineRun(decoder).run([choice(i)])[100 + i] for i in range(4)]
    num_shared = (KINDS[kind][0] - 1) // BLOCK * BLOCK
    for num_computing in (1, 0):
        before = run.scheduler.num_prefix_hit_tokens
        together = run.run([choice(i) for i in range(4)])
        assert run.scheduler.num_prefix_hit_tokens - before == (4 - num_computing) * num_shared
        assert all(together[100 + i].is_same(expected[i]) for i in range(4))
    beside = run.run([*(request(other) for other in neighbours), *(choice(i) for i in range(4))])
    assert_same(beside, alone, numbered(*neighbours))
    assert all(beside[100 + i].is_same(expected[i]) for i in range(4))
    assert len({tuple(result.token_ids) for result in expected}) > 1


@pytest.mark.parametrize("num_known", [1, 5, NUM_OUTPUT - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_taken_over_from_another_executor(decoder: Any, alone: dict[str, Result], kind: str, num_known: int) -> None:
    """The output so far comes as known tokens; what follows is what would have followed."""
    (number,) = numbered(kind)
    expected = alone[kind]
    num_known = min(num_known, len(expected.token_ids) - 1)
    delivered = np.array(expected.token_ids[:num_known], np.int32)
    sequence = request(kind)
    taken = replace(
        sequence,
        token_ids=np.concatenate([sequence.token_ids[: sequence.num_known], delivered]),
        num_known=sequence.num_known + num_known,
        num_scored=sequence.num_prompt_tokens,
    )
    for token_id in delivered.tolist() if taken.grammar else []:
        assert taken.grammar.accept(token_id)
    result = EngineRun(decoder, max_step_tokens=CHUNK).run([taken, request("greedy", 60)])[number]
    assert result.token_ids == expected.token_ids[num_known:]
    assert all(torch.equal(result.logits[p], expected.logits[p]) for p in range(num_known, len(expected.token_ids)))
