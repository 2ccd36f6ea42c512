# SPDX-License-Identifier: Apache-2.0
"""One call from prompts to its last choice: rows to the pool, what they bring to choices, choices to messages.

Every way out cancels the rows still open: the end, an error, the caller's cancellation, its deadline. Does not know
statuses or how a row travels.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from protos.batch import Int32Array
from protos.errors import LimitReached, PackserveError, Unavailable
from protos.packserve.v1 import executor_pb2, sampling_pb2, tokenizer_pb2
from protos.sampling import check_token_ids
from protos.server import MAX_MESSAGE_BYTES
from protos.vocabulary import Vocabulary
from tokenizer_service.admission import check_prompts, check_request, num_choices
from tokenizer_service.choice import ChoiceStream
from tokenizer_service.metrics import LENGTH, CallRecord, Metrics
from tokenizer_service.pool import ExecutorPool
from tokenizer_service.prompts import PromptEncoder
from tokenizer_service.rows import Arrivals, RowRequest, RowStream

Choices = dict[RowStream, ChoiceStream]
Request = tokenizer_pb2.GenerateRequest

# A message is full with the choice that passes this. A choice's share is bounded (rows.MAX_TAKE_TOKENS), so that both
# together fit a message.
FULL_MESSAGE_BYTES = 2**20
# What parts of a choice repeat: its indices, tags and lengths; at most.
PART_OVERHEAD_BYTES = 32


@dataclass(frozen=True)
class Generator:
    model_name: str
    vocabulary: Vocabulary
    prompts: PromptEncoder
    pool: ExecutorPool
    metrics: Metrics

    async def stream(
        self, request: Request, timeout_s: float | None
    ) -> AsyncGenerator[tokenizer_pb2.GenerateStreamResponse]:
        """A message, seldom more, for whatever came since the last one, of however many choices."""
        with CallRecord(self.metrics, timeout_s) as record:
            check_request(request, self.model_name)
            check_token_ids(request.sampling, self._model().vocabulary_size)
            prompts = await self.prompts.encode(request.prompts)
            check_prompts(prompts, self._model())
            open_choices: Choices = {}
            arrivals = Arrivals()
            try:
                self._submit(request, prompts, record, arrivals, open_choices)
                while open_choices:
                    choices, error = _advance(await arrivals.next(), open_choices, record)
                    for response in _messages(choices):
                        yield response
                    if error is not None:
                        raise error
            finally:
                for row in open_choices:
                    row.cancel()

    def _model(self) -> executor_pb2.ExecutorModel:
        welcome = self.pool.welcome or self.pool.pick().welcome
        if welcome is None:
            raise Unavailable("no executor is connected")
        return welcome.model

    def _submit(
        self,
        request: Request,
        prompts: list[Int32Array],
        record: CallRecord,
        arrivals: Arrivals,
        open_choices: Choices,
    ) -> None:
        """A prompt's choices go to one executor, which computes the prompt once."""
        for prompt_index, prompt in enumerate(prompts):
            link = self.pool.pick()
            sampling = _row_sampling(request)
            record.on_prompt(len(prompt))
            for choice_index in range(num_choices(request)):
                row = link.submit(
                    RowRequest(prompt, _wire_row(request, sampling, choice_index), record.deadline_s), arrivals
                )
                open_choices[row] = ChoiceStream(prompt_index, choice_index, prompt, request, self.vocabulary)


def _row_sampling(request: Request) -> sampling_pb2.SamplingParameters:
    """Of one prompt's rows. A seed is drawn where the caller gave none, so that another executor could go on."""
    sampling = sampling_pb2.SamplingParameters()
    sampling.CopyFrom(request.sampling)
    sampling.bad_bytes.extend(word.encode() for word in request.bad_words)
    if not sampling.HasField("seed"):
        sampling.seed = secrets.randbits(64)
    return sampling


def _wire_row(request: Request, sampling: sampling_pb2.SamplingParameters, choice_index: int) -> executor_pb2.Row:
    row = executor_pb2.Row(
        sampling=sampling,
        choice_index=choice_index,
        priority=request.priority,
        cache_salt=request.cache_salt,
        caller_request_id=request.request_id,
    )
    if choice_index > 0:  # told once; the others are free to take the prompt's blocks as they are
        row.sampling.ClearField("prompt_logprobs")
    return row


def _advance(
    rows: list[RowStream], open_choices: Choices, record: CallRecord
) -> tuple[list[tokenizer_pb2.Choice], PackserveError | None]:
    """Takes what came; ended choices leave ``open_choices``. Ids that came before an error still go out."""
    error: PackserveError | None = None
    messages = []
    for row in rows:
        if (choice := open_choices.get(row)) is None:
            continue  # its text ended it, with ids still to take
        update = row.take()
        if len(update.token_ids):
            choice.last_s = record.on_ids(len(update.token_ids), choice.last_s)
        begun_s = time.perf_counter()
        message = choice.advance(update)
        record.detokenize_s += time.perf_counter() - begun_s
        messages.append(message)
        if isinstance(update.outcome, PackserveError) and not choice.is_ended:
            error = error or update.outcome
        elif choice.is_ended:
            row.cancel()
            del open_choices[row]
            if message.finish.reason == sampling_pb2.FINISH_REASON_LENGTH:
                record.reason = LENGTH
    return messages, error


def _messages(choices: Iterable[tokenizer_pb2.Choice]) -> Iterator[tokenizer_pb2.GenerateStreamResponse]:
    """In their order, as many to a message as it takes."""
    response, num_bytes = tokenizer_pb2.GenerateStreamResponse(), 0
    for choice in choices:
        response.choices.append(choice)
        num_bytes += choice.ByteSize()
        if num_bytes > FULL_MESSAGE_BYTES:
            yield response
            response, num_bytes = tokenizer_pb2.GenerateStreamResponse(), 0
    if response.choices:
        yield response


async def collect(responses: AsyncIterator[tokenizer_pb2.GenerateStreamResponse]) -> tokenizer_pb2.GenerateResponse:
    """The sum of a stream: what the unary call answers. Raises LimitReached as soon as no message takes it."""
    choices: dict[tuple[int, int], tokenizer_pb2.Choice] = {}
    texts: dict[tuple[int, int], list[str]] = defaultdict(list)
    num_bytes = 0
    async for response in responses:
        for part in response.choices:
            num_bytes += max(0, part.ByteSize() - PART_OVERHEAD_BYTES)
            if num_bytes > MAX_MESSAGE_BYTES:
                raise LimitReached(f"the response has over {num_bytes} bytes, a message takes {MAX_MESSAGE_BYTES}")
            key = (part.prompt_index, part.choice_index)
            texts[key].append(part.text)
            choices.setdefault(key, tokenizer_pb2.Choice()).MergeFrom(part)
    for key, choice in choices.items():
        choice.text = "".join(texts[key])
    ordered = [choices[key] for key in sorted(choices)]
    return tokenizer_pb2.GenerateResponse(choices=ordered, usage=_total_usage(ordered))


def _total_usage(choices: list[tokenizer_pb2.Choice]) -> tokenizer_pb2.Usage:
    """A prompt counts once, however many choices it has."""
    firsts = [choice.usage for choice in choices if choice.choice_index == 0]
    return tokenizer_pb2.Usage(
        num_prompt_tokens=sum(usage.num_prompt_tokens for usage in firsts),
        num_cached_tokens=sum(usage.num_cached_tokens for usage in firsts),
        num_output_tokens=sum(choice.usage.num_output_tokens for choice in choices),
    )
