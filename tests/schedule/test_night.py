"""A night: one at a time, never for ever, with its log, and everything after it whatever became of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evalharness.assess import assess
from evalharness.errors import RecordError
from evalharness.schedule import night
from evalharness.schedule.lock import Busy, exclusive
from evalharness.schedule.night import look_after, run_night
from evalharness.schedule.retention import prunable, prune
from evalharness.store import RunFolder
from evalharness.watch.history import read_history
from evalharness.watch.jobs import Alerts, Job, Retention, Schedule
from evalharness.watch.nights import series
from scripts.make_history import PROFILE, make_history

JOB = Job(name=PROFILE, profile=PROFILE, at="02:00")
# A child that writes one night of the synthetic history, begun now.
WRITE = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from scripts.make_history import make_history
make_history(Path(sys.argv[1]), 1, end=datetime.now(UTC))
"""
HALF = (
    WRITE
    + """
import json, time
(run,) = [p for p in Path(sys.argv[1]).glob("*/run.json")]
run.write_text(json.dumps(json.loads(run.read_text()) | {"finished": None}))
(run.parent / "comparison.json").unlink()
print("capturing", flush=True)
"""
)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(night, "KILL_AFTER_S", 5)
    monkeypatch.setattr(
        night, "report_command", lambda entry, results: ["touch", results / entry.folder / "signoff.html"]
    )


def child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(night, "command", lambda _job, results: [sys.executable, "-c", code, str(results)])


def schedule(tmp_path: Path, **changes: object) -> Schedule:
    return Schedule(
        jobs=(JOB,),
        site=tmp_path / "site",
        textfile=tmp_path / "m.prom",
        alerts=Alerts(file=tmp_path / "alerts"),
        **changes,
    )


def told(tmp_path: Path) -> list[str]:
    path = tmp_path / "alerts"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_good_night_leaves_a_run_a_log_a_site_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, WRITE + "print('done')")
    results = tmp_path / "results"
    assert run_night(JOB, schedule(tmp_path), results, lambda _: None) == 0
    (run,) = results.glob("*/run.json")
    assert (tmp_path / "site" / "runs" / run.parent.name / "index.html").exists()
    assert 'href="signoff.html"' in (tmp_path / "site" / "runs" / run.parent.name / "index.html").read_text()
    assert "evalharness_accuracy" in (tmp_path / "m.prom").read_text()
    (log,) = (results / ".schedule" / "logs").iterdir()
    assert log.read_text() == "done\n"
    assert told(tmp_path) == []


def test_a_night_whose_report_cannot_be_written_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, WRITE)
    monkeypatch.setattr(night, "report_command", lambda *_: [sys.executable, "-c", "raise SystemExit('disk full')"])
    words: list[str] = []
    assert run_night(JOB, schedule(tmp_path), tmp_path / "results", words.append) == 5
    assert any("no sign-off report" in line for line in words)
    assert (tmp_path / "site" / "index.html").exists()


@pytest.mark.parametrize("code", [1, 3, 4])
def test_the_exit_code_is_the_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    child(monkeypatch, WRITE + f"sys.exit({code})")
    assert run_night(JOB, schedule(tmp_path), tmp_path / "results", lambda _: None) == code


def test_a_night_without_a_run_is_told_with_the_last_line_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(monkeypatch, "import sys; sys.exit('error: no weights at /nowhere')")
    assert run_night(JOB, schedule(tmp_path), tmp_path / "results", lambda _: None) == 1
    (text,) = told(tmp_path)
    assert "made no run" in text
    assert "no weights at /nowhere" in text


def test_a_night_that_hangs_is_stopped_with_its_children_and_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grandchild = "import signal, subprocess; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    grandchild += "p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    child(monkeypatch, HALF + grandchild)
    monkeypatch.setattr(night, "KILL_AFTER_S", 0.3)
    job = JOB.model_copy(update={"timeout_hours": 3 / 3600})
    began = time.monotonic()
    assert run_night(job, schedule(tmp_path), tmp_path / "results", lambda _: None) == 5
    assert time.monotonic() - began < 30
    (log,) = (tmp_path / "results" / ".schedule" / "logs").iterdir()
    pid = int(log.read_text().splitlines()[-1])
    assert not is_alive(pid)
    (text,) = told(tmp_path)
    assert "UNFINISHED" in text
    assert "stopped after" in text
    assert "UNFINISHED" in (tmp_path / "site" / "index.html").read_text()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in {"Z", "X"}
    except OSError:
        return False


def test_a_second_scheduler_says_so_and_exits_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, "raise SystemExit('must not run')")
    results, words = tmp_path / "results", []
    with exclusive(results / ".schedule" / f"{PROFILE}.lock"):
        assert run_night(JOB, schedule(tmp_path), results, words.append) == 0
    assert f"process {os.getpid()}" in words[0]
    assert not list(results.glob("*/run.json"))


def test_the_lock_is_free_again_after_a_process_was_killed(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from evalharness.schedule.lock import exclusive\n"
    code += "with exclusive(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    lock = tmp_path / "x.lock"
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Busy), exclusive(lock):
            pass
        holder.send_signal(signal.SIGKILL)
    with exclusive(lock):
        pass


def test_a_stopped_scheduler_ends_its_child_and_marks_the_run(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from evalharness.assess import assess
from evalharness.errors import RecordError
from evalharness.schedule import night
from evalharness.watch.jobs import Job, Schedule
night.command = lambda job, results: [sys.executable, "-c", {HALF + "time.sleep(600)"!r}, str(results)]
sys.exit(night.run_night(Job(name={PROFILE!r}, profile={PROFILE!r}), Schedule(), Path({str(tmp_path)!r})))
"""
    scheduler = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 180
    while not any("capturing" in p.read_text() for p in tmp_path.glob(".schedule/logs/*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    scheduler.terminate()
    output, _ = scheduler.communicate(timeout=180)
    assert scheduler.returncode == 5
    assert "stopped by SIGTERM" in output
    (entry,) = read_history(tmp_path)
    assert entry.problem == "stopped by SIGTERM"


def test_a_step_that_fails_does_not_keep_the_others(tmp_path: Path) -> None:
    results = tmp_path / "results"
    make_history(results, 12, end=datetime.now(UTC) - timedelta(days=3))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "thesis.tex").write_text("")
    words: list[str] = []
    problems = look_after(schedule(tmp_path), results, words.append)
    assert [problem.partition(":")[0] for problem in problems] == ["site"]
    assert "MISSING" in told(tmp_path)[0]
    assert (tmp_path / "m.prom").exists()


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    results = tmp_path / "results"
    make_history(results, 60, end=datetime.now(UTC) - timedelta(days=3), keep_samples=60)
    words: list[str] = []
    look_after(schedule(tmp_path, retention=Retention(sample_days=10)), results, words.append, dry_run=True)
    assert any("would prune" in line for line in words)
    assert any("would send" in line and "MISSING" in line for line in words)
    assert not (tmp_path / "site").exists()
    assert not (tmp_path / "alerts").exists()
    assert len(list(results.glob("*/samples"))) == 52


def test_old_runs_are_compacted_where_the_schedule_says_so(tmp_path: Path) -> None:
    results, words = tmp_path / "results", list[str]()
    make_history(results, 40, end=datetime.now(UTC) - timedelta(days=3), keep_samples=40)
    look_after(schedule(tmp_path, retention=Retention(sample_days=60)), results, words.append)
    assert not list(results.glob("*/samples.parquet"))
    packing = schedule(tmp_path, retention=Retention(sample_days=60, compact_days=8))
    look_after(packing, results, words.append, dry_run=True)
    assert any(re.search(r"would prune .* and compact those of [1-9]", line) for line in words)
    damaged = min(results.glob("*/samples/gsm8k_canary/eager.jsonl"))
    damaged.write_text("{}\n[]\n")
    look_after(packing, results, words.append)
    packed = {path.parent.name for path in results.glob("*/samples.parquet")}
    loose = {path.parent.name for path in results.glob("*/samples")}
    assert packed
    assert not packed & loose
    assert max(packed) < min(loose - {damaged.parents[2].name})
    assert any("was not compacted" in line and "line 2 is no sample" in line for line in words)
    assert any(line == f"compacted the samples of {len(packed)} runs" for line in words)


def test_pruning_spares_published_newest_and_last_good_runs(tmp_path: Path) -> None:
    results = tmp_path / "results"
    make_history(results, 60, keep_samples=60)
    folders = sorted(path for path in results.iterdir() if path.is_dir())
    published = folders[3].name
    (results / "published").mkdir()
    folders[3].rename(results / "published" / published)
    for folder in folders[20:]:
        path = folder / "comparison.json"
        if path.exists():
            path.write_text(path.read_text().replace('"PASS"', '"FAIL"'))
    now = datetime(2027, 6, 1, tzinfo=UTC)
    entries = read_history(results)
    found = series(entries, Schedule(), now)
    last_good = [entry.run_id for entry in entries if entry.verdict == "PASS"][-1]
    pruned = prune(results, prunable(found, entries, Retention(sample_days=1, keep_runs=4), now), now)
    left = {path.parent.name for path in results.glob("**/samples")}
    newest = {entry.run_id for entry in entries[-4:]}
    assert left == {published, last_good, *newest}
    assert len(pruned) == len(folders) - 1 - len(left)
    with pytest.raises(RecordError, match="pruned"):
        assess(RunFolder(results / pruned[0]))
    assert len(list(results.glob("**/comparison.json"))) == len(folders) - 1  # one night did not finish
