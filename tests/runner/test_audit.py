"""An audit from start to end, on the emulated engine with a model of random weights."""

from __future__ import annotations

from pathlib import Path

from evalharness.records import Outcome
from evalharness.runner.audit import audit
from tests.engines.tiny_model import run_spec, write_model


def test_the_emulated_engine_s_own_path_is_isolated_and_stock_is_seen_to_leak(tmp_path: Path) -> None:
    report = audit(run_spec(write_model(tmp_path / "model"), max_model_len=1024))
    paths = {path.arm: path for path in report.paths}
    assert (report.outcome, report.verdict) == (Outcome.PASS, "capture state is isolated")
    assert set(paths) == {"stock", "patched", "native"}
    assert paths["stock"].leaking == paths["stock"].descriptors > 0
    assert paths["patched"].leaking == paths["native"].leaking == 0
    assert paths["stock"].agreement < paths["patched"].agreement == paths["native"].agreement == 1.0
