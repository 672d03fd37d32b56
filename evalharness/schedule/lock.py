"""One night at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from evalharness.errors import StoreError


class Busy(Exception):
    """Somebody else holds the lock; `holder` says who, as far as it is known."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold `path` alone; the kernel frees it when the process ends, however it ends.

    Raises:
        Busy: it is held.
        StoreError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise StoreError(f"Cannot write {path}: {error.strerror}.", "Choose another folder with --out.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(_holder(path)) from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}))
        file.flush()
        yield


def _holder(path: Path) -> str:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"process {found['pid']}, since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
