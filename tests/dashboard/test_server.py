"""The server: read-only, on loopback by name, elsewhere behind a token; shows runs while they go on."""

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evalharness.reports.dashboard import server as module
from evalharness.reports.dashboard.server import DashboardServer, token_for
from evalharness.watch.jobs import Schedule
from scripts.make_history import make_history


@contextmanager
def serving(results: Path, site: Path, token: str = "") -> Iterator[DashboardServer]:
    server = DashboardServer(("127.0.0.1", 0), results, site, Schedule(), token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(
    server: DashboardServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace"), answer.headers
    finally:
        connection.close()


def running(results: Path, done: int) -> Path:
    """A run in progress: the newest one made unfinished again, with a log."""
    folder = max(p for p in results.iterdir() if p.is_dir())
    (folder / "comparison.json").unlink(missing_ok=True)
    run = json.loads((folder / "run.json").read_text())
    run |= {"finished": None, "created": datetime.now(UTC).isoformat()}
    (folder / "run.json").write_text(json.dumps(run))
    samples = folder / "samples" / "gsm8k_canary" / "eager.jsonl"
    samples.write_text("{}\n" * done + '{"half')
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "eager.log").write_bytes(b"\x1b[31mloading <weights>\x1b[0m\n" + b"capturing graphs\n")
    return folder


def test_pages_are_served_with_headers_that_keep_them_to_themselves(results: Path, tmp_path: Path) -> None:
    with serving(results, tmp_path / "site") as server:
        status, body, headers = ask(server, "/index.html")
        assert status == 200
        assert 'href="live"' in body
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert ask(server, "/")[0] == 200
        assert ask(server, "/metrics.prom")[0] == 200
        assert ask(server, "/live")[0] == 200


@pytest.mark.parametrize(
    "path", ["/../results/schedule.yaml", "/%2e%2e/results", "/runs/", "/nothing", "/.build.json/x"]
)
def test_nothing_outside_the_site_and_no_listing(results: Path, tmp_path: Path, path: str) -> None:
    with serving(results, tmp_path / "site") as server:
        assert ask(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_it_only_reads(results: Path, tmp_path: Path, method: str) -> None:
    with serving(results, tmp_path / "site") as server:
        assert ask(server, "/index.html", method)[0] == 501


def test_a_foreign_name_is_refused_without_a_token(results: Path, tmp_path: Path) -> None:
    with serving(results, tmp_path / "site") as server:
        assert ask(server, "/index.html", Host="evil.example.org")[0] == 403
        assert ask(server, "/index.html", Host="localhost:8642")[0] == 200


def test_elsewhere_the_token_is_needed_and_remembered_in_a_cookie(results: Path, tmp_path: Path) -> None:
    assert token_for("127.0.0.1", "") == token_for("::1", "") == token_for("localhost", "") == ""
    assert len(token_for("0.0.0.0", "")) > 20  # noqa: S104 - the address is not listened on
    with serving(results, tmp_path / "site", "sesame") as server:
        assert ask(server, "/index.html")[0] == 403
        assert ask(server, "/api/live?token=wrong")[0] == 403
        assert ask(server, "/index.html", Cookie="evalharness_token=wrong")[0] == 403
        status, _, headers = ask(server, "//evil.example.org/?token=sesame")
        assert status == 303
        assert re.match(r"/[^/]", headers["Location"])
        assert "HttpOnly" in headers["Set-Cookie"]
        assert ask(server, "/index.html", Cookie=headers["Set-Cookie"].partition(";")[0])[0] == 200


def test_the_run_in_progress_is_shown_with_its_log(results: Path, tmp_path: Path) -> None:
    folder = running(results, done=17)
    with serving(results, tmp_path / "site") as server:
        live = json.loads(ask(server, "/api/live")[1])
    (run,) = live["runs"]
    assert run["run_id"] == folder.name
    assert run["running"]
    assert run["arms"][0] | {"state": ""} == {"name": "eager", "state": "", "message": "", "done": 137, "asked": 370}
    assert run["log"] == "loading <weights>\ncapturing graphs"


def test_a_new_night_appears_by_itself(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.05)
    name = max(p.name for p in results.iterdir() if p.is_dir())
    (results / name).rename(tmp_path / name)
    rebuilt = threading.Event()
    with serving(results, tmp_path / "site") as server:
        assert ask(server, f"/runs/{name}/index.html")[0] == 404
        original = server.rebuild
        monkeypatch.setattr(server, "rebuild", lambda: (original(), rebuilt.set()))
        (tmp_path / name).rename(results / name)
        assert rebuilt.wait(20)
        assert ask(server, f"/runs/{name}/index.html")[0] == 200


def test_a_folder_of_runs_that_vanish_serves_on(results: Path, tmp_path: Path) -> None:
    make_history(tmp_path / "others", 3)
    (results / "half").mkdir()
    (results / "half" / "run.json").write_text("{")
    with serving(results, tmp_path / "site") as server:
        assert json.loads(ask(server, "/api/live")[1])["runs"] == []
        assert "half" in ask(server, "/index.html")[1]
