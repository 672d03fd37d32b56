"""One `generate` call to a server: many requests at once, in an event loop of its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import httpx

from evalharness.engines.base import Completion, Request
from evalharness.engines.endpoint_pace import wait_before
from evalharness.engines.endpoint_probe import Served, unusable
from evalharness.engines.endpoint_reply import Answer, completion, stopped_inside_reasoning
from evalharness.engines.endpoint_server import Kind, Lost
from evalharness.spec import EndpointEngine

Result = TypeVar("Result")


class Call:
    """Starts at once; `completions` yields what comes back, `end` may be called at any time and must be."""

    def __init__(self, served: Served, options: EndpointEngine, requests: Iterable[Request]) -> None:
        self._served, self._options = served, options
        self._requests = iter(requests)
        self._results: queue.Queue[Completion | BaseException | None] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="endpoint", daemon=True)
        self._thread.start()

    def completions(self) -> Iterator[Completion]:
        """Completions as they come.

        Raises:
            EngineError: the server denies every request.
        """
        while (result := self._results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            yield result

    def end(self) -> None:
        """Cancel what is under way, which closes its connections, and wait for the thread."""
        self._ended = True
        with contextlib.suppress(RuntimeError):  # the loop may have ended by itself
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._work())
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as group:  # of a worker, raised again where the completions are awaited
            self._results.put(group.exceptions[0])
        self._results.put(None)

    async def _work(self) -> None:
        self._task = asyncio.current_task()
        if self._ended:
            return
        room = asyncio.Condition()
        async with self._served.server.client() as client, asyncio.TaskGroup() as group:
            for _ in range(self._options.max_concurrency):
                group.create_task(self._worker(client, room))

    async def _worker(self, client: httpx.AsyncClient, room: asyncio.Condition) -> None:
        for request in self._requests:
            self._results.put(await self._answer(client, room, request))

    async def _answer(self, client: httpx.AsyncClient, room: asyncio.Condition, request: Request) -> Completion:
        """Try until it is answered or never will be; waits are not spent in flight."""
        attempt = 0
        while True:
            try:
                return await self._attempt(client, room, request)
            except Lost as lost:
                if lost.kind is Kind.DENIED:
                    raise unusable(lost, self._served.server, self._options) from lost
                if lost.kind is Kind.REFUSED or attempt >= self._options.max_retries:
                    return Completion(request.id, "", (), "error", 0, 0, 0.0, error=lost.words)
                attempt += 1
                self._served.pace.retries += 1
                await asyncio.sleep(wait_before(attempt, lost.wait_s, self._served.chance))

    async def _attempt(self, client: httpx.AsyncClient, room: asyncio.Condition, request: Request) -> Completion:
        pace = self._served.pace
        async with pace.slot(room) as began_in:
            began = time.perf_counter()
            try:
                answer = await self._thought_out(client, request)
            except Lost as lost:
                if lost.kind is Kind.OVERLOAD:
                    pace.overloaded(began_in)
                raise
            pace.succeeded()
            return completion(request, answer, time.perf_counter() - began)

    async def _thought_out(self, client: httpx.AsyncClient, request: Request) -> Answer:
        """The answer; a model that thinks is given no stop strings, for they would end its thinking. The first
        answer that shows thinking is asked again if a stop string may have ended it."""
        unstopped = replace(request, stop=())
        sent = unstopped if self._served.thinks else request
        answer = await self._served.ask(client, sent)
        self._served.thinks = self._served.thinks or answer.thinking or bool(answer.reasoning)
        return await self._served.ask(client, unstopped) if stopped_inside_reasoning(answer, sent) else answer


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` to its end in a thread, for the caller's own may have an event loop (a notebook's has)."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=serve, name="endpoint-probe", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
