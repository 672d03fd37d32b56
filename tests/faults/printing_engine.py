"""An engine in a child process that prints its whole environment, as some libraries do when they fail."""

from __future__ import annotations

import os
from pathlib import Path

from evalharness.engines.process import SupervisedEngine
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec
from tests.faults.scripted import Scripted

ROOT = Path(__file__).parents[2]


class Printing(Scripted):
    def use(self, arm: ArmSpec) -> ArmEvidence:
        print("\n".join(f"{name}={value}" for name, value in os.environ.items()), flush=True)
        return super().use(arm)


def create() -> SupervisedEngine:
    return SupervisedEngine("tests.faults.printing_engine:Printing", lambda _: {"PYTHONPATH": str(ROOT)})
