"""Single files out of vLLM's wheels, fetched by HTTP range requests: kilobytes instead of hundreds of megabytes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path

CACHE = Path(os.environ.get("EVALHARNESS_VLLM_SOURCES") or Path.home() / ".cache" / "evalharness" / "vllm-sources")
TIMEOUT_S = 20
BLOCK = 1 << 16


class Unavailable(Exception):
    """The wheel cannot be read from here; the message says why."""


class RangeFile(io.RawIOBase):
    """A seekable, read-only view of a URL; every read asks for its own bytes, in blocks that are kept."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._at = url, size, 0
        self._blocks: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._at + size, self._size)
        first, last = self._at // BLOCK, max(stop - 1, self._at) // BLOCK
        self._load(first, last)
        data = b"".join(self._blocks[i] for i in range(first, last + 1))
        offset = self._at - first * BLOCK
        result = data[offset : offset + stop - self._at]
        self._at = stop
        return result

    def _load(self, first: int, last: int) -> None:
        if all(i in self._blocks for i in range(first, last + 1)):
            return
        begin, end = first * BLOCK, min((last + 1) * BLOCK, self._size) - 1
        data = _get(self._url, {"Range": f"bytes={begin}-{end}"})
        if len(data) != end - begin + 1:
            raise Unavailable("the package index does not answer range requests")
        for i in range(first, last + 1):
            self._blocks[i] = data[(i - first) * BLOCK : (i - first + 1) * BLOCK]


def sources(version: str, members: Iterable[str]) -> Path:
    """Folder with those of `members` that vLLM `version` has; raises Unavailable."""
    folder = CACHE / version
    stamp = folder / "members.json"
    wanted = set(members)
    known = set(json.loads(stamp.read_text())) if stamp.exists() else set()
    if wanted <= known:
        return folder
    with _wheel(version) as wheel:
        for name in wanted & set(wheel.namelist()):
            wheel.extract(name, folder)
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text(json.dumps(sorted(known | wanted)))
    return folder


def newest(until: tuple[int, int]) -> str:
    """Version of the newest final release up to the minor release `until`, included; raises Unavailable."""
    versions = {_version(str(f["filename"])) for f in _files()}
    numbers = [tuple(map(int, v.split("."))) for v in versions if re.fullmatch(r"\d+(\.\d+)+", v)]
    return ".".join(map(str, max(number for number in numbers if number[:2] <= until)))


def _wheel(version: str) -> zipfile.ZipFile:
    for file in _files():
        name = str(file["filename"])
        if _version(name) == version and "manylinux" in name and name.endswith("x86_64.whl"):
            if "size" not in file:
                raise Unavailable("the package index does not tell the sizes of its files")
            return zipfile.ZipFile(RangeFile(str(file["url"]), int(str(file["size"]))))
    raise Unavailable(f"the package index has no x86_64 wheel of vLLM {version}")


def _version(file_name: str) -> str:
    return file_name.split("-")[1].removesuffix(".tar.gz")


def _files() -> list[dict[str, object]]:
    page = _get(f"{_index()}/vllm/", {"Accept": "application/vnd.pypi.simple.v1+json"})
    try:
        files: list[dict[str, object]] = json.loads(page)["files"]
    except ValueError as error:
        raise Unavailable("the package index does not serve the JSON form of the simple API") from error
    return files


def _index() -> str:
    """The index pip uses: its configuration, else its built-in default."""
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    configured = os.environ.get("PIP_INDEX_URL") or answer.stdout.strip()
    if configured:
        return configured.rstrip("/")
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url).rstrip("/")


def _get(url: str, headers: dict[str, str]) -> bytes:
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - an address out of pip's own index
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            data: bytes = answer.read(64 << 20)
            return data
    except (urllib.error.URLError, OSError) as error:
        raise Unavailable(f"the package index cannot be reached: {error}") from error
