"""Missing is failing: what was due and did not come, came late, or did not finish is red."""

from datetime import UTC, datetime, timedelta

import pytest

from evalharness.watch.history import Entry, Score
from evalharness.watch.jobs import Job, Schedule
from evalharness.watch.nights import Series, Status, nights, series

NOW = datetime(2026, 12, 10, 12, tzinfo=UTC)
JOB = Job(name="p", profile="p", at="02:00", grace_hours=2, timeout_hours=6, since=datetime(2026, 12, 7, tzinfo=UTC))


def score(verdict: str = "PASS") -> Score:
    return Score(
        "t", "exact_match", 1, 10, "q", verdict, "eager", "eager", 10, 10, 0, 0.9, 0.8, 1.0, 5, None, 0, 0, 1, None
    )


def entry(at: datetime, verdict: str = "PASS", *, finished: bool = True, problem: str = "") -> Entry:
    return Entry(
        folder=at.isoformat(),
        signature="",
        state="compared" if finished else "uncompared",
        problem=problem,
        run_id=at.isoformat(),
        profile="p",
        created=at.isoformat(),
        finished=at.isoformat() if finished else None,
        engine="emulated",
        model="m",
        verdict=verdict if finished else "",
        tasks=("t",),
        scores=(score(verdict),) if finished else (),
    )


def due(day: int, **later: float) -> datetime:
    return datetime(2026, 12, day, 2, tzinfo=UTC) + timedelta(**later)


def statuses(*runs: Entry, now: datetime = NOW) -> list[str]:
    return [night.status.value for night in nights(runs, JOB, now)]


def test_runs_on_time_have_their_verdicts() -> None:
    runs = [entry(due(7)), entry(due(8, minutes=-3), "FAIL"), entry(due(9, minutes=119)), entry(due(10), "INVALID")]
    assert statuses(*runs) == ["PASS", "FAIL", "PASS", "INVALID"]


def test_a_night_that_did_not_come_is_red_once_the_grace_is_over() -> None:
    runs = [entry(due(7)), entry(due(9))]
    assert statuses(*runs, now=due(10, hours=1)) == ["PASS", "MISSING", "PASS"]
    assert statuses(*runs, now=due(10, hours=3)) == ["PASS", "MISSING", "PASS", "MISSING"]


def test_a_late_night_is_red_even_where_it_passed() -> None:
    assert statuses(entry(due(7)), entry(due(8)), entry(due(9, hours=5)), entry(due(10))) == [
        "PASS",
        "PASS",
        "LATE",
        "PASS",
    ]


def test_an_extra_run_by_day_is_judged_by_itself() -> None:
    runs = [entry(due(7)), entry(due(8)), entry(due(9)), entry(due(9, hours=9), "FAIL"), entry(due(10))]
    assert statuses(*runs) == ["PASS", "PASS", "PASS", "FAIL", "PASS"]


@pytest.mark.parametrize(
    ("hours", "problem", "status"),
    [(2, "", Status.RUNNING), (13, "", Status.UNFINISHED), (2, "stopped by SIGTERM", Status.UNFINISHED)],
)
def test_an_unfinished_night_is_red_when_its_time_is_over_or_its_process_gone(
    hours: int, problem: str, status: Status
) -> None:
    run = entry(NOW - timedelta(hours=hours), finished=False, problem=problem)
    assert [night.status for night in nights([run], None, NOW)] == [status]


def test_a_job_that_never_ran_at_all_is_red() -> None:
    (found,) = series([], Schedule(jobs=(JOB,)), NOW)
    assert [night.status for night in found.nights] == [Status.MISSING] * 4


def test_a_job_watches_the_newest_model_of_its_profile() -> None:
    old = entry(due(7))
    other = Entry(
        **{name: getattr(old, name) for name in Entry.__dataclass_fields__}
        | {"model": "old", "folder": "o", "run_id": "o"}
    )
    found = series([other, entry(due(8))], Schedule(jobs=(JOB,)), NOW)
    assert {one.model: one.job is not None for one in found} == {"old": False, "m": True}


def test_a_task_without_figures_is_red() -> None:
    run = entry(due(7))
    (night,) = Series("p", "emulated", "m", tuple(nights([run], None, NOW))).nights
    assert night.of("t") is Status.PASS
    assert night.of("never answered") is Status.ERROR
