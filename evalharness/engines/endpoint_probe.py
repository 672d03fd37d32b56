"""What a server tells of itself before it is trusted with questions: model, context, version, and its template."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from evalharness.engines.base import Request
from evalharness.engines.endpoint_pace import Pace
from evalharness.engines.endpoint_reply import EXTRAS, Answer, body, read
from evalharness.engines.endpoint_server import ASK_S, PATHS, Kind, Lost, Server
from evalharness.errors import EngineError
from evalharness.spec import EndpointEngine

PROBE = Request("probe", "Question: Ann has 3 eggs and buys 4 more. How many eggs has she?\nAnswer:", max_tokens=1)
VERSION_S = 5.0
WITHOUT_EXTRAS = {400, 422}  # what servers answer to a field they do not know


@dataclass(frozen=True, slots=True)
class Identity:
    """What two arms must have in common: the served model, and the prompt that the server makes of PROBE.

    `prompt_hash` covers the token ids of that prompt, template and special tokens included; it is empty where the
    server does not tell them, and `prompt_tokens` is 0 where it does not count them.
    """

    model: str
    prompt_tokens: int
    prompt_hash: str

    def differences(self, other: Identity) -> str:
        """In words, what keeps this arm and `other` from being compared; empty: nothing."""
        found = [] if self.model == other.model else [f"they serve the models {self.model!r} and {other.model!r}"]
        if not self._same_prompt(other):
            counts = f"{self.prompt_tokens} and {other.prompt_tokens} tokens"
            found.append(f"one question becomes two prompts, of {counts} (chat template or tokenizer differ)")
        return "; ".join(found)

    def settings(self) -> dict[str, str]:
        """For an arm's evidence."""
        return {"model": self.model, "prompt": self.prompt_hash[:16] or f"{self.prompt_tokens} tokens"}

    def _same_prompt(self, other: Identity) -> bool:
        if self.prompt_hash and other.prompt_hash:
            return self.prompt_hash == other.prompt_hash
        return not (self.prompt_tokens and other.prompt_tokens) or self.prompt_tokens == other.prompt_tokens


@dataclass(slots=True)
class Served:
    """A server that answered the probe. `extras` are the fields beyond OpenAI's that it takes; `thinks` turns true
    at the first answer that holds reasoning."""

    server: Server
    identity: Identity
    version: str
    context: int | None
    api: str
    extras: Mapping[str, Any]
    thinks: bool
    pace: Pace
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    async def ask(self, client: httpx.AsyncClient, request: Request) -> Answer:
        """The server's answer to `request`; raises Lost."""
        sent = body(request, self.identity.model, self.api, self.extras)
        return read(await self.server.post(client, PATHS[self.api], sent), request.prompt)


async def probe(server: Server, options: EndpointEngine) -> Served:
    """Everything the server tells, and one token of it.

    Raises:
        EngineError: it cannot be reached, denies the key, or does not serve the model that the spec names.
    """
    async with server.client() as client:
        try:
            model, context = await _model(client, server, options)
            answer, extras = await _first_token(client, server, model, options.api)
        except Lost as lost:
            raise unusable(lost, server, options) from lost
        version = await _version(client, server)
    ids = ",".join(map(str, answer.prompt_ids))
    hashed = hashlib.sha256(ids.encode()).hexdigest() if ids else ""
    return Served(
        server=server,
        identity=Identity(model, answer.prompt_tokens, hashed),
        version=version,
        context=context,
        api=options.api,
        extras=extras,
        thinks=options.thinking or bool(answer.reasoning),
        pace=Pace(options.max_concurrency),
    )


async def served_model(server: Server, options: EndpointEngine) -> str:
    """Name of the model that the server serves; raises EngineError as `probe` does."""
    async with server.client() as client:
        try:
            return (await _model(client, server, options))[0]
        except Lost as lost:
            raise unusable(lost, server, options) from lost


def unusable(lost: Lost, server: Server, options: EndpointEngine) -> EngineError:
    """What to tell of a server that answers nothing."""
    if lost.kind is not Kind.DENIED:
        said = f"The server {server.root} does not answer: {lost.words}."
        return EngineError(said, "Check the URL, and that the server is up.")
    key = f"the key in {options.api_key_env}" if options.api_key_env else "a request without a key"
    remedy = "Name the variable that holds the right key: engine.api_key_env."
    return EngineError(f"The server {server.root} does not accept {key}: {lost.words}.", remedy)


async def _model(client: httpx.AsyncClient, server: Server, options: EndpointEngine) -> tuple[str, int | None]:
    """The served model's name and context; the only one, or the one that the spec names."""
    models = _listed(await server.get(client, "/v1/models"))
    name = options.model or (next(iter(models)) if len(models) == 1 else "")
    if name not in models:
        served = ", ".join(map(repr, sorted(models)[:8])) or "no model"
        wanted = f", not {name!r}" if name else ""
        raise EngineError(
            f"The server {server.root} serves {served}{wanted}.", "Set engine.model to a name that every arm serves."
        )
    return name, models[name]


def _listed(found: Mapping[str, Any]) -> dict[str, int | None]:
    """Model name -> context length, where it is told, of an answer to /v1/models."""
    models = found.get("data")
    rows = [row for row in models if isinstance(row, dict)] if isinstance(models, list) else []
    named = {row["id"]: row.get("max_model_len") for row in rows if isinstance(row.get("id"), str)}
    return {name: length if type(length) is int and length > 0 else None for name, length in named.items()}


async def _first_token(
    client: httpx.AsyncClient, server: Server, model: str, api: str
) -> tuple[Answer, Mapping[str, Any]]:
    """An answer to PROBE, and the extras that the server takes. A first request may be slower than any later one."""

    async def ask(extras: Mapping[str, Any]) -> Answer:
        limit = max(server.timeout_s, ASK_S)
        return read(await server.post(client, PATHS[api], body(PROBE, model, api, extras), limit), PROBE.prompt)

    try:
        return await ask(EXTRAS), EXTRAS
    except Lost as lost:
        if lost.status not in WITHOUT_EXTRAS:
            raise
    return await ask({}), {}


async def _version(client: httpx.AsyncClient, server: Server) -> str:
    """The version that vLLM tells; other servers may not."""
    try:
        return str((await server.get(client, "/version", VERSION_S)).get("version", "unknown"))[:60]
    except Lost:
        return "unknown"
