"""The GPU host's faults, rehearsed over a stand-in for vLLM: what the script promises, the product keeps."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import fault_harness

ROOT = Path(__file__).parents[2]
BALLAST = """
import os, pathlib, sys
held = pathlib.Path(os.environ["FAULT_HARNESS_BALLAST"])
held.touch()
print("holding", flush=True)
sys.stdin.read()
held.unlink()
"""
# One each of: refused before the start, a death at each stage (the last with --resume), silent fallback, a stop.
REHEARSED = ("memory-taken", "killed-loading", "killed-capturing", "killed-generating", "runner-v1", "terminated")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("gpu_faults", ROOT / "scripts/gpu_faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_faults", module)
    spec.loader.exec_module(module)
    (tmp_path / "ballast.py").write_text(BALLAST)
    monkeypatch.setattr(module, "BALLAST", tmp_path / "ballast.py")
    monkeypatch.setattr(module, "DOCUMENTS", 240)
    monkeypatch.setenv(fault_harness.BALLAST, str(tmp_path / "held"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return module


def provoked(
    module: Any, monkeypatch: pytest.MonkeyPatch, out: Path, cases: Sequence[str], *more: str
) -> tuple[int, dict[str, Any]]:
    harness = f"{sys.executable} -m tests.scripts.fault_harness"
    given = ["gpu_faults.py", str(out), "--cases", ",".join(cases), "--harness", harness, *more]
    monkeypatch.setattr(sys, "argv", given)
    status = module.main()
    return status, {row["case"]: row for row in json.loads((out / "faults.json").read_text())["cases"]}


def test_every_promise_is_kept(faults: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, rows = provoked(faults, monkeypatch, tmp_path / "out", REHEARSED, "--together")
    assert {name: row["wrong"] for name, row in rows.items()} == {name: [] for name in REHEARSED}
    assert status == 0
    assert rows["killed-generating"]["resumed"] == "240/240"
    assert 20 <= rows["killed-generating"]["kept"] < 240
    assert "--resume" in rows["killed-capturing"]["message"]


def test_a_promise_that_is_not_kept_is_told(faults: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that nothing happens to is no failed one."""
    case = faults.Case("no-fault", "patched", 5, faults.FAILED, "out of memory", "gpu_memory_utilization")
    monkeypatch.setattr(faults, "CASES", (case,))
    monkeypatch.setattr(faults, "DOCUMENTS", 4)
    status, rows = provoked(faults, monkeypatch, tmp_path / "out", ("no-fault",))
    assert status == 1
    assert rows["no-fault"]["state"] == "done"
    assert "the arm is done, promised failed" in rows["no-fault"]["wrong"]


def test_an_unknown_case_is_named(faults: Any) -> None:
    with pytest.raises(SystemExit, match="Unknown case 'killed'"):
        faults.chosen("killed")
