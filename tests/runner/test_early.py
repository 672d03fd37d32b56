"""Stopping early: what is decided is not asked any further, and nothing else is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from evalharness.assess import assess
from evalharness.errors import SpecError
from evalharness.records import ArmState, Outcome, Sample
from evalharness.runner import local, replica
from evalharness.runner.early import Watch
from evalharness.runner.listener import Listener
from evalharness.scoring.tasks import Item, prepare
from evalharness.spec import RunSpec, load_spec
from evalharness.store import RunFolder
from tests.runner.scripted import Scripted, sound_but_stock
from tests.synthetic import answers

TASKS = "tasks=[{name: gsm8k_canary, limit: 200}, {name: aime25_canary, limit: 30, repeats: 4, temperature: 0.6}]"


def spec(*settings: str) -> RunSpec:
    return load_spec("canary-v3", [TASKS, "stop_early=true", "policy=quick", *settings])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted()
    monkeypatch.setattr(replica, "create_engine", lambda _: made)
    return made


def stored(folder: RunFolder, arm: str, task: str = "gsm8k_canary") -> int:
    return len(folder.read_samples(task, arm))


def test_decided_arms_end_and_the_reference_runs_whole(engine: Scripted, tmp_path: Path) -> None:
    folder = local.start(spec(), tmp_path)
    assert (stored(folder, "eager"), stored(folder, "eager", "aime25_canary")) == (200, 120)
    assert stored(folder, "stock") < 20 < stored(folder, "patched") < 200
    stops = folder.read_run().provenance["early_stop"]["gsm8k_canary"]
    for arm in ("stock", "patched"):
        assert stops[arm]["saved"] == 200 - stored(folder, arm)
        assert stops[arm]["documents"] <= stored(folder, arm)
    assert "stock" in engine.given_up
    assert "eager" not in engine.given_up
    found = assess(folder)
    assert found.verdict.outcome is Outcome.PASS
    assert any(note.startswith("Stopping early saved") for note in found.notes)


def test_nothing_ends_early_unless_it_is_asked_for(engine: Scripted, tmp_path: Path) -> None:
    folder = local.start(spec("stop_early=false"), tmp_path)
    assert [stored(folder, arm) for arm in ("eager", "stock", "patched")] == [200] * 3
    assert engine.given_up == []


def test_a_sign_off_policy_refuses_before_anything_starts(engine: Scripted, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--set policy=quick"):
        local.start(spec("policy=default"), tmp_path)
    assert not list(tmp_path.iterdir())
    assert engine.asked == []


def test_a_resumed_run_does_not_ask_what_was_decided(engine: Scripted, tmp_path: Path) -> None:
    class Interrupting(Listener):
        def sample(self, sample: Sample) -> None:
            if sample.arm == "patched" and sample.task == "aime25_canary":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.start(spec(), tmp_path, Interrupting())
    engine.asked.clear()
    (path,) = tmp_path.iterdir()
    folder = local.resume(RunFolder(path))
    assert {(arm, name.partition("/")[0]) for arm, name in engine.asked} == {("patched", "aime25_canary")}
    assert {arm.state for arm in folder.read_run().arms} == {ArmState.DONE}
    assert assess(folder).verdict.outcome is Outcome.PASS


def test_an_answer_lost_before_the_end_is_asked_again(engine: Scripted, tmp_path: Path) -> None:
    engine.reply = lambda arm, item: None if (arm, item.doc_id) == ("stock", 3) else sound_but_stock(arm, item)
    folder = local.start(spec("tasks=[{name: gsm8k_canary, limit: 200}]"), tmp_path)
    assert assess(folder).verdict.outcome is Outcome.ERROR
    engine.asked.clear()
    engine.reply = sound_but_stock
    local.resume(folder)
    assert engine.asked == [("stock", "gsm8k_canary/3/0")]
    assert assess(folder).verdict.outcome is Outcome.PASS


def test_a_second_run_of_an_arm_measures_noise_and_runs_whole(engine: Scripted, tmp_path: Path) -> None:
    folder = local.start(spec("arms=[eager, 'eager#2', patched]"), tmp_path)
    assert stored(folder, "eager#2") == 200 > stored(folder, "patched")
    assert engine.given_up.count("eager#2") == 0


def test_arms_before_the_reference_run_whole(engine: Scripted, tmp_path: Path) -> None:
    folder = local.start(spec("arms=[stock, eager]"), tmp_path)
    assert stored(folder, "stock") == stored(folder, "eager") == 200
    assert engine.given_up == []


def items(documents: int) -> Sequence[Item]:
    task = load_spec("canary-v3", [f"tasks=[{{name: gsm8k_canary, limit: {documents}}}]"])
    return prepare(task)[0].items


def named(samples: Sequence[Sample], asked: Sequence[Item]) -> list[Sample]:
    return [replace(sample, doc_hash=item.doc_hash) for sample, item in zip(samples, asked, strict=True)]


def test_only_a_complete_beginning_counts() -> None:
    """Forty wrong answers decide nothing while the first document is open; then they decide at once."""
    asked = items(100)
    reference = named(answers("eager", [1] * 100), asked)
    broken = named(answers("stock", [0] * 100), asked)
    watch = Watch(asked, reference, 0.05, 0.05)
    assert [watch.hear(sample) for sample in broken[1:41]] == [None] * 40
    stop = watch.hear(broken[0])
    assert stop is not None
    assert (stop.documents, stop.saved) == (41, 59)
    assert "worse by 0.050" in stop.reason


def test_nothing_is_decided_without_the_reference_s_answers() -> None:
    asked = items(100)
    watch = Watch(asked, [], 0.05, 0.05)
    assert not any(watch.hear(sample) for sample in named(answers("stock", [0] * 100), asked))
