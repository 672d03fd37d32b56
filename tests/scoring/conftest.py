"""Small evaluation data with known hashes."""

from pathlib import Path

import pytest

from evalharness.scoring import data
from tests.scoring.fakes import sources_of, write_data


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def small_data(small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for --data whose hashes are the known ones while the test runs."""
    for name, source in sources_of(small_folder).items():
        monkeypatch.setitem(data.SOURCES, name, source)
    return small_folder
