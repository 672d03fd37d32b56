"""The unbroken run that every sharded one is compared with."""

from __future__ import annotations

import pytest

from evalharness.runner import local
from evalharness.store import RunFolder
from tests.runner.sharded import small


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """`small()` on one machine."""
    return local.start(small(), tmp_path_factory.mktemp("whole"))
