"""A real OpenAI-compatible HTTP server on 127.0.0.1, answering from a function or misbehaving by script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """What goes back over the wire."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    after_s: float = 0.0
    hang_up: bool = False


Answer = Callable[[Body], Reply | str | Mapping[str, Any]]


@dataclass
class Script:
    """How a server behaves. `answer` gets the body of a request and returns a Reply, a text, or a choice."""

    answer: Answer
    model: str = "canary"
    context: int | None = 2048
    version: str | None = "0.32.0"
    key: str | None = None
    template: str = "{}"
    tells_ids: bool = True
    refuses: str | None = None
    asked: list[Body] = field(default_factory=list)
    flying: int = 0
    most_flying: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prompt(self, body: Body) -> str:
        """The prompt as the model sees it."""
        return self.template.format(body["prompt"] if "prompt" in body else body["messages"][-1]["content"])

    @property
    def questions(self) -> list[Body]:
        """What was asked, without probes."""
        return [body for body in self.asked if body["max_tokens"] > 1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Keep quiet."""

    def do_GET(self) -> None:
        script = self.script
        if self.path == "/v1/models":
            row = {"id": script.model, "object": "model"}
            if script.context:
                row["max_model_len"] = script.context
            self.send(Reply(body={"data": [row]}) if self.allowed() else Reply(401, {"error": "bad key"}))
        elif self.path == "/version" and script.version:
            self.send(Reply(body={"version": script.version}))
        elif self.path == "/health":
            self.send(Reply(body={}))
        else:
            self.send(Reply(404, {"detail": "Not Found"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.allowed():
            self.send(Reply(401, {"error": {"message": f"Incorrect API key: {self.headers.get('authorization')}"}}))
            return
        with self.flying(body):
            self.send(self.replied(body))

    def allowed(self) -> bool:
        return self.script.key is None or self.headers.get("authorization") == f"Bearer {self.script.key}"

    @contextmanager
    def flying(self, body: Body) -> Iterator[None]:
        script = self.script
        with script.lock:
            script.asked.append(body)
            script.flying += 1
            script.most_flying = max(script.most_flying, script.flying)
        try:
            yield
        finally:
            with script.lock:
                script.flying -= 1

    def replied(self, body: Body) -> Reply:
        if self.script.refuses in body:
            return Reply(400, {"error": {"message": f"Unrecognized request argument: {self.script.refuses}"}})
        said = self.script.answer(body) if body["max_tokens"] > 1 else "x"
        if isinstance(said, Reply):
            return said
        chat = self.path == "/v1/chat/completions"
        choice = dict(said) if isinstance(said, Mapping) else {"message": {"content": said}} if chat else {"text": said}
        choice = {"index": 0, "finish_reason": "stop", **choice}
        prompt = self.script.prompt(body).encode()
        found: dict[str, Any] = {"choices": [choice]}
        if "usage" not in choice:
            found["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": 3}
        if self.script.tells_ids and body.get("return_token_ids"):
            found["prompt_token_ids"] = list(prompt)
            choice.setdefault("token_ids", [7, 8, 9])
        return Reply(body=found)

    def send(self, reply: Reply) -> None:
        time.sleep(reply.after_s)
        if reply.hang_up:
            self.close_connection = True
            return
        data = reply.raw if reply.raw is not None else json.dumps(reply.body).encode()
        try:
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(data)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client gave up
            self.close_connection = True


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news."""


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The URL of a server that follows `script`."""
    handler = type("ScriptedHandler", (Handler,), {"script": script})
    with Quiet(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
