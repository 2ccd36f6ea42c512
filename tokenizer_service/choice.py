# SPDX-License-Identifier: Apache-2.0
"""One choice of one prompt: what its row brings becomes text, until a stop string, a stop id or a length ends it.

Ids and usage count up to and including the id that completed a stop string; none of the first min_tokens ids can
complete one. The text of a stop id is not shown. Does not know where rows come from.
"""

from __future__ import annotations

from protos.batch import Int32Array
from protos.packserve.v1 import executor_pb2, sampling_pb2, tokenizer_pb2
from protos.presence import is_true_or_unset
from protos.vocabulary import Vocabulary
from tokenizer_service.detokenizer import Detokenizer
from tokenizer_service.logprobs import Logprobs
from tokenizer_service.rows import RowUpdate
from tokenizer_service.stops import StopMatcher


class ChoiceStream:
    """last_s: when its last ids came, on the monotonic clock; kept by the call."""

    __slots__ = (
        "_detokenizer",
        "_matcher",
        "_min_tokens",
        "_num_scored",
        "_prompt",
        "_usage",
        "_vocabulary",
        "choice_index",
        "is_ended",
        "last_s",
        "prompt_index",
    )

    def __init__(
        self,
        prompt_index: int,
        choice_index: int,
        prompt: Int32Array,
        request: tokenizer_pb2.GenerateRequest,
        vocabulary: Vocabulary,
    ) -> None:
        self.prompt_index = prompt_index
        self.choice_index = choice_index
        self.is_ended = False
        self.last_s: float | None = None
        hides = is_true_or_unset(request, "skip_special_tokens")
        self._detokenizer = Detokenizer(vocabulary, context=prompt, skip_special_tokens=hides)
        self._matcher = StopMatcher(request.stop, request.include_stop) if request.stop else None
        self._min_tokens = request.sampling.min_tokens
        self._usage = tokenizer_pb2.Usage(num_prompt_tokens=len(prompt))
        self._prompt = prompt
        # Prompt ids whose logprobs went out, or have none: the first.
        self._num_scored = 1
        self._vocabulary = vocabulary

    def advance(self, update: RowUpdate) -> tokenizer_pb2.Choice:
        """What is new, with ``finish`` where it ends here."""
        if update.start is not None:
            self._usage.num_cached_tokens = update.start.num_cached_tokens
        finished = update.outcome if isinstance(update.outcome, executor_pb2.Finished) else None
        text, token_ids = self._text(update.token_ids, finished)
        choice = tokenizer_pb2.Choice(
            prompt_index=self.prompt_index, choice_index=self.choice_index, text=text, token_ids=token_ids
        )
        self._usage.num_output_tokens += len(token_ids)
        if update.logprobs is not None:
            choice.logprobs.extend(self._logprobs(token_ids, update.logprobs))
        if update.prompt_logprobs is not None:
            begin, self._num_scored = self._num_scored, self._num_scored + len(update.prompt_logprobs)
            scored = self._prompt[begin : self._num_scored].tolist()
            choice.prompt_logprobs.extend(self._logprobs(scored, update.prompt_logprobs))
        if (finish := self._finish(finished)) is not None:
            self.is_ended = True
            choice.finish.CopyFrom(finish)
            choice.usage.CopyFrom(self._usage)
        return choice

    def _text(self, new: Int32Array, finished: executor_pb2.Finished | None) -> tuple[str, list[int]]:
        """What may be shown, and the ids that count."""
        token_ids: list[int] = new.tolist()
        shown = token_ids[:-1] if finished is not None and finished.HasField("stop_token_id") else token_ids
        if self._matcher is not None:
            return self._matched_text(self._matcher, token_ids, shown, finished is not None)
        text = self._detokenizer.push(shown)
        return (text + self._detokenizer.finish() if finished is not None else text), token_ids

    def _matched_text(
        self, matcher: StopMatcher, token_ids: list[int], shown: list[int], is_last: bool
    ) -> tuple[str, list[int]]:
        """One id at a time, to know which one completes a stop string."""
        parts = []
        num_needed = self._min_tokens - self._usage.num_output_tokens
        for i, token_id in enumerate(shown):
            parts.append(matcher.push(self._detokenizer.push((token_id,)), may_match=i >= num_needed))
            if matcher.matched is not None:
                return "".join(parts), token_ids[: i + 1]
        if is_last:
            parts += [matcher.push(self._detokenizer.finish(), len(token_ids) > num_needed), matcher.finish()]
        return "".join(parts), token_ids

    def _finish(self, finished: executor_pb2.Finished | None) -> tokenizer_pb2.Finish | None:
        if self._matcher is not None and self._matcher.matched is not None:
            return tokenizer_pb2.Finish(reason=sampling_pb2.FINISH_REASON_STOP, stop=self._matcher.matched)
        if finished is None:
            return None
        stop_token_id = finished.stop_token_id if finished.HasField("stop_token_id") else None
        return tokenizer_pb2.Finish(reason=finished.reason, stop_token_id=stop_token_id)

    def _logprobs(self, token_ids: list[int], logprobs: Logprobs) -> list[tokenizer_pb2.TokenLogprob]:
        """Of the first len(token_ids) ids."""
        piece = self._vocabulary.piece
        return [
            tokenizer_pb2.TokenLogprob(
                token_id=token_id,
                logprob=logprob,
                token_bytes=piece(token_id),
                top=[
                    tokenizer_pb2.TopLogprob(token_id=top_id, logprob=top_logprob, token_bytes=piece(top_id))
                    for top_id, top_logprob in zip(top_ids, top_logprobs, strict=True)
                ],
            )
            for token_id, logprob, top_ids, top_logprobs in zip(
                token_ids,
                logprobs.logprobs.tolist(),
                logprobs.top_token_ids.tolist(),
                logprobs.top_logprobs.tolist(),
                strict=False,
            )
        ]
