"""The schedule file: due times, what is refused, and how a job is entered."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from evalharness.errors import SpecError
from evalharness.watch.jobs import Job, add_job, load_schedule


def test_a_job_is_due_on_its_days_at_its_time() -> None:
    job = Job(name="x", profile="x", at="02:30", days=("mon", "thu"))
    due = list(job.due(datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 8, tzinfo=UTC)))
    assert due == [datetime(2026, 12, 3, 2, 30, tzinfo=UTC), datetime(2026, 12, 7, 2, 30, tzinfo=UTC)]
    assert job.next_due(due[0]) == due[1]


def test_an_unquoted_time_is_read_as_it_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "schedule.yaml"
    path.write_text("jobs: [{profile: canary-v3, at: 12:30}]")  # a number to the base of 60 in YAML 1.1
    assert load_schedule(path).jobs[0].at == "12:30"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("jobs: [{profile: x, at: '25:00'}]", "at"),
        ("jobs: [{profile: x, every: day}]", "every"),
        ("jobs: [{profile: x}, {profile: x}]", "share a name"),
        ("alerts: {webhook: 'file:///etc/passwd'}", "webhook"),
        ("jobs: [", "schedule.yaml"),
    ],
)
def test_a_schedule_that_does_not_hold_together_is_refused_by_name(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "schedule.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=names):
        load_schedule(path)


def test_a_job_is_entered_once_and_only_its_owner_changes_it(tmp_path: Path) -> None:
    path = tmp_path / "schedule.yaml"
    path.write_text("site: here\n")
    job = Job(name="x", profile="x", at="02:00", since=datetime(2026, 12, 1, tzinfo=UTC))
    add_job(path, job)
    again = job.model_copy(update={"since": datetime(2026, 12, 5, tzinfo=UTC)})
    schedule = add_job(path, again)
    assert schedule.jobs == (job,)
    assert schedule.site == Path("here")
    with pytest.raises(SpecError, match="otherwise"):
        add_job(path, job.model_copy(update={"at": "03:00"}))
