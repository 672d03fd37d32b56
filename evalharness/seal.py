"""Writing what a run comes to: its tables, the policy applied, and the manifest that seals them."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from evalharness.assess import POLICY_FILE, Stored
from evalharness.manifest import write_manifest
from evalharness.records import Comparison
from evalharness.reports import write_signoff, write_tables
from evalharness.reports.signoff import build
from evalharness.store import RunFolder

DRAWN_BY: Final = ("jinja2", "markupsafe", "reportlab")
DECIDING: Final = frozenset(
    {"compare", "stats", "reports", "answers.py", "arms.py", "assess.py", "capture/paths.py", "columnar.py",
     "evidence.py", "gate.py", "policy.py", "records.py", "store.py", "table.py"}
)  # fmt: skip


def seal(folder: RunFolder, stored: Stored, comparison: Comparison, formats: Iterable[str] = ()) -> list[str]:
    """Write the tables, the sign-off in `formats`, the policy and the manifest; returns `write_manifest`'s notices.

    Raises:
        UnknownName: a format nobody makes.
        StoreError: the folder cannot be written.
    """
    made = {name: text.encode() for name, text in write_tables(comparison).items()}
    made |= write_signoff(build(stored, comparison), formats) if formats else {}
    made[POLICY_FILE] = (json.dumps(stored.policy.model_dump(mode="json"), indent=2) + "\n").encode()
    for name, content in made.items():
        folder.write_bytes(name, content)
    return write_manifest(folder, stored.run.run_id, code_version())


@cache
def code_version() -> str:
    """SHA-256 over what turns answers into tables and reports: this package's sources and its drawing libraries."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(p for p in package.rglob("*") if p.suffix in {".py", ".html", ".css"}):
        name = path.relative_to(package).as_posix()
        if not DECIDING.isdisjoint((name, name.partition("/")[0])) and "/dashboard/" not in name:
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    versions = [*(f"{name} {_version(name)}" for name in DRAWN_BY), unicodedata.unidata_version]
    digest.update("\n".join(versions).encode())
    return digest.hexdigest()


def _version(name: str) -> str:
    """A host that only runs and compares may lack what draws documents."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
