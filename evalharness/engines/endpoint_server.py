"""One OpenAI-compatible server over HTTP; every failure comes back as one of four kinds."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from time import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from evalharness.errors import EngineError
from evalharness.redact import redact, secrets
from evalharness.spec import EndpointEngine

CONNECT_S = 10.0
ASK_S = 30.0
LARGEST_BODY = 64 << 20
QUOTED = 300
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Kind(StrEnum):
    """What a failure calls for."""

    OVERLOAD = "overload"  # fewer requests at once, then again
    TRANSIENT = "transient"  # again
    REFUSED = "refused"  # this request will not be served, however often it is sent
    DENIED = "denied"  # no request will be


KINDS: dict[int, Kind] = {
    401: Kind.DENIED,
    403: Kind.DENIED,
    408: Kind.OVERLOAD,
    409: Kind.TRANSIENT,
    425: Kind.TRANSIENT,
    429: Kind.OVERLOAD,
    500: Kind.TRANSIENT,
    502: Kind.TRANSIENT,
    503: Kind.OVERLOAD,
    504: Kind.OVERLOAD,
    529: Kind.OVERLOAD,
}


class Lost(Exception):
    """A request that got no answer. `wait_s` is what the server asked for, if it did."""

    def __init__(self, kind: Kind, words: str, wait_s: float | None = None, status: int | None = None) -> None:
        super().__init__(words)
        self.kind, self.words, self.wait_s, self.status = kind, words, wait_s, status


@dataclass(frozen=True, slots=True)
class Server:
    """Where an arm is served. `root` is the URL without /v1; `key` is sent as a bearer token and shown nowhere."""

    root: str
    timeout_s: float
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, options: EndpointEngine) -> Server:
        """The server at `url`; raises EngineError when the key's variable is not set."""
        return cls(url.rstrip("/").removesuffix("/v1"), options.timeout_s, _key(options.api_key_env))

    def client(self) -> httpx.AsyncClient:
        """A client to be closed by the caller. A server on this host is never asked through a proxy."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.AsyncClient(
            base_url=self.root,
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_S),  # every exchange has a limit of its own
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=urlsplit(self.root).hostname not in {"127.0.0.1", "localhost", "::1"},
        )

    async def post(
        self, client: httpx.AsyncClient, path: str, body: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """The JSON object that answers `body` within the server's timeout, or `timeout_s`; raises Lost."""
        return await self._exchange(client, "POST", path, timeout_s or self.timeout_s, json=body)

    async def get(self, client: httpx.AsyncClient, path: str, timeout_s: float = ASK_S) -> dict[str, Any]:
        """The JSON object at `path`; raises Lost."""
        return await self._exchange(client, "GET", path, timeout_s)

    async def _exchange(
        self, client: httpx.AsyncClient, method: str, path: str, timeout_s: float, **sent: Any
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s), client.stream(method, path, **sent) as response:
                body = await _body(response)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise Lost(Kind.OVERLOAD, f"no answer within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise Lost(Kind.TRANSIENT, self._words(f"{type(error).__name__}: {error}")) from error
        if response.status_code != httpx.codes.OK:
            kind = KINDS.get(response.status_code, Kind.REFUSED)
            words = self._words(f"HTTP {response.status_code}: {_message(body)}")
            raise Lost(kind, words, _retry_after(response.headers), response.status_code)
        return _object(body)

    def _words(self, text: str) -> str:
        """A server's words in one printable line; some quote the key they were given."""
        hidden = redact(text, (*([self.key] if self.key else []), *secrets()))
        return "".join(c if c.isprintable() else " " for c in hidden)[:QUOTED].strip()


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise EngineError(f"The variable {variable} holds no API key.", f"Set it: export {variable}=...")
    if not (key.isascii() and key.isprintable()):
        raise EngineError(f"The API key in {variable} holds characters no header may.", "Copy the key again.")
    return key


async def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > LARGEST_BODY:
            raise Lost(Kind.REFUSED, f"an answer of more than {LARGEST_BODY >> 20} MiB")
    return bytes(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Lost(Kind.TRANSIENT, "the answer is not JSON") from error
    if not isinstance(found, dict):
        raise Lost(Kind.TRANSIENT, "the answer is not a JSON object")
    return found


def _message(body: bytes) -> str:
    """The message of an error body: OpenAI's form, vLLM's, FastAPI's, or its text."""
    try:
        found = _object(body)
    except Lost:
        return body[: 4 * QUOTED].decode("utf-8", errors="replace")
    error = found.get("error", found)
    said = (error.get("message") or error.get("detail")) if isinstance(error, dict) else error
    return str(said or found)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, which gives a number or a date."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:6])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except (ValueError, TypeError, OverflowError):
        return None
