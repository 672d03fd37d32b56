"""A short synthetic history, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.make_history import make_history


@pytest.fixture(scope="session")
def nights120(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 nights with a regression, a noisy night, a missing week, a late, an unfinished and an INVALID one."""
    results = tmp_path_factory.mktemp("history") / "results"
    make_history(results, 120)
    return results
