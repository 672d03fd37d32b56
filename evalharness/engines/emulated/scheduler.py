"""Continuous batching: requests join the running batch as places get free, and leave it as they finish."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from evalharness.engines.base import Completion, Request
from evalharness.engines.emulated.kernels import Floats
from evalharness.engines.emulated.memory import Row
from evalharness.engines.emulated.prefill import Prefilled
from evalharness.engines.emulated.prompts import Prefiller
from evalharness.engines.emulated.runner import ModelRunner
from evalharness.engines.emulated.sampling import choose
from evalharness.engines.emulated.text import Text, cut_at_stop

AHEAD_TOKENS = 8192  # prompt tokens prefilled ahead of their place in the batch; bounds the memory they take


@dataclass(slots=True)
class Sequence:
    """A request that was taken in: its prompt, and what has been answered so far."""

    request: Request
    prompt: list[int]
    prefilled: Future[Prefilled]
    stops: tuple[str, ...]
    started: float = field(default_factory=time.perf_counter)
    blocks: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens so far, the newest one included."""
        return len(self.prompt) + len(self.answer)

    def row(self) -> Row:
        """The next decode step's input: the newest token, whose cache entry is still missing."""
        return Row(self.answer[-1], self.length - 1, self.blocks)


@dataclass(slots=True)
class DecodeCount:
    """Decode work done: tokens, and the seconds their steps took."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """0 before the first step."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Scheduler:
    """Serves one `generate` call and adds its decode steps to `count`."""

    def __init__(
        self, runner: ModelRunner, prefiller: Prefiller, text: Text, max_model_len: int, count: DecodeCount
    ) -> None:
        self._runner, self._prefiller, self._text, self._max_model_len = runner, prefiller, text, max_model_len
        self._count = count
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def serve(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Answer `requests`; they are drawn as room allows, so that they may be made lazily."""
        source = iter(requests)
        try:
            while True:
                yield from self._take_in(source)
                yield from self._admit()
                if self._running:
                    yield from self._decode()
                elif not self._waiting:
                    return
        finally:
            self._abandon()

    def _take_in(self, source: Iterator[Request]) -> Iterator[Completion]:
        """Draw requests and start their prefill, a batch ahead of their place in the batch."""
        while self._has_room() and (request := next(source, None)) is not None:
            prompt = self._text.encode(request.prompt)
            fault = self._fault(len(prompt), request.max_tokens)
            if fault:
                yield Completion(request.id, "", (), "error", len(prompt), 0, 0.0, error=fault)
            else:
                stops = tuple(stop for stop in request.stop if stop)
                self._waiting.append(Sequence(request, prompt, self._prefiller.submit(prompt), stops))

    def _has_room(self) -> bool:
        ahead = sum(len(sequence.prompt) for sequence in self._waiting)
        return len(self._waiting) < self._runner.max_batch and ahead < AHEAD_TOKENS

    def _fault(self, prompt: int, max_tokens: int) -> str | None:
        """Why a request cannot be served, and what to do about it."""
        needed = prompt + max_tokens
        if prompt == 0:
            return "The prompt has no tokens. Give a prompt that is not empty."
        if needed <= self._max_model_len:
            return None
        return (
            f"The prompt's {prompt} tokens and max_tokens {max_tokens} make {needed}, over engine.max_model_len "
            f"{self._max_model_len}. Set engine.max_model_len to {needed} or more, or lower max_tokens."
        )

    def _admit(self) -> Iterator[Completion]:
        """Move waiting requests into free places; the prefill's logits give each its first token."""
        while self._waiting and len(self._running) < self._runner.max_batch:
            sequence = self._waiting.popleft()
            prefilled = sequence.prefilled.result()
            sequence.blocks = self._runner.cache.allocate(len(sequence.prompt) + sequence.request.max_tokens)
            self._runner.cache.write(sequence.blocks, prefilled.entries)
            self._running.append(sequence)
            yield from self._extend([sequence], prefilled.logits[None])

    def _decode(self) -> Iterator[Completion]:
        """One step of the whole batch."""
        started = time.perf_counter()
        batch = list(self._running)
        logits = self._runner.step([sequence.row() for sequence in batch])
        self._count.tokens += len(batch)
        self._count.seconds += time.perf_counter() - started
        yield from self._extend(batch, logits)

    def _extend(self, batch: list[Sequence], logits: Floats) -> Iterator[Completion]:
        """Append a token to every sequence of `batch`; finished ones leave the batch before anything is yielded."""
        for sequence, row in zip(batch, logits, strict=True):
            r = sequence.request
            sequence.answer.append(choose(row, r.temperature, r.top_p, r.seed, sequence.length))
        finished = [(sequence, reason) for sequence in batch if (reason := self._finish_reason(sequence))]
        for sequence, _ in finished:
            self._running.remove(sequence)
            self._runner.cache.free(sequence.blocks)
        for sequence, reason in finished:
            yield self._completion(sequence, reason)

    def _finish_reason(self, sequence: Sequence) -> str | None:
        if sequence.answer[-1] in self._runner.model.config.eos_token_ids:
            return "stop"
        if self._text.ends_with_stop(sequence.answer, sequence.stops):
            return "stop"
        return "length" if len(sequence.answer) >= sequence.request.max_tokens else None

    def _completion(self, sequence: Sequence, reason: str) -> Completion:
        return Completion(
            request_id=sequence.request.id,
            text=cut_at_stop(self._text.decode(sequence.answer), sequence.stops),
            token_ids=tuple(sequence.answer),
            finish_reason=reason,
            prompt_tokens=len(sequence.prompt),
            output_tokens=len(sequence.answer),
            seconds=time.perf_counter() - sequence.started,
        )

    def _abandon(self) -> None:
        """Give everything back when the caller stops early."""
        for sequence in self._running:
            self._runner.cache.free(sequence.blocks)
        self._running.clear()
        self._waiting.clear()
        self._prefiller.cancel()
