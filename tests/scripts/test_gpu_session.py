"""The GPU session: every step's end is written down, and one that hangs or fails stops nothing."""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from evalharness.spec import load_spec

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("gpu_session", SCRIPTS / "gpu_session.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_session", module)
    spec.loader.exec_module(module)
    return module


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_steps_are_independent_and_written_down(session: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = (
        session.Step("writes", python("import pathlib; pathlib.Path(r'{runs}/a').write_text('1'); print('out')"), 20),
        session.Step("fails", python("raise SystemExit(4)"), 20),
        session.Step("hangs", python("import time; time.sleep(60)"), 0.5),
        session.Step("late", python("pass"), 10_000),
    )
    monkeypatch.setattr(session, "STEPS", steps)
    out, runs = tmp_path / "out", tmp_path / "runs"
    monkeypatch.setattr(sys, "argv", ["gpu_session.py", str(out), "--runs", str(runs), "--seconds", "30"])
    assert session.main() == 1
    told = {row["name"]: (row["status"], row["note"]) for row in json.loads((out / "session.json").read_text())}
    assert told["writes"] == (0, "")
    assert told["fails"] == (4, "")
    assert told["hangs"][0] is None
    assert "stopped after" in told["hangs"][1]
    assert told["late"] == (None, "skipped: no time left")
    assert (runs / "logs/writes.log").read_text() == "out\n"
    with tarfile.open(out / "runs.tar.gz") as archive:
        assert {"runs/a", "runs/logs/hangs.log"} <= set(archive.getnames())


def test_steps_can_be_chosen_and_a_mistaken_one_is_named(session: Any) -> None:
    assert [step.name for step in session.chosen("audit,kernel")] == ["audit", "kernel"]
    with pytest.raises(SystemExit, match="Unknown step 'kernle'"):
        session.chosen("kernle")


@pytest.mark.parametrize("name", ["agreement.yaml", "canary-v4-kinds.yaml"])
def test_the_session_s_specs_load(name: str) -> None:
    assert load_spec(str(SCRIPTS / "gpu" / name)).engine.kind == "vllm"
