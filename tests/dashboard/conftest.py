"""A synthetic year and its site, written once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evalharness.reports.dashboard import Built, build
from evalharness.watch.jobs import FILE, Job, Schedule
from scripts.make_history import PROFILE, make_history

NOW = datetime(2026, 12, 1, 6, tzinfo=UTC)
SCHEDULE = Schedule(jobs=(Job(name=PROFILE, profile=PROFILE, at="02:00"),))


@pytest.fixture(scope="session")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 nights."""
    results = tmp_path_factory.mktemp("year") / "results"
    make_history(results, 400)
    (results / FILE).write_text(f"jobs: [{{profile: {PROFILE}, at: '02:00'}}]\n")
    return results


@pytest.fixture(scope="session")
def site(year: Path) -> Path:
    """The site of the year, as on the morning after its last night."""
    out = year.parent / "site"
    build(year, out, SCHEDULE, NOW)
    return out


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Twelve nights that a test may spoil."""
    folder = tmp_path / "results"
    make_history(folder, 12)
    return folder


@pytest.fixture
def rebuild(results: Path, tmp_path: Path) -> Callable[[], Built]:
    """Build the site of `results` into tmp_path/site."""
    return lambda: build(results, tmp_path / "site", SCHEDULE, NOW)
