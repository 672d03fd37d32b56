"""Provenance: what ran where, by allow-list only."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from evalharness.provenance import collect, fingerprint, sha256_text

ROOT = Path(__file__).parent.parent


def test_only_listed_variables_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = collect()
    assert found["environment"]["OMP_NUM_THREADS"] == "2"
    assert "hf_planted" not in str(found)
    assert found["packages"]["lm-eval"] == "0.4.13"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_an_exported_tree_still_knows_its_commit(tmp_path: Path) -> None:
    archive = tmp_path / "tree.tar"
    subprocess.run(["git", "archive", "-o", str(archive), "HEAD", "evalharness"], cwd=ROOT, check=True)
    with tarfile.open(archive) as tree:
        tree.extractall(tmp_path, filter="data")
    code = "from evalharness.provenance import collect; print(collect()['git'])"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert head.strip() in shown


def test_hashes_keep_their_parts_apart() -> None:
    assert sha256_text("ab", "c") != sha256_text("a", "bc")
    assert fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1"}) != fingerprint({"a": "12"})
