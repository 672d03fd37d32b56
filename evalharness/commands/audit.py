"""Auditing a build's capture state."""

from __future__ import annotations

import tempfile
from pathlib import Path

from evalharness.capture.audit import render
from evalharness.commands.screen import console
from evalharness.runner.audit import audit as run_audit
from evalharness.runner.choose import default_profile
from evalharness.spec import load_spec


def audit(reference: str | None, settings: tuple[str, ...]) -> int:
    """Print the report; the exit code is its verdict's. Logs stay in a folder of their own."""
    spec = load_spec(reference or default_profile()[0], settings)
    logs = Path(tempfile.mkdtemp(prefix="evalharness-audit-"))
    report = run_audit(spec, lambda arm: logs / f"{arm}.log")
    console.print(render(report), markup=False)
    return report.outcome.exit_code
