# SPDX-License-Identifier: Apache-2.0
"""The demo model's real weights: greedy ids equal those of transformers, text by text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from executor_service.config import ExecutorConfig
from executor_service.conversion.demo_model import ensure
from executor_service.loading import load_model
from protos.batch import Int32Array
from tests.fixtures.engine_run import EngineRun
from tests.fixtures.sequences import make_sequence
from tokenizer_service.tokenizer import load_tokenizer

NUM_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "The three laws of thermodynamics are",
    "<|im_start|>user\nName four fruits.<|im_end|>\n<|im_start|>assistant\n",
    "Water boils at",
    "SELECT name, count(*) FROM",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8,",
    "The quick brown fox",
    "In 1969, humans first",
    "Photosynthesis is the process by which",
    "To be, or not to be:",
    "<|im_start|>user\nWhat is 7 times 8?<|im_end|>\n<|im_start|>assistant\n",
    "import numpy as np\n\n",
    "La capitale de l'Italie est",
    "The recipe needs two eggs, a cup of flour and",
    "Once the train had left the station, she",
    "An integer is prime if",
    "Ingredients:\n- 200 g sugar\n- ",
]


@pytest.fixture(scope="module")
def model_directory() -> Path:
    return ensure(Console(stderr=True))


def our_token_ids(model_directory: Path, prompts: list[Int32Array]) -> list[list[int]]:
    """All prompts together, in chunks, through scheduler, packing and model."""
    model = load_model(ExecutorConfig(model_directory, num_blocks=400))
    sequences = [
        make_sequence(
            i,
            token_ids=prompt.copy(),
            num_known=len(prompt),
            num_prompt_tokens=len(prompt),
            max_output_tokens=NUM_TOKENS,
        )
        for i, prompt in enumerate(prompts)
    ]
    results = EngineRun(model.runner.model, num_blocks=400, max_step_tokens=48, max_sequences=32).run(sequences)
    return [results[i].token_ids for i in range(len(prompts))]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_greedy_ids_on_the_demo_model(model_directory: Path) -> None:
    """At a first difference the reference's own two best logits are closer than 1e-3; at most one prompt differs."""
    from transformers import AutoModelForCausalLM

    prompts = load_tokenizer(model_directory).encode_batch(PROMPTS, add_special_tokens=True)
    ours = our_token_ids(model_directory, prompts)
    oracle = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32).eval()
    oracle.generation_config.eos_token_id = None
    oracle.generation_config.pad_token_id = 0
    different = 0
    for prompt, token_ids in zip(prompts, ours, strict=True):
        out = oracle.generate(
            torch.tensor(prompt)[None].long(),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        expected = out.sequences[0, len(prompt) :].tolist()
        if token_ids != expected:
            different += 1
            first = next(i for i, pair in enumerate(zip(token_ids, expected, strict=True)) if pair[0] != pair[1])
            best = out.logits[first][0].topk(2).values
            assert best[0] - best[1] < 1e-3
    assert different <= 1
    print(f"{len(prompts) - different} of {len(prompts)} prompts x {NUM_TOKENS} ids equal")
