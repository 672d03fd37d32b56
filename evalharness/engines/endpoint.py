"""The endpoint engine: each arm is a running OpenAI-compatible server; nothing is started or stopped here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from evalharness.engines import endpoint_probe
from evalharness.engines.base import Completion, Request
from evalharness.engines.endpoint_call import Call, run
from evalharness.engines.endpoint_probe import Identity, Served, probe
from evalharness.engines.endpoint_server import Server
from evalharness.errors import EngineError, EvidenceError, PairingError, SpecError
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, EndpointEngine, RunSpec

ON_TRUST = "The capture path of a running server cannot be seen from outside; the arm's name is the user's word."


class Endpoint:
    """The Engine of kind `endpoint`; see evalharness.engines.base.Engine for the protocol."""

    def __init__(self) -> None:
        self._spec: RunSpec | None = None
        self._reference: Identity | None = None
        self._arm: tuple[ArmSpec, Served] | None = None

    def open(self, spec: RunSpec) -> None:
        """Ask every arm's server for a token, and refuse arms that cannot be compared. A server that does not answer
        is left to `use`.

        Raises:
            EngineError: the spec is of another engine, or the API key's variable is not set.
            PairingError: two servers serve another model, or make another prompt of the same question.
            SpecError: an arm without a URL.
        """
        self.close()
        options = _options(spec)
        servers = [_server(arm, options) for arm in spec.arms]
        found = run(_probed(servers, options))
        reached = [(arm, served) for arm, served in zip(spec.arms, found, strict=True) if served is not None]
        for arm, served in reached[1:]:
            first, reference = reached[0]
            differences = reference.identity.differences(served.identity)
            if differences:
                raise PairingError(
                    f"Arms {first.name} and {arm.name} cannot be compared: {differences}.",
                    "Serve one model with one chat template under every arm.",
                )
        self._spec = spec
        self._reference = reached[0][1].identity if reached else None

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """Ask the arm's server once more and take it into use.

        Raises:
            EngineError: the server cannot be asked.
            EvidenceError: it is not served as the other arms are.
            SpecError: a task wants more new tokens than the server's context holds.
        """
        spec = self._opened()
        options = _options(spec)
        served = run(probe(_server(arm, options), options))
        reference = self._reference or served.identity
        differences = reference.differences(served.identity)
        if differences:
            raise EvidenceError(
                f"Arm {arm.name} is not served as the other arms: {differences}.",
                "Serve one model with one chat template under every arm.",
            )
        _refuse_short_context(spec, served.context)
        self._reference, self._arm = reference, (arm, served)
        return self.evidence()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Answer `requests`, as many at once as the server bears. A lost one gets an `error` completion; a caller
        that stops early ends what is under way.

        Raises:
            EngineError: the server denies every request.
        """
        call = Call(self._in_use()[1], _options(self._opened()), requests)
        try:
            yield from call.completions()
        finally:
            call.end()

    def evidence(self) -> ArmEvidence:
        """What can be seen of the arm's server from outside, with the retries so far. Raises EngineError."""
        arm, served = self._in_use()
        reference = self._reference or served.identity
        context = {"max_model_len": str(served.context)} if served.context else {}
        costs = {"retries": served.pace.retries, "overloads": served.pace.overloads, "concurrency": served.pace.limit}
        return ArmEvidence(
            arm=arm.name,
            engine="endpoint",
            engine_version=served.version,
            requested=reference.settings(),
            observed={**served.identity.settings(), **context},
            costs={name: float(value) for name, value in costs.items()},
            notes=(ON_TRUST,),
        )

    def close(self) -> None:
        """Forget the servers; they run on."""
        self._spec = self._reference = self._arm = None

    def _opened(self) -> RunSpec:
        if self._spec is None:
            raise EngineError("The endpoint engine is not open.", "Call open(spec) first.")
        return self._spec

    def _in_use(self) -> tuple[ArmSpec, Served]:
        if self._arm is None:
            raise EngineError("No arm is in use.", "Call use(arm) first.")
        return self._arm


def create() -> Endpoint:
    """A new, unopened engine."""
    return Endpoint()


def served_model(spec: RunSpec) -> str:
    """Name of the model that the first of the spec's servers serves; raises EngineError when it cannot be asked."""
    options = _options(spec)
    return run(endpoint_probe.served_model(_server(spec.arms[0], options), options))


async def _probed(servers: Sequence[Server], options: EndpointEngine) -> list[Served | None]:
    """Every server that answers, all asked at once; None for one that does not."""
    found = await asyncio.gather(*(probe(server, options) for server in servers), return_exceptions=True)
    for result in found:
        if isinstance(result, BaseException) and not isinstance(result, EngineError):
            raise result
    return [result if isinstance(result, Served) else None for result in found]


def _options(spec: RunSpec) -> EndpointEngine:
    if not isinstance(spec.engine, EndpointEngine):
        raise EngineError(f"The spec asks for the engine {spec.engine.kind}.", "Open that engine instead.")
    return spec.engine


def _server(arm: ArmSpec, options: EndpointEngine) -> Server:
    if arm.url is None:
        raise SpecError(f"Arm {arm.name} has no URL.", f"Name its server: --arm {arm.name}=http://host:8000.")
    return Server.of(arm.url, options)


def _refuse_short_context(spec: RunSpec, context: int | None) -> None:
    for task in spec.tasks:
        if context and task.max_tokens and task.max_tokens >= context:
            raise SpecError(
                f"Task {task.name} asks for {task.max_tokens} new tokens of a server whose context is {context}.",
                f"Set tasks.{task.name}.max_tokens below {context} less the prompt, or serve a longer --max-model-len.",
            )
