"""Events: one for each thing that happened, with the first bad run, the last good one, and the commits between."""

import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evalharness.watch.events import Event, commits_between, events
from evalharness.watch.history import Entry, read_history
from evalharness.watch.jobs import Job, Schedule
from evalharness.watch.nights import Series, series
from scripts.make_history import END, PROFILE, Story

NOW = datetime(2026, 12, 1, 6, tzinfo=UTC)
SCHEDULE = Schedule(jobs=(Job(name=PROFILE, profile=PROFILE, at="02:00"),))


@pytest.fixture(scope="module")
def found(nights120: Path) -> Series:
    return series(read_history(nights120), SCHEDULE, NOW)[0]


def day_of(night: int) -> str:
    return (END.date().fromordinal(END.date().toordinal() - 119 + night)).isoformat()


def only(kind: str, happened: list[Event]) -> list[Event]:
    return [event for event in happened if event.kind == kind]


def test_the_regression_is_one_event_a_task_and_names_the_first_bad_run_and_build(found: Series) -> None:
    story = Story.of(120)
    (fail,) = only("FAIL", events(found))
    assert fail.since[:10] == day_of(story.regression.start)
    assert fail.ended is not None
    assert fail.ended[:10] == day_of(story.regression.stop)
    assert fail.first_bad.startswith(day_of(story.regression.start).replace("-", ""))
    assert fail.last_good.startswith(day_of(story.regression.start - 1).replace("-", ""))
    assert "version vllm" in fail.change
    assert any("CUSUM" in detail for detail in fail.details)


def test_the_missing_week_is_one_event_and_late_and_unfinished_nights_are_told(found: Series) -> None:
    happened = events(found)
    (missing,) = only("MISSING", happened)
    assert "7 nights" in missing.summary
    assert len(only("LATE", happened)) == 1
    assert len(only("UNFINISHED", happened)) == 1
    assert {event.task for event in only("INVALID", happened)} == {"gsm8k_canary", "aime25_canary"}


def test_the_noisy_night_is_no_event(found: Series) -> None:
    noisy = day_of(Story.of(120).noisy)
    assert not [event for event in events(found) if event.since[:10] == noisy]


def test_everything_is_over_at_the_end_and_ids_do_not_move(found: Series) -> None:
    happened = events(found)
    assert not [event for event in happened if event.is_open]
    earlier = replace(found, nights=found.nights[:-10])
    assert {event.id for event in events(earlier)} == {
        event.id for event in happened if event.since < earlier.last.at.isoformat()
    }


def test_a_loss_that_the_verdict_lets_pass_is_found_against_the_last_good_run(found: Series) -> None:
    *before, last = found.nights
    assert last.entry is not None
    marks = "0" * 30
    scores = tuple(
        replace(s, marks=marks + (s.marks or "")[30:]) if (s.task, s.arm) == ("gsm8k_canary", "patched") else s
        for s in last.entry.scores
    )
    worse = replace(found, nights=(*before, replace(last, entry=replace(last.entry, scores=scores))))
    (loss,) = only("LOSS", events(worse))
    assert (loss.arm, loss.first_bad) == ("patched", last.entry.run_id)
    assert loss.last_good < loss.first_bad
    assert loss.is_open


def commit(repository: Path, message: str) -> str:
    git = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", message], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_the_commits_between_two_builds_are_listed(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    good, _, bad = (commit(tmp_path, message) for message in ("one", "two: the culprit", "three"))
    built = Entry(folder="", signature="", state="compared", engine="vllm", version=f"vllm 0.22.1.dev5+g{good[:9]}")
    newer = replace(built, version=f"vllm 0.22.1.dev7+g{bad[:9]}")
    lines = commits_between(built, newer, tmp_path)
    assert [line.partition(" ")[2] for line in lines] == ["three", "two: the culprit"]
    assert commits_between(built, newer, None) == ()
    assert commits_between(built, replace(newer, version="vllm 0.22.1+g--output=x"), tmp_path) == ()
