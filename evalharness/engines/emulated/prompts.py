"""Prompts on their way into the batch: prefilled ahead by worker threads, and once for identical live prompts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from evalharness.engines.emulated.prefill import Prefilled, prefill
from evalharness.engines.emulated.weights import Model

CACHE_BYTES = 128 * 2**20


class Prefiller:
    """Prefills prompts in the background and keeps the most recent results, up to CACHE_BYTES.

    A result depends on the prompt's tokens alone, so an identical prompt may share it bit for bit.
    """

    def __init__(self, model: Model, pool: ThreadPoolExecutor) -> None:
        self._model, self._pool = model, pool
        self._results: OrderedDict[tuple[int, ...], Future[Prefilled]] = OrderedDict()
        self._token_bytes = 4 * model.config.num_hidden_layers * model.config.latent
        self._tokens = 0

    def submit(self, tokens: Sequence[int]) -> Future[Prefilled]:
        """The future result for a prompt."""
        key = tuple(tokens)
        if key in self._results:
            self._results.move_to_end(key)
        else:
            self._results[key] = self._pool.submit(prefill, self._model, key)
            self._tokens += len(key)
            self._evict()
        return self._results[key]

    def _evict(self) -> None:
        """Forget the oldest results over the budget; whoever waits for one holds its future."""
        while len(self._results) > 1 and self._tokens * self._token_bytes > CACHE_BYTES:
            key, _ = self._results.popitem(last=False)
            self._tokens -= len(key)

    def cancel(self) -> None:
        """Drop everything; prefills that have not begun never will."""
        for future in self._results.values():
            future.cancel()
        self._results.clear()
        self._tokens = 0
