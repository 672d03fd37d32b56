"""Drawing: gaps stay gaps, numbers stay inside, ticks are round."""

from datetime import UTC, datetime

import pytest

from evalharness.reports.dashboard.chart import Scale, band, date_ticks, dots, line, steps


def test_a_line_is_broken_where_there_is_no_figure() -> None:
    assert line([(0, 1), (1, 2), None, (3, 4)], "x") == '<path class="x" d="M0 1L1 2M3 4"/>'
    assert dots([(1, 2), None], "x") == '<path class="dots x" d="M1 2h0"/>'
    assert steps([(0, 5), (1, 5), (2, 6)], "x") == '<path class="x" d="M0 5H1H2V6"/>'
    assert line([None], "x") == ""


def test_a_lone_interval_can_be_seen() -> None:
    assert band([(1, 9)], [(1, 2)], "x") == '<path class="x" d="M0.8 2L1.2 2L1.2 9L0.8 9Z"/>'


def test_a_scale_clips_and_has_round_ticks() -> None:
    scale = Scale.around([0.83, 0.96, None], 0.0, 1.0)
    assert scale.y(2.0) == 0
    assert scale.y(-1.0) == 100
    assert scale.ticks() == pytest.approx([0.85, 0.9, 0.95])
    assert Scale.around([], 0.0, 1.0).ticks() == [0.0, 0.5, 1.0]
    assert Scale.around([1.0, 1.0], 0.0, 1.0).low < 1.0


@pytest.mark.parametrize("days", [0.5, 1, 5, 20, 100, 400, 4000])
def test_dates_are_few_round_and_inside(days: float) -> None:
    ticks = date_ticks(datetime(2026, 1, 30, 14, tzinfo=UTC), days)
    assert len(ticks) <= 8
    assert all(0 <= x <= days + 1 for x, _ in ticks)
