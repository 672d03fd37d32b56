"""The dashboard over HTTP while runs go on: read-only, on loopback unless a token guards it."""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from evalharness.errors import EvalHarnessError, UsageError
from evalharness.reports.dashboard import build
from evalharness.reports.dashboard.live import live
from evalharness.reports.dashboard.render import page
from evalharness.watch.history import signature
from evalharness.watch.jobs import Schedule

COOKIE: Final = "evalharness_token"
LOOK_EVERY_S: Final = 3.0
REBUILD_AFTER_S: Final = 300.0  # ages and missed nights change without any file
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class DashboardServer(ThreadingHTTPServer):
    """Serves `site`, which a thread of its own rebuilds whenever a run folder changes."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], results: Path, site: Path, schedule: Schedule, token: str) -> None:
        self.results, self.site, self.schedule, self.token = results, site, schedule, token
        self.rebuild()
        handler = partial(Handler, directory=str(site))
        try:
            super().__init__(address, handler)
        except OSError as error:
            raise UsageError(
                f"Cannot listen on {address[0]}:{address[1]}: {error.strerror or error}.", "Choose another --port."
            ) from error
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="rebuild", daemon=True)
        self._watcher.start()

    def rebuild(self) -> None:
        """Build the site as the records are now."""
        build(self.results, self.site, self.schedule, datetime.now(UTC), live=True)

    def server_close(self) -> None:
        """Stop listening and rebuilding."""
        self._done.set()
        super().server_close()
        self._watcher.join()

    def _watch(self) -> None:
        seen, waited = _state(self.results), 0.0
        while not self._done.wait(LOOK_EVERY_S):
            now, waited = _state(self.results), waited + LOOK_EVERY_S
            if now == seen and waited < REBUILD_AFTER_S:
                continue
            seen, waited = now, 0.0
            try:
                self.rebuild()
            except (EvalHarnessError, OSError) as error:
                print(f"rebuild failed, the old site stays: {error}")


def _state(results: Path) -> int:
    """Changes whenever a record of any run does."""
    folders = [p for pattern in ("*", "published/*") for p in results.glob(pattern) if p.is_dir()]
    return hash(tuple((path.name, signature(path)) for path in sorted(folders)))


class Handler(SimpleHTTPRequestHandler):
    """GET and HEAD only; nobody gets in without the token, where there is one."""

    server: DashboardServer
    server_version = "evalharness"
    sys_version = ""

    def do_GET(self) -> None:
        """Serve a page, the live page, or its data."""
        if not self._is_allowed():
            return
        route: dict[str, Callable[[], None]] = {"/live": self._live_page, "/api/live": self._live_data}
        route.get(urlsplit(self.path).path, super().do_GET)()

    def do_HEAD(self) -> None:
        """Headers alone."""
        if self._is_allowed():
            super().do_HEAD()

    def end_headers(self) -> None:
        """Add what keeps a browser from doing more than reading."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def list_directory(self, path: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Folders are not listed."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, *words: Any) -> None:
        """Keep quiet: a request may carry the token."""

    def _is_allowed(self) -> bool:
        if not self.server.token:
            return self._is_local_name()
        query = parse_qs(urlsplit(self.path).query)
        if self._fits(query.get("token", [""])[0]):
            self._remember()
            return False
        if self._fits(self._cookie()):
            return True
        self.send_error(HTTPStatus.FORBIDDEN, "Open the address with ?token=... that the server printed.")
        return False

    def _is_local_name(self) -> bool:
        """Without a token only loopback names may be used: a foreign page must not rebind a name of its own to us."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        if host == "localhost" or is_loopback(host):
            return True
        self.send_error(HTTPStatus.FORBIDDEN, "Use the address that the server printed.")
        return False

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _cookie(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return ""
        return found.value if found else ""

    def _remember(self) -> None:
        """Keep the token in a cookie and out of the address bar."""
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Set-Cookie", f"{COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/")
        self.send_header("Location", "/" + urlsplit(self.path).path.lstrip("/\\"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _live_page(self) -> None:
        self._send(page("live.html", "/", live=True).encode(), "text/html; charset=utf-8")

    def _live_data(self) -> None:
        self._send(json.dumps(live(self.server.results), allow_nan=False).encode(), "application/json")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def is_loopback(host: str) -> bool:
    """Whether `host` is an address of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_for(host: str, given: str) -> str:
    """The token a server on `host` needs: none on loopback, the given one or a new one elsewhere."""
    if given:
        return given
    return "" if is_loopback(host) else secrets.token_urlsafe(24)
