"""What can go on side by side does: planning beside loading, scoring beside answering and beside the next capture."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evalharness.engines import base
from evalharness.errors import DataError, EngineError
from evalharness.records import ArmState, Sample
from evalharness.runner import local, replica
from evalharness.runner.listener import Listener
from evalharness.runner.plan import Plan, make_plan
from evalharness.spec import ArmSpec, RunSpec
from evalharness.store import RunFolder
from tests.engines.test_process import gone
from tests.faults.scripted import small_spec
from tests.runner import delayed

ANSWERS = 20


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the delayed engine in place of the emulated one; the file of what it did when."""
    monkeypatch.setattr(replica, "create_engine", lambda _: delayed.create())
    monkeypatch.setenv(delayed.EVENTS, str(tmp_path / "events"))
    return tmp_path / "events"


def planning(monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool], fails: bool = False) -> list[float]:
    """Make a plan take until something else is so; the times at which it began and ended."""
    times = [time.monotonic()]

    def slowly(spec: RunSpec) -> Plan:
        deadline = time.monotonic() + 20
        while not until() and time.monotonic() < deadline:
            time.sleep(0.02)
        times.append(time.monotonic())
        if fails:
            raise DataError("gsm8k is not here.", "Fetch it.")
        return make_plan(spec)

    monkeypatch.setattr(local, "make_plan", slowly)
    return times


class Slow(Listener):
    """Takes `seconds` over every answer, as a slow scorer or disk does; knows when it had each arm's last."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.heard = seconds, dict[str, list[float]]()

    def sample(self, sample: Sample) -> None:
        time.sleep(self.seconds)
        self.heard.setdefault(sample.arm, []).append(time.monotonic())


def log(folder: RunFolder, name: str) -> list[str]:
    return folder.log_path(name).read_text().splitlines()


def test_the_engine_loads_while_the_run_is_planned(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = planning(monkeypatch, lambda: "load ends" in delayed.noted(events))
    folder = local.start(small_spec("eager", limit=2), tmp_path / "runs")
    assert delayed.noted(events)["load ends"] < times[1]
    assert log(folder, "engine") == ["loading for small"]  # printed before there was a folder
    assert folder.read_run().arms[0].state is ArmState.DONE


def test_a_plan_that_fails_leaves_no_process_and_no_folder(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = planning(monkeypatch, lambda: "load begins" in delayed.noted(events), fails=True)
    with pytest.raises(DataError):
        local.start(small_spec("eager"), tmp_path / "runs")
    assert time.monotonic() - times[1] < 5, "a loading engine was waited for"
    pid = next(int(what.split()[1]) for what in delayed.noted(events) if what.startswith("process"))
    assert gone(pid, within=1)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("events")
def test_an_engine_that_cannot_load_marks_the_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "create_engine", lambda _: delayed.create_broken())
    folder = local.start(small_spec("eager", "stock"), tmp_path)
    arms = folder.read_run().arms
    assert [arm.state for arm in arms] == [ArmState.FAILED] * 2
    assert all("weights are torn" in arm.message for arm in arms)
    assert log(folder, "engine") == ["loading for small"] * 2


@pytest.mark.usefixtures("events")
def test_what_refuses_to_begin_is_told_by_the_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> dict[str, str]:
        raise EngineError("No GPU is visible.", "Run on a Hopper host.")

    monkeypatch.setattr(
        replica, "create_engine", lambda _: delayed.SupervisedEngine("tests.runner.delayed:Delayed", refuse)
    )
    arms = local.start(small_spec("eager"), tmp_path).read_run().arms
    assert arms[0].state is ArmState.FAILED
    assert "No GPU is visible" in arms[0].message


def test_nothing_is_loaded_where_nothing_is_missing(events: Path, tmp_path: Path) -> None:
    folder = local.start(small_spec("eager", limit=2), tmp_path)
    events.unlink()
    local.resume(folder)
    assert delayed.noted(events) == {}


def test_a_slow_scorer_does_not_stall_the_engine(events: Path, tmp_path: Path) -> None:
    listener = Slow(0.05)
    folder = local.start(small_spec("eager", limit=ANSWERS), tmp_path, listener)
    assert delayed.noted(events)["eager answered"] < listener.heard["eager"][ANSWERS // 2]
    assert len(folder.read_samples("gsm8k_canary", "eager")) == ANSWERS


def test_the_next_arm_comes_up_while_answers_are_still_scored(events: Path, tmp_path: Path) -> None:
    listener = Slow(0.05)
    folder = local.start(small_spec("eager", "stock", limit=ANSWERS), tmp_path, listener)
    when, evidence = delayed.noted(events), folder.read_evidence()
    assert when["eager answered"] < when["stock comes up"] < when["stock is up"] < listener.heard["eager"][-1]
    first = listener.heard["stock"][0] - listener.heard["eager"][-1]
    assert first < delayed.CAPTURE_S, "the arm was waited for though it had come up already"
    assert {arm: evidence[arm].full_replays for arm in evidence} == {"eager": ANSWERS, "stock": ANSWERS}
    assert evidence["eager"].observed == {"capture_path": "eager"}
    assert (log(folder, "eager"), log(folder, "stock")) == (["capturing eager"], ["capturing stock"])


@pytest.mark.usefixtures("events")
def test_an_arm_in_waves_is_followed_only_after_its_last(tmp_path: Path) -> None:
    folder = local.start(small_spec("eager@3", "stock", limit=7), tmp_path)
    assert [len(folder.read_samples("gsm8k_canary", arm)) for arm in ("eager@3", "stock")] == [7, 7]
    assert folder.read_evidence()["eager@3"].full_replays == 7


@pytest.mark.usefixtures("events")
def test_answers_given_up_do_not_cost_the_next_arm_its_start(tmp_path: Path) -> None:
    engine = delayed.create()
    engine.log_to(lambda arm: tmp_path / f"{arm}.log")
    try:
        engine.open(small_spec("eager", "stock"))
        engine.use(ArmSpec.parse("eager"))
        engine.follow(ArmSpec.parse("stock"))
        for _ in engine.generate([base.Request(str(n), "?", 8) for n in range(200)]):
            break
        assert engine.evidence().arm == "eager"
        with pytest.raises(EngineError, match="coming up already"):
            engine.evidence()
        assert engine.use(ArmSpec.parse("stock")).arm == "stock"
        assert len(list(engine.generate([base.Request("1", "?", 8)]))) == 1
        assert engine.evidence().full_replays == 1
    finally:
        engine.close()
