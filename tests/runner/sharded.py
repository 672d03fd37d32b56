"""What the tests of the executors share: a small run, and its answers to be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from evalharness.records import Sample
from evalharness.runner.listener import Listener
from evalharness.spec import RunSpec, load_spec
from evalharness.store import RunFolder


def small(*settings: str) -> RunSpec:
    """Two arms and two tasks of the emulated engine, one task sampled and repeated."""
    tasks = (
        "tasks=[{name: gsm8k_canary, limit: 30, max_tokens: 48},"
        " {name: aime25_canary, limit: 3, repeats: 2, temperature: 0.6, max_tokens: 48}]"
    )
    return load_spec("canary-v3", [tasks, "arms=[stock, patched]", *settings])


def answers(folder: RunFolder, run: RunSpec) -> dict[tuple[object, ...], Sample]:
    """Every sample of a run by what was asked, but for its seconds; no question was answered twice."""
    places = [(task.name, arm.name) for task in run.tasks for arm in run.arms]
    found = {(*place, s.key): replace(s, seconds=0.0) for place in places for s in folder.read_samples(*place)}
    assert len(found) == sum(folder.samples_path(*place).read_bytes().count(b"\n") for place in places)
    return found


class After(Listener):
    """Does something when an arm has given so many answers."""

    def __init__(self, arm: str, number: int, act: Callable[[], None]) -> None:
        self.arm, self.left, self.act = arm, number, act

    def sample(self, sample: Sample) -> None:
        self.left -= sample.arm == self.arm
        if self.left == 0 and sample.arm == self.arm:
            self.act()


def children(process: int) -> list[int]:
    """Process ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
