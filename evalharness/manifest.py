"""manifest.json: the SHA-256 of every file of a run and of every line of its samples, and its signature.

Samples of a compacted run stand in it as the files they were: their lines are made again from the columns and hashed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evalharness import columnar
from evalharness.errors import RecordError, UsageError
from evalharness.provenance import sha256_file
from evalharness.records import SCHEMA_VERSION
from evalharness.store import RunFolder, decode, pretty

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
LINE_DIGITS: Final = 16  # of a line's SHA-256: they name the changed line, the file's whole hash is the proof
MOST_BYTES: Final = 256 << 20  # lines of a larger file are not listed
NOT_LISTED: Final = frozenset({MANIFEST, SIGNATURE, columnar.FILE})
INSTALL: Final = "Install it: pip install 'evalharness[sign]'."
NEW_KEY: Final = "openssl genpkey -algorithm ed25519 -out key.pem"


@dataclass(frozen=True, slots=True)
class FileMark:
    """What a file was: hex SHA-256, size, and of a samples file the beginning of each line's SHA-256."""

    sha256: str
    bytes: int
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every file of a run by its path inside the run. `code` names the version of evalharness that wrote the
    tables and reports: the same code writes the same ones again."""

    run_id: str
    written: str
    code: str
    files: Mapping[str, FileMark] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


def write_manifest(folder: RunFolder, run_id: str, code: str) -> list[str]:
    """Replace manifest.json by the state of `folder`.

    Returns what a reader should know, in sentences: answers that are no longer those of the manifest before, and a
    signature that no longer fits and was removed.
    """
    files = {name: _mark(folder, name) for name in sorted(run_files(folder))}
    manifest = Manifest(run_id, datetime.now(UTC).isoformat(timespec="seconds"), code, files)
    known = read_manifest(folder)
    if known is not None and (known.files, known.code) == (manifest.files, manifest.code):
        return []
    notices = [] if known is None else list(_altered_answers(folder, known))
    stale = folder.path / SIGNATURE
    if stale.exists():
        stale.unlink()
        notices.append("The signature was of the files as they were before, and was removed.")
    folder.write_text(MANIFEST, pretty(manifest, indent=1))
    return notices


def _altered_answers(folder: RunFolder, known: Manifest) -> Iterator[str]:
    """Answers gone or altered since the last manifest; more of them is what a resumed run leaves."""
    present = set(run_files(folder))
    for name, mark in known.files.items():
        if mark.lines and name in present:
            now = _mark(folder, name).lines[: len(mark.lines)]
            if now != mark.lines:
                yield f"{name} holds other answers than when the last manifest was written."
        elif mark.lines:
            yield f"{name} is missing; the last manifest has it."


def read_manifest(folder: RunFolder) -> Manifest | None:
    """The manifest of a run, if it has one; raises RecordError when it cannot be read."""
    if not (folder.path / MANIFEST).exists():
        return None
    return decode(Manifest, folder.read_text(MANIFEST), f"{folder.path.name}/{MANIFEST}")


def run_files(folder: RunFolder) -> Iterator[str]:
    """Paths of all files of a run, packed ones as they were, but for the manifest itself, locks and files being
    written; raises RecordError where the packed ones cannot be read."""
    for path in folder.path.rglob("*"):
        name = path.relative_to(folder.path).as_posix()
        if path.is_file() and not path.name.startswith(".") and name not in NOT_LISTED:
            yield name
    yield from (name for name in folder.sample_files() if not (folder.path / name).exists())


def changes(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    """Every way in which the files of `folder` are not those of `manifest`, in sentences."""
    present = set(run_files(folder))
    for name in sorted(manifest.files.keys() | present):
        known = manifest.files.get(name)
        if known is None:
            yield f"{name} was added: the manifest does not know it."
        elif name not in present:
            yield f"{name} is missing."
        else:
            yield from _changed(folder, name, known)


def _changed(folder: RunFolder, name: str, known: FileMark) -> Iterator[str]:
    now = _mark(folder, name)
    if known.sha256 == now.sha256:
        return
    yield f"{name} was changed: SHA-256 {now.sha256[:16]}..., not {known.sha256[:16]}..."
    if not known.lines or not now.lines:
        return
    lines = _lines(folder, name)
    for kind, a, b, c, d in SequenceMatcher(None, known.lines, now.lines, autojunk=False).get_opcodes():
        if kind == "delete":
            yield f"{name}: {_span(a, b)} removed."
        elif kind != "equal":
            word = "added" if kind == "insert" else "changed"
            yield from (f"{name} line {number + 1} was {word}{_sample_name(lines[number])}." for number in range(c, d))


def _span(start: int, end: int) -> str:
    return f"line {start + 1} was" if end - start == 1 else f"lines {start + 1} to {end} were"


def _sample_name(line: bytes) -> str:
    try:
        sample = json.loads(line)
        return f" (document {int(sample['doc_id'])}, repeat {int(sample['repeat'])})"
    except (ValueError, KeyError, TypeError):
        return ""


def _mark(folder: RunFolder, name: str) -> FileMark:
    path = folder.path / name
    if not path.exists():
        return _packed_mark(folder, name)
    size = path.stat().st_size
    if path.suffix != ".jsonl" or size > MOST_BYTES:
        return FileMark(sha256_file(path), size)
    data = path.read_bytes()
    return FileMark(hashlib.sha256(data).hexdigest(), size, tuple(map(_line_mark, data.splitlines())))


def _packed_mark(folder: RunFolder, name: str) -> FileMark:
    """The mark of a samples file as it was before it was packed, line by line."""
    digest, size = hashlib.sha256(), 0
    lines: list[str] = []
    for line in folder.sample_lines(name):
        digest.update(line + b"\n")
        size += len(line) + 1
        lines += map(_line_mark, line.splitlines())
    return FileMark(digest.hexdigest(), size, tuple(lines) if size <= MOST_BYTES else ())


def _line_mark(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:LINE_DIGITS]


def _lines(folder: RunFolder, name: str) -> list[bytes]:
    path = folder.path / name
    if path.exists():
        return path.read_bytes().splitlines()
    return [part for line in folder.sample_lines(name) for part in line.splitlines()]


# --- signature -------------------------------------------------------------------------------------------


def sign(folder: RunFolder, key_file: Path) -> str:
    """Sign manifest.json with the Ed25519 private key in `key_file` (PEM); returns the key's fingerprint.

    Raises:
        UsageError: the key cannot be read, is of another kind, or `cryptography` is not installed.
    """
    key = _private_key(key_file)
    public = _raw(key.public_key())
    signature = key.sign((folder.path / MANIFEST).read_bytes())
    record = {
        "algorithm": "Ed25519",
        "public_key": base64.b64encode(public).decode(),
        "signature": base64.b64encode(signature).decode(),
    }
    folder.write_text(SIGNATURE, json.dumps(record, indent=1) + "\n")
    return fingerprint(public)


def check_signature(folder: RunFolder, trusted: Path | None = None) -> tuple[str, str | None]:
    """(fingerprint of the key that signed, what is wrong or None). `trusted` names the public key to insist on.

    Raises:
        UsageError: `trusted` cannot be read or `cryptography` is not installed.
    """
    _serialization()
    wanted = None if trusted is None else _raw(_public_key(trusted))
    if not (folder.path / MANIFEST).exists():
        return "", f"{MANIFEST} is missing: there is nothing that a signature could be of."
    if not (folder.path / SIGNATURE).exists():
        return "", f"{SIGNATURE} is missing: the run is not signed."
    try:
        record: Any = json.loads(folder.read_text(SIGNATURE))
        public, signature = (base64.b64decode(record[name], validate=True) for name in ("public_key", "signature"))
    except (ValueError, KeyError, TypeError, RecordError):
        return "", f"{SIGNATURE} is not a signature of this format."
    if wanted is not None and public != wanted:
        return fingerprint(public), f"The run is signed by key {fingerprint(public)}, not by {fingerprint(wanted)}."
    if not _fits(public, signature, (folder.path / MANIFEST).read_bytes()):
        return fingerprint(public), f"{SIGNATURE} does not fit {MANIFEST}: one of them was changed."
    return fingerprint(public), None


def fingerprint(public: bytes) -> str:
    """Short name of a public key: the beginning of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(public).hexdigest()[:16]


def _fits(public: bytes, signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private_key(path: Path) -> Ed25519PrivateKey:
    serialization = _serialization()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is not an unencrypted private key in PEM form.", f"Make one: {NEW_KEY}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} is not an Ed25519 key.", f"Make one: {NEW_KEY}")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    serialization = _serialization()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    remedy = "Take it from the private key: openssl pkey -in key.pem -pubout -out public.pem"
    try:
        key = serialization.load_pem_public_key(_read(path))
    except ValueError as error:
        raise UsageError(f"{path} is not a public key in PEM form.", remedy) from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{path} is not an Ed25519 public key.", remedy)
    return key


def _serialization() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise UsageError("Signatures need the package cryptography.", INSTALL) from error
    return serialization


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes_raw()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"Key file {path} cannot be read: {error.strerror}.", f"Make one: {NEW_KEY}") from error
