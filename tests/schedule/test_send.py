"""Alerts: once an event, once more when it is over, to every channel, again where a channel failed."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from evalharness.schedule.send import STATE, deliver
from evalharness.watch.events import Event
from evalharness.watch.jobs import Alerts

NOW = datetime(2026, 12, 1, 6, tzinfo=UTC)
EVENT = Event(
    id="FAIL:p / t:run",
    kind="FAIL",
    profile="p",
    task="t",
    arm="",
    since="2026-12-01",
    summary="p / t is FAIL",
    first_bad="run-2",
    last_good="run-1",
    change="version a → b",
    commits=("abc culprit",),
)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_an_event_is_told_once_and_names_the_first_bad_run_and_the_commits(tmp_path: Path) -> None:
    alerts = Alerts(file=tmp_path / "alerts.jsonl")
    for _ in range(3):
        deliver([EVENT], alerts, tmp_path, NOW, dry_run=False)
    (told,) = lines(tmp_path / "alerts.jsonl")
    for words in ("p / t is FAIL", "first bad run: run-2", "last good run: run-1", "version a → b", "abc culprit"):
        assert words in str(told["text"])


def test_its_end_is_told_once_and_only_to_those_who_heard_of_it(tmp_path: Path) -> None:
    alerts = Alerts(file=tmp_path / "alerts.jsonl")
    over = replace(EVENT, ended="2026-12-02")
    unheard = replace(over, id="another")
    deliver([EVENT], alerts, tmp_path, NOW, dry_run=False)
    for _ in range(2):
        deliver([over, unheard], alerts, tmp_path, NOW, dry_run=False)
    assert [line["state"] for line in lines(tmp_path / "alerts.jsonl")] == ["open", "over"]


def test_a_dry_run_says_what_it_would_send_and_does_nothing(tmp_path: Path) -> None:
    alerts = Alerts(file=tmp_path / "alerts.jsonl")
    (delivery,) = deliver([EVENT], alerts, tmp_path / "state", NOW, dry_run=True)
    assert (delivery.channel, delivery.problem) == ("file", "")
    assert not list(tmp_path.iterdir())


def test_a_channel_that_fails_is_tried_again_and_the_others_are_not(tmp_path: Path) -> None:
    script = tmp_path / "hook"
    script.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    script.chmod(0o755)
    alerts = Alerts(file=tmp_path / "alerts.jsonl", command=(str(script),))
    first = deliver([EVENT], alerts, tmp_path, NOW, dry_run=False)
    assert [bool(delivery.problem) for delivery in first] == [True, False]
    assert "exited with 3: broken" in first[0].problem
    script.write_text(f"#!/bin/sh\ncat > {tmp_path}/told\n")
    (second,) = deliver([EVENT], alerts, tmp_path, NOW, dry_run=False)
    assert (second.channel, second.problem) == ("command", "")
    assert json.loads((tmp_path / "told").read_text())["event"]["first_bad"] == "run-2"
    assert deliver([EVENT], alerts, tmp_path, NOW, dry_run=False) == []


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, object]]]]:
    got: list[dict[str, object]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if len(got) > 1 else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/secret-token", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_json_and_its_address_stays_out_of_messages(
    tmp_path: Path, hook: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = hook
    monkeypatch.setenv("NIGHT_HOOK", url)
    alerts = Alerts(webhook_env="NIGHT_HOOK")
    (refused,) = deliver([EVENT], alerts, tmp_path, NOW, dry_run=False)
    assert refused.problem
    assert "secret-token" not in refused.problem
    (taken,) = deliver([EVENT], alerts, tmp_path, NOW, dry_run=False)
    assert not taken.problem
    assert got[1]["text"] == taken.text
    assert "secret-token" not in (tmp_path / STATE).read_text()


def test_two_senders_at_once_tell_once(tmp_path: Path) -> None:
    alerts = Alerts(file=tmp_path / "alerts.jsonl")
    events = [replace(EVENT, id=str(i)) for i in range(20)]
    senders = [
        threading.Thread(target=deliver, args=(events, alerts, tmp_path, NOW), kwargs={"dry_run": False})
        for _ in range(4)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert len(lines(tmp_path / "alerts.jsonl")) == 20


def test_a_damaged_memory_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / STATE).write_text("{")
    alerts = Alerts(file=tmp_path / "alerts.jsonl")
    deliver([EVENT], alerts, tmp_path, NOW, dry_run=False)
    assert len(lines(tmp_path / "alerts.jsonl")) == 1
    assert (tmp_path / "alerts.damaged").exists()
