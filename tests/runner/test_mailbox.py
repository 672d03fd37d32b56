"""A replica's folder: what is told is read again as it was, whatever an answer holds and wherever writing stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.engines.base import Completion
from evalharness.engines.wire import line
from evalharness.runner.executors.mailbox import Desk, Outbox
from evalharness.runner.executors.worker import heard


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1c", "\r", "\n", "\r\n"])
def test_an_answer_may_hold_any_separator(separator: str, tmp_path: Path) -> None:
    box = Outbox(tmp_path / "replica-1")
    told = Completion("task/1/0", f"one{separator}two", (1,), "stop", 1, 1, 0.1)
    Desk(box.folder).tell(line("completion", told))
    Desk(box.folder).tell(line("completion", told))  # a second start reads what the first told
    assert [heard(text) for text in box.news()] == [told, told]


def test_a_line_half_written_is_neither_read_nor_grown_out_of(tmp_path: Path) -> None:
    box = Outbox(tmp_path / "replica-1")
    told = Completion("task/1/0", "all of it", (1,), "stop", 1, 1, 0.1)
    (box.folder / "told").write_text(line("completion", told)[:20])
    assert box.news() == []
    Desk(box.folder).tell(line("completion", told))
    assert [heard(text) for text in box.news()] == [told]
