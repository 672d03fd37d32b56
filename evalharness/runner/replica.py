"""One copy of the model at work, wherever it runs: an engine that keeps the pace of its arm."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from evalharness.arms import at_a_time
from evalharness.engines.base import Completion, LoadsApart, Request, WritesLogs, create_engine
from evalharness.errors import EngineError
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec


class Replica:
    """An engine of `kind`, as an Engine; an arm named `patched@8` has at most 8 requests under way at a time.

    It is given them in waves: any engine can do that, and which requests meet does not depend on how fast the others
    end.
    """

    def __init__(self, kind: str) -> None:
        self._engine = create_engine(kind)
        self._wave: int | None = None
        self._refusal: EngineError | None = None

    def log_to(self, path_of: Callable[[str], Path]) -> None:
        """Send the engine's output there, where it has any."""
        if isinstance(self._engine, WritesLogs):
            self._engine.log_to(path_of)

    def begin(self, spec: RunSpec) -> None:
        """Start to load, where the engine can do so beside this process; what stands against it is told by `open`."""
        if isinstance(self._engine, LoadsApart):
            try:
                self._engine.begin(spec)
            except EngineError as error:
                self._refusal = error

    def open(self, spec: RunSpec) -> None:
        """Load the model of `spec`."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        self._engine.open(spec)

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """Bring `arm` up and prove it."""
        self._wave = at_a_time(arm.name)
        return self._paced(self._engine.use(arm))

    def generate(self, requests: Iterable[Request]) -> Generator[Completion, None, None]:
        """Answer `requests`, in waves where the arm wants it; closing it gives up what is still under way."""
        for wave in _waves(requests, self._wave):
            with closed(self._engine.generate(wave)) as completions:
                yield from completions

    def follow(self, arm: ArmSpec) -> None:
        """Have the engine bring `arm` up as soon as it can; in waves only the caller knows which one is the last."""
        if self._wave is None and isinstance(self._engine, LoadsApart):
            self._engine.follow(arm)

    def evidence(self) -> ArmEvidence:
        """Evidence of the arm in use so far."""
        return self._paced(self._engine.evidence())

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    def _paced(self, evidence: ArmEvidence) -> ArmEvidence:
        if self._wave is None:
            return evidence
        return replace(evidence, notes=(*evidence.notes, f"asked in waves of at most {self._wave} requests"))


def _waves(requests: Iterable[Request], size: int | None) -> Iterator[Iterable[Request]]:
    if size is None:
        yield requests
        return
    source = iter(requests)
    while wave := list(islice(source, size)):
        yield wave


@contextmanager
def closed(completions: Iterator[Completion]) -> Iterator[Iterator[Completion]]:
    """`completions`, closed in the end where the engine can: a generator gives its requests up at once."""
    try:
        yield completions
    finally:
        close = getattr(completions, "close", None)
        if close is not None:
            close()
