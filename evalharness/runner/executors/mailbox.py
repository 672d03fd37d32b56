"""A replica's folder on shared storage: orders come in as files, what comes of them is appended to one file.

order-1.json, order-2.json, ...   written whole by the run
told                              lines appended by the replica; each order's last one is `ended`
recall-2, close                   the run wants no more of order 2, or of the replica
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from evalharness.engines.base import Completion, Request
from evalharness.records import ArmEvidence
from evalharness.runner.executors.worker import Ended, Order, Started, heard
from evalharness.spec import ArmSpec
from evalharness.store import decode, encode, replace_file

POLL_S: Final = 0.5
ORPHAN_S: Final = 300.0  # without a sign of the run, a replica with nothing to do ends
HEARTBEAT: Final = "alive"  # beside the folders of the replicas; the run touches it
REPLICAS: Final = "*/replica-*"  # below the shards of a run: a folder a sitting, in it one a replica


class Outbox:
    """The run's side of a replica's folder. Every method may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent = 0
        self._read = 0
        folder.mkdir(parents=True)

    def send(self, order: Order) -> None:
        """Give the replica its next order."""
        self._sent += 1
        replace_file(self.folder / f"order-{self._sent}.json", encode(order).encode())

    def recall(self) -> None:
        """Have the replica end its newest order."""
        (self.folder / f"recall-{self._sent}").touch()

    def close(self) -> None:
        """Have the replica end."""
        (self.folder / "close").touch()

    def news(self) -> list[str]:
        """Whole lines told since the last call."""
        try:
            with (self.folder / "told").open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        self._read += len(whole) + 1 if whole else 0
        return _lines(whole)


class Desk:
    """The replica's side. A replica that starts again goes on where the last one was stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._told = folder, folder / "told"
        self._ended = 0
        self._answered: set[str] = set()
        _cut_unfinished(self._told)
        for line in _whole_lines(self._told):
            self._note(line)

    def orders(self) -> Iterator[Order]:
        """Every order, as far as it is not served yet, until the replica is to end or the run is gone."""
        while self._wait_for(path := self._folder / f"order-{self._ended + 1}.json"):
            order = decode(Order, path.read_bytes(), path.name)
            left = tuple(request for request in order.requests if request.id not in self._answered)
            yield Order(order.arm, left)

    def tell(self, line: str) -> None:
        """Append a line, so that the run reads it even if this process ends right after."""
        with self._told.open("ab") as file:
            file.write(line.encode())
        self._note(line)

    @property
    def recalled(self) -> bool:
        """Whether the run wants no more of the order that is being served."""
        return (self._folder / f"recall-{self._ended + 1}").exists()

    def _note(self, line: str) -> None:
        report = heard(line)
        if isinstance(report, Completion):
            self._answered.add(report.request_id)
        elif isinstance(report, Ended):
            self._ended += 1
            self._answered.clear()

    def _wait_for(self, order: Path) -> bool:
        beat, since = 0.0, time.monotonic()
        while not order.exists():
            newest = _modified(self._folder.parent / HEARTBEAT)
            if newest != beat:
                beat, since = newest, time.monotonic()
            if (self._folder / "close").exists() or time.monotonic() - since > ORPHAN_S:
                return False
            time.sleep(POLL_S)
        return True


def end_all(shards: Path) -> None:
    """Have every replica of earlier sittings end, whose run was killed: after its next answer, or when it starts."""
    for folder in shards.glob(REPLICAS):
        number = sum(1 for _ in folder.glob("order-*.json"))
        (folder / f"recall-{number}").touch()
        (folder / "close").touch()


def earlier(
    folder: Path, arm: ArmSpec, wanted: Mapping[str, Request]
) -> Iterator[tuple[str, ArmEvidence | Completion]]:
    """What the replica of an earlier sitting told of `arm` in answer to the very requests in `wanted`.

    Its evidence comes first, once for each time that it started; nothing comes where no answer is of use.
    """
    name, starts, number = f"{folder.name} of sitting {folder.parent.name}", 0, 1
    asked = _asked(folder, number, arm)
    proofs: dict[str, ArmEvidence] = {}
    found: list[Completion] = []
    for report in map(heard, _whole_lines(folder / "told")):
        match report:
            case Started():
                starts += 1
            case ArmEvidence() if report.arm == arm.name:
                proofs[f"{name}, start {starts}"] = report
            case Completion(request_id=key, error=None) if key in asked and asked[key] == wanted.get(key):
                found.append(report)
            case Ended():
                number += 1
                asked = _asked(folder, number, arm)
    if found:
        yield from proofs.items()
        yield from ((name, completion) for completion in found)


def _asked(folder: Path, number: int, arm: ArmSpec) -> dict[str, Request]:
    """Requests by id of an order under `arm`; none where there is no such order."""
    path = folder / f"order-{number}.json"
    order = decode(Order, path.read_bytes(), path.name) if path.exists() else Order()
    return {request.id: request for request in order.requests if order.arm == arm}


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file, without one at its end that is not finished."""
    return _lines(path.read_bytes().rpartition(b"\n")[0]) if path.exists() else []


def _lines(whole: bytes) -> list[str]:
    """Lines end at a newline and nowhere else: an answer may hold a separator that `str.splitlines` knows too."""
    return whole.decode().split("\n") if whole else []


def _cut_unfinished(path: Path) -> None:
    """Drop what stands after the last newline, so that the next line does not grow out of it."""
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
