"""The child's side of a supervised engine: serves one engine over a pair of pipes.

    python -m evalharness.engines.process_child MODULE:FACTORY READ_FD WRITE_FD

Each line is a word and its JSON. In: open, log, use, request..., generate, abort, evidence, close. Out:
evidence, completion..., alive..., done, error. Standard output and error are left to the engine and its libraries;
`log` writes one line there, at which what follows begins.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import IO, Any

from evalharness.engines.base import Engine, Request, Ticks
from evalharness.engines.group import ended_how
from evalharness.engines.logtail import LOST, MARK
from evalharness.engines.wire import Following, failure, line, record
from evalharness.errors import EvalHarnessError
from evalharness.spec import ArmSpec, RunSpec

STDOUT = 1
REAP_S, REAP_POLL_S = 1.0, 0.02
ALIVE_S = 1.0  # how often a working engine says so


class _Aborted(Exception):
    """Ends `generate` between two completions."""


class Child:
    """Answers the parent's commands one after another; a reader thread sees `abort` while one is served."""

    def __init__(self, engine: Engine, commands: IO[str], replies: IO[str]) -> None:
        self._engine, self._replies = engine, replies
        self._commands: queue.Queue[tuple[str, str]] = queue.Queue()
        self._aborted = threading.Event()
        self._requests: list[Request] = []
        self._said = time.monotonic()
        self._closing = False
        if isinstance(engine, Ticks):
            engine.tick = self._tick
        threading.Thread(target=self._read, args=(commands,), name="commands", daemon=True).start()

    def serve(self) -> None:
        """Serve until `close`."""
        for word, body in iter(self._commands.get, ("close", "")):
            try:
                getattr(self, f"_{word}")(body)
            except EvalHarnessError as error:
                self._say("error", failure(error))
            except Exception as error:  # noqa: BLE001 - the border to foreign code: everything is reported
                traceback.print_exc()
                self._say("error", failure(error))
        self._closing = True
        self._engine.close()

    def _watch(self) -> None:
        """Say so when a process that the engine started ends before its time: vLLM may wait for it for ever."""
        started = multiprocessing.active_children()
        if not started:
            return
        ended = wait([process.sentinel for process in started])
        lost = next(process for process in started if process.sentinel in ended)
        if not self._closing:
            os.write(STDOUT, f"{LOST} {lost.name} (pid {lost.pid}), {_ending(lost)}\n".encode())

    def _read(self, commands: IO[str]) -> None:
        for text in commands:
            word, _, body = text.rstrip("\n").partition(" ")
            if word == "abort":
                self._aborted.set()
            else:
                self._commands.put((word, body))
        # The parent is gone, however it ended: take everything this process started along.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def _tick(self) -> None:
        if self._aborted.is_set():
            raise _Aborted
        if time.monotonic() - self._said > ALIVE_S:
            self._say("alive", None)

    def _say(self, word: str, value: object) -> None:
        self._said = time.monotonic()
        self._replies.write(line(word, value))
        self._replies.flush()

    def _open(self, body: str) -> None:
        self._engine.open(record(RunSpec, body))
        threading.Thread(target=self._watch, name="processes", daemon=True).start()
        self._say("done", None)

    def _log(self, body: str) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(STDOUT, f"{MARK}{body}\n".encode())

    def _use(self, body: str) -> None:
        self._say("evidence", self._engine.use(record(ArmSpec, body)))

    def _evidence(self, _: str) -> None:
        self._say("evidence", self._engine.evidence())

    def _request(self, body: str) -> None:
        self._requests.append(record(Request, body))

    def _generate(self, body: str) -> None:
        requests, self._requests = self._requests, []
        self._aborted.clear()
        completions: Iterator[Any] = iter(self._engine.generate(requests))
        try:
            for completion in completions:
                self._say("completion", completion)
                if self._aborted.is_set():
                    break
        except _Aborted:
            pass
        closing = getattr(completions, "close", None)
        if closing is not None:  # a generator cleans up after an abort at once, not when it is collected
            closing()
        self._say("done", None)
        if body:
            following = record(Following, body)
            self._evidence("")
            self._log(str(following.log))
            self._say("evidence", self._engine.use(following.arm))


def _ending(process: BaseProcess) -> str:
    """How `process` ended. The engine waits for it too, and whoever comes second is told a little later."""
    deadline = time.monotonic() + REAP_S
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(REAP_POLL_S)
    return "ended" if process.exitcode is None else ended_how(process.exitcode)


def main(arguments: list[str]) -> None:
    """Entry point; `arguments` are MODULE:FACTORY, READ_FD, WRITE_FD."""
    faulthandler.register(signal.SIGUSR1)  # the parent asks a stuck engine where it is
    target, read_fd, write_fd = arguments
    module, _, factory = target.partition(":")
    commands, replies = os.fdopen(int(read_fd)), os.fdopen(int(write_fd), "w")
    status = 1
    try:
        Child(getattr(import_module(module), factory)(), commands, replies).serve()
        status = 0
    except Exception:  # noqa: BLE001 - printed, so that the parent can quote it
        traceback.print_exc()
    # Not an ordinary exit: that would wait for the reader thread, which waits for the parent.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
