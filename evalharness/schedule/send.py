"""Alerts: each event once, and once more when it is over, to every channel of the schedule."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from evalharness.store import replace_file
from evalharness.watch.events import Event
from evalharness.watch.jobs import Alerts

TIMEOUT_S: Final = 20
STATE: Final = "alerts.json"
Channel = Callable[[Alerts, str], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message to one channel; `problem` says why it did not arrive, and then it is tried again next time."""

    channel: str
    text: str
    problem: str = ""


def deliver(events: Sequence[Event], alerts: Alerts, folder: Path, now: datetime, *, dry_run: bool) -> list[Delivery]:
    """Send what is new. Sent events are remembered in `folder`; a second sender waits for the first."""
    with _state(folder, dry_run=dry_run) as sent:
        found = []
        for event, state in (*_opened(events), *_ended(events, sent)):
            for channel in _channels(alerts):
                key = f"{event.id} {state}"
                done = sent.setdefault(key, {"event": asdict(event), "channels": {}})["channels"]
                if channel in done:
                    continue
                delivery = _send(channel, alerts, event, state, dry_run=dry_run)
                if not delivery.problem:
                    done[channel] = now.isoformat(timespec="seconds")
                found.append(delivery)
        return found


def _opened(events: Sequence[Event]) -> Iterator[tuple[Event, str]]:
    yield from ((event, "open") for event in events if event.is_open)


def _ended(events: Sequence[Event], sent: dict[str, Any]) -> Iterator[tuple[Event, str]]:
    """Events that were told and have ended since."""
    told = {key.rpartition(" ")[0] for key, record in sent.items() if key.endswith(" open") and record["channels"]}
    yield from ((event, "over") for event in events if not event.is_open and event.id in told)


def message(event: Event, state: str) -> str:
    """The alert in words."""
    lines = [event.summary if state == "open" else f"over: {event.summary}"]
    if event.first_bad:
        lines.append(f"first bad run: {event.first_bad}")
    if event.last_good:
        lines.append(f"last good run: {event.last_good}")
    if event.change:
        lines.append(f"between them: {event.change}")
    lines += [f"  {commit}" for commit in event.commits]
    return "\n".join([*lines, *event.details])


def _send(channel: str, alerts: Alerts, event: Event, state: str, *, dry_run: bool) -> Delivery:
    text = message(event, state)
    if dry_run:
        return Delivery(channel, text)
    payload = json.dumps({"text": text, "state": state, "event": asdict(event)}, allow_nan=False)
    try:
        CHANNELS[channel](alerts, payload)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Delivery(channel, text, f"{type(error).__name__}: {_without_url(error)}")
    return Delivery(channel, text)


def _without_url(error: Exception) -> str:
    """A webhook's URL is a secret, and some errors quote it."""
    return str(error.reason) if isinstance(error, urllib.error.URLError) else str(error).partition("http")[0].strip()


# --- channels -----------------------------------------------------------------------------------------------


def _webhook(alerts: Alerts, payload: str) -> None:
    url = alerts.webhook or os.environ.get(alerts.webhook_env or "", "")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"the variable {alerts.webhook_env} holds no web address")
    request = urllib.request.Request(url, payload.encode(), {"Content-Type": "application/json"})  # noqa: S310 - checked
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked above
        answer.read(1)


def _command(alerts: Alerts, payload: str) -> None:
    done = subprocess.run(  # noqa: S603 - the operator's own command, without a shell
        alerts.command, input=payload, text=True, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ValueError(f"{alerts.command[0]} exited with {done.returncode}: {done.stderr.strip()[-200:]}")


def _file(alerts: Alerts, payload: str) -> None:
    if alerts.file is None:
        return
    alerts.file.parent.mkdir(parents=True, exist_ok=True)
    with alerts.file.open("a", encoding="utf-8") as file:
        file.write(payload + "\n")


CHANNELS: Final[dict[str, Channel]] = {"webhook": _webhook, "command": _command, "file": _file}


def _channels(alerts: Alerts) -> list[str]:
    there = {"webhook": alerts.webhook or alerts.webhook_env, "command": alerts.command, "file": alerts.file}
    return [name for name in CHANNELS if there[name]]


# --- memory -------------------------------------------------------------------------------------------------


@contextmanager
def _state(folder: Path, *, dry_run: bool) -> Iterator[dict[str, Any]]:
    """What was sent, held alone while it is used, and written back whole; a dry run writes nothing."""
    path = folder / STATE
    if dry_run:
        yield _load(path)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{STATE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sent = _load(path)
        try:
            yield sent
        finally:
            replace_file(path, json.dumps(sent, indent=1).encode())


def _load(path: Path) -> dict[str, Any]:
    """An unreadable memory is set aside: telling twice is better than not at all."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        path.replace(path.with_suffix(".damaged"))
        return {}
    return found if isinstance(found, dict) else {}
