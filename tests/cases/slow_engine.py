"""The scripted engine, slowly, in a process of its own that a test may kill: python -m tests.cases.slow_engine OUT."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from evalharness.engines import base
from evalharness.engines.base import Completion, Request
from evalharness.runner import local, session
from tests.faults.scripted import Scripted, small_spec


class Slow(Scripted):
    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for completion in super().generate(requests):
            time.sleep(0.03)
            yield completion


def create() -> Slow:
    return Slow()


if __name__ == "__main__":
    base.ENGINES["emulated"] = ("tests.cases.slow_engine", "slow")
    session.FLUSH_SECONDS = 0.1
    local.start(small_spec(limit=20), Path(sys.argv[1]))
