"""What other dashboards read."""

import json
import re
from pathlib import Path

import pytest

from evalharness.reports.dashboard.exports import COLUMNS, history_rows, prometheus
from evalharness.watch.archive import Wanted
from evalharness.watch.history import read_history
from evalharness.watch.nights import series
from tests.dashboard.conftest import NOW, SCHEDULE

LINE = re.compile(r'^([a-z_]+)(\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*\})? (-?[0-9.e+-]+)$')


def samples(text: str) -> dict[tuple[str, str], float]:
    """A strict reader of the exposition format."""
    found, declared = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            declared.add(line.split()[2])
        elif not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            assert match[1] in declared
            assert (match[1], match[2]) not in found
            found[match[1], match[2] or ""] = float(match[3])
    return found


def test_the_textfile_tells_accuracy_n_verdict_age_and_speed_of_every_arm(year: Path) -> None:
    entries = read_history(year)
    found = samples(prometheus(series(entries, SCHEDULE, NOW), NOW))
    last = entries[-1]
    for score in last.scores:
        labels = f'task="{score.task}",arm="{score.arm}"}}'
        own = {name: value for (name, label), value in found.items() if label.endswith(labels)}
        assert own["evalharness_accuracy"] == score.value
        assert own["evalharness_samples"] == score.n
        assert own["evalharness_tokens_per_second"] == score.tokens_per_second
    verdicts = {label: value for (name, label), value in found.items() if name == "evalharness_verdict"}
    assert sum(verdicts.values()) == 2
    assert all('verdict="PASS"' in label for label, value in verdicts.items() if value)
    ages = [value for (name, _), value in found.items() if name == "evalharness_last_run_age_seconds"]
    assert ages == [pytest.approx(4 * 3600, abs=60)]


def test_labels_are_escaped(year: Path) -> None:
    (one,) = series(read_history(year), SCHEDULE, NOW)
    object.__setattr__(one, "model", 'a"b\\c\nd')
    assert samples(prometheus([one], NOW))


def test_a_run_is_exported_as_lm_eval_would_have_written_it(site: Path) -> None:
    folder = max((site / "runs").iterdir())
    comparison = json.loads((folder / "comparison.json").read_text())
    found = json.loads((folder / "results_patched.json").read_text())
    for task in comparison["tasks"]:
        score = next(s for s in task["scores"] if s["arm"] == "patched")
        result = found["results"][task["task"]]
        assert result["exact_match,none"] == score["value"]
        assert 0 < result["exact_match_stderr,none"] < 0.1
        assert found["n-samples"][task["task"]]["effective"] == score["n"]
    assert found["config"]["model_args"]["arm"] == "patched"
    assert found["lm_eval_version"] == "0.4.13"


def test_history_rows_are_one_a_run_task_and_arm_and_can_be_narrowed(year: Path) -> None:
    entries = read_history(year)
    rows = list(history_rows(entries))
    assert len([row for row in rows if "task" in row]) == 392 * 6
    assert [row["state"] for row in rows if "task" not in row] == ["uncompared"]
    assert set().union(*rows) <= set(COLUMNS)
    wanted = Wanted(task="gsm8k_canary", arm="patched")
    narrow = [row for row in rows if wanted.takes(row)]
    assert {(row["task"], row["arm"]) for row in narrow} == {("gsm8k_canary", "patched")}
