"""A sealed run verifies anywhere; whatever is changed in it afterwards is named."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from evalharness.assess import read_stored
from evalharness.cli import app
from evalharness.commands import report as reporting
from evalharness.errors import UsageError
from evalharness.manifest import sign, write_manifest
from evalharness.reports import SIGNOFF
from evalharness.seal import code_version, seal
from evalharness.store import RunFolder
from evalharness.verify import Verification, verify, with_scores
from tests.stored_runs import stored_run

STOCK = "samples/gsm8k_canary/stock.jsonl"


def sealed_run(results: Path) -> RunFolder:
    folder = stored_run(results, {"gsm8k_canary": (60, 1), "aime25_canary": (10, 4)})
    stored = read_stored(folder)
    seal(folder, stored, stored.comparison, SIGNOFF)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return sealed_run(tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy elsewhere, as on another machine."""
    copied = tmp_path / "copied" / original.path.name
    shutil.copytree(original.path, copied)
    return RunFolder(copied)


def edit(folder: RunFolder, name: str, old: str, new: str, *, count: int = 1) -> None:
    path = folder.path / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, count))


def reseal(folder: RunFolder) -> None:
    """What a forger does who knows of the manifest."""
    write_manifest(folder, folder.read_run().run_id, code_version())


def problems(found: Verification) -> str:
    return "\n".join(found.problems)


def test_a_copy_of_a_run_verifies_elsewhere(folder: RunFolder) -> None:
    found = verify(folder)
    assert found.problems == ()
    assert found.samples == 3 * (60 + 40)
    assert found.documents == 3 + 6
    assert found.figures > 500
    assert any("not signed" in note for note in found.notes)


def test_no_path_of_the_machine_is_in_the_manifest(original: RunFolder) -> None:
    text = original.read_text("manifest.json")
    assert str(original.path.parent) not in text
    assert all(not name.startswith("/") for name in json.loads(text)["files"])


def test_a_changed_answer_is_named_with_its_document(folder: RunFolder) -> None:
    lines = (folder.path / STOCK).read_text().split("\n")
    lines[16] = lines[16].replace('"response":"', '"response":"x')
    (folder.path / STOCK).write_text("\n".join(lines))
    assert f"{STOCK} line 17 was changed (document 16, repeat 0)." in verify(folder).problems


def test_a_removed_and_an_added_answer_are_named(folder: RunFolder) -> None:
    path = folder.path / STOCK
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4] + lines[5:]))
    assert f"{STOCK}: line 5 was removed." in verify(folder).problems
    path.write_text("".join([*lines, lines[0].replace('"doc_id":0', '"doc_id":900')]))
    assert f"{STOCK} line 61 was added (document 900, repeat 0)." in verify(folder).problems


def test_a_changed_score_changes_figures_even_under_a_new_manifest(folder: RunFolder) -> None:
    edit(folder, STOCK, '"exact_match":0.0', '"exact_match":1.0')
    reseal(folder)
    found = verify(folder)
    assert "comparison.json: tasks[gsm8k_canary exact_match].scores[stock].value is" in problems(found)
    assert "comparison.csv: gsm8k_canary/exact_match/stock.value is" in problems(found)


def test_a_score_its_response_does_not_earn_is_found_by_scoring_again(folder: RunFolder) -> None:
    assert with_scores(verify(folder), folder).problems == ()
    edit(folder, STOCK, '"exact_match":0.0', '"exact_match":1.0')
    stored = read_stored(folder)
    seal(folder, stored, stored.comparison, SIGNOFF)
    found = with_scores(verify(folder), folder)
    assert len(found.problems) == 1
    assert "has exact_match 1.0, its response scores 0.0" in found.problems[0]


@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("comparison.json", "comparison.json: tasks[gsm8k_canary exact_match].scores[eager].value is 0.123"),
        ("signoff.json", "signoff.json: comparison.tasks[gsm8k_canary exact_match].scores[eager].value is 0.123"),
    ],
)
def test_a_changed_figure_is_named_even_under_a_new_manifest(folder: RunFolder, file: str, word: str) -> None:
    record = json.loads(folder.read_text(file))
    record.get("comparison", record)["tasks"][0]["scores"][0]["value"] = 0.123
    folder.write_text(file, json.dumps(record))
    reseal(folder)
    assert word in problems(verify(folder))


@pytest.mark.parametrize("file", ["signoff.html", "report.html", "signoff.md", "comparison.md", "junit.xml"])
def test_a_changed_report_is_named_even_under_a_new_manifest(folder: RunFolder, file: str) -> None:
    edit(folder, file, "INCONCLUSIVE", "GLORIOUS")
    reseal(folder)
    (problem,) = verify(folder).problems
    assert problem.startswith(f"{file} line ")
    assert "GLORIOUS" in problem


def test_another_pdf_is_noticed_even_under_a_new_manifest(folder: RunFolder, tmp_path: Path) -> None:
    other = stored_run(tmp_path / "other", {"gsm8k_canary": (50, 1)})
    stored = read_stored(other)
    seal(other, stored, stored.comparison, ["pdf"])
    shutil.copy(other.path / "signoff.pdf", folder.path / "signoff.pdf")
    reseal(folder)
    assert verify(folder).problems == ("signoff.pdf is not the document that the answers give.",)


def test_a_missing_and_an_extra_file_are_named(folder: RunFolder) -> None:
    (folder.path / "evidence" / "eager.json").rename(folder.path / "evidence" / "eager.json.bak")
    found = problems(verify(folder))
    assert "evidence/eager.json is missing." in found
    assert "evidence/eager.json.bak was added" in found


def test_changed_evidence_is_named(folder: RunFolder) -> None:
    edit(folder, "evidence/patched.json", '"full_replays": 1840', '"full_replays": 9999')
    assert "evidence/patched.json was changed" in problems(verify(folder))


def test_a_run_without_manifest_does_not_verify(folder: RunFolder) -> None:
    (folder.path / "manifest.json").unlink()
    assert "manifest.json is missing" in problems(verify(folder))


def test_reports_of_another_version_are_checked_by_figures_and_hash(folder: RunFolder) -> None:
    edit(folder, "signoff.html", "<main", "<main ")
    write_manifest(folder, folder.read_run().run_id, "another version")
    found = verify(folder)
    assert found.problems == ()
    assert found.figures > 500
    assert any("another version" in note for note in found.notes)


def test_a_run_is_judged_by_the_policy_it_was_judged_by(tmp_path: Path) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text("name: mine\nalpha: 0.01\ndefault: {margin: 0.08, documents: 60}\n")
    folder = stored_run(tmp_path / "results", {"gsm8k_canary": (60, 1)}, policy=str(policy))
    stored = read_stored(folder)
    seal(folder, stored, stored.comparison)
    policy.unlink()
    assert verify(folder).problems == ()
    edit(folder, "policy.json", '"alpha": 0.01', '"alpha": 0.2')
    reseal(folder)
    assert "comparison.json: alpha is 0.01, recomputed 0.2." in verify(folder).problems


def test_answers_altered_before_sealing_again_are_told(folder: RunFolder) -> None:
    edit(folder, STOCK, '"exact_match":0.0', '"exact_match":1.0')
    stored = read_stored(folder)
    assert seal(folder, stored, stored.comparison) == [
        f"{STOCK} holds other answers than when the last manifest was written."
    ]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (STOCK, "line 1 is not valid JSON"),
        ("run.json", "run.json is not valid JSON"),
        ("evidence/stock.json", "stock.json is not valid JSON"),
        ("policy.json", "policy.json is not a policy"),
        ("manifest.json", "manifest.json is not valid JSON"),
        ("comparison.json", "comparison.json cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_any_more_is_a_problem(folder: RunFolder, file: str, words: str) -> None:
    (folder.path / file).write_text("{broken\n")
    found = problems(verify(folder))
    assert words in found
    assert file == "manifest.json" or f"{file} was changed" in found


# --- signatures ------------------------------------------------------------------------------------------


def keys(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """A key pair in PEM files, as openssl writes them."""
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_a_signed_run_verifies_with_its_public_key(folder: RunFolder, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    name = sign(folder, private)
    found = verify(folder, public)
    assert (found.problems, found.signed_by) == ((), name)
    assert not any("not signed" in note for note in found.notes)


def test_another_key_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    private, _ = keys(tmp_path)
    _, other = keys(tmp_path, "other")
    sign(folder, private)
    assert "is signed by key" in problems(verify(folder, other))


def test_an_unsigned_run_is_refused_where_a_signature_is_required(folder: RunFolder, tmp_path: Path) -> None:
    _, public = keys(tmp_path)
    assert "manifest.sig is missing" in problems(verify(folder, public))


def test_a_manifest_changed_after_signing_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    sign(folder, private)
    edit(folder, "manifest.json", '"written"', ' "written"')
    assert "manifest.sig does not fit manifest.json" in problems(verify(folder, public))
    assert "manifest.sig does not fit manifest.json" in problems(verify(folder))


def test_sealing_other_contents_removes_the_signature(folder: RunFolder, tmp_path: Path) -> None:
    private, _ = keys(tmp_path)
    sign(folder, private)
    stored = read_stored(folder)
    assert seal(folder, stored, stored.comparison, SIGNOFF) == []
    assert (folder.path / "manifest.sig").exists()
    (folder.path / "logs").mkdir()
    (folder.path / "logs" / "eager.log").write_text("later")
    assert "was removed" in seal(folder, stored, stored.comparison, SIGNOFF)[0]
    assert not (folder.path / "manifest.sig").exists()


def test_a_signature_without_a_manifest_is_a_problem(folder: RunFolder, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    sign(folder, private)
    (folder.path / "manifest.json").unlink()
    assert "manifest.json is missing" in problems(verify(folder, public))


def test_without_the_package_a_signature_is_noted_as_unchecked(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = keys(tmp_path)
    sign(folder, private)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    found = verify(folder)
    assert found.problems == ()
    assert any("was not checked" in note and "evalharness[sign]" in note for note in found.notes)
    with pytest.raises(UsageError, match="pip install"):
        verify(folder, public)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff\xfe", b'{"public_key": "AA==", "signature": "!"}'])
def test_a_broken_signature_file_is_a_problem_not_a_crash(folder: RunFolder, text: bytes) -> None:
    (folder.path / "manifest.sig").write_bytes(text)
    assert "manifest.sig" in problems(verify(folder))


def test_a_key_of_another_kind_is_refused_with_the_command_that_makes_one(folder: RunFolder, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = tmp_path / "rsa.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    with pytest.raises(UsageError, match="openssl genpkey -algorithm ed25519"):
        sign(folder, path)
    with pytest.raises(UsageError, match="cannot be read"):
        sign(folder, tmp_path / "none.pem")


# --- the commands ----------------------------------------------------------------------------------------


def test_report_writes_every_format_into_the_run_and_verify_accepts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored_run(tmp_path / "results", {"gsm8k_canary": (250, 1)})
    private, public = keys(tmp_path)
    assert reporting.report("latest", tmp_path / "results", "html,pdf,md,json,junit", key=private) == 0
    for name in ("signoff.html", "report.html", "signoff.pdf", "signoff.md", "signoff.json", "junit.xml"):
        assert (folder.path / name).stat().st_size > 500
    assert reporting.verify_run("latest", tmp_path / "results", public, rescoring=True, data=None) == 0
    assert "VERIFIED" in capsys.readouterr().out


def test_report_elsewhere_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "results", {"gsm8k_canary": (250, 1)})
    before = sorted(folder.path.rglob("*"))
    assert reporting.report(str(folder.path), tmp_path, "html,junit", tmp_path / "made" / "here") == 0
    made = {p.name for p in (tmp_path / "made" / "here").iterdir()}
    assert made == {"signoff.html", "report.html", "junit.xml"}
    assert sorted(folder.path.rglob("*")) == before


def test_a_results_folder_named_by_out_is_searched(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "results", {"gsm8k_canary": (250, 1)})
    assert reporting.report("latest", tmp_path / "nowhere", "md", tmp_path / "results") == 0
    assert (folder.path / "signoff.md").exists()


def test_a_job_summary_is_appended(tmp_path: Path) -> None:
    stored_run(tmp_path / "results", {"gsm8k_canary": (250, 1)})
    summary = tmp_path / "summary.md"
    summary.write_text("# before\n")
    reporting.report("latest", tmp_path / "results", "json", job_summary=summary)
    assert summary.read_text().startswith("# before\n## ✅ PASS: test")


def test_verify_exits_with_one_and_names_the_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sealed_run(tmp_path)
    edit(folder, "signoff.html", "PASS", "FAIL")
    assert reporting.verify_run(str(folder.path), tmp_path, None, rescoring=False, data=None) == 1
    assert "NOT VERIFIED" in capsys.readouterr().out


def test_the_command_line_reaches_all_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored_run(tmp_path / "results", {"gsm8k_canary": (250, 1)})
    private, public = keys(tmp_path)
    run, results = str(folder.path), str(tmp_path / "results")

    def command(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            app(list(words))
        return int(ended.value.code or 0)

    assert command("report", run, "--format", "md,junit", "--sign", str(private)) == 0
    assert command("report", "latest", "--results", results, "--format", "md,junit") == 0
    assert command("verify", "latest", "--out", results, "--require-signature", str(public), "--rescore") == 0
    assert command("rescore", run, "--task", "gsm8k_canary") == 0
    edit(folder, STOCK, '"exact_match":0.0', '"exact_match":1.0')
    assert command("verify", run) == 1
    assert "NOT VERIFIED" in capsys.readouterr().out


def test_a_host_without_the_drawing_libraries_still_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    code_version.cache_clear()
    monkeypatch.setattr(metadata, "version", absent)
    try:
        assert len(code_version()) == 64
    finally:
        code_version.cache_clear()
