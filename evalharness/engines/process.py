"""Runs an engine in a child process of its own: the parent never loads what the engine loads."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from evalharness.engines.base import Completion, Request
from evalharness.engines.group import end_group, ended_how
from evalharness.engines.logtail import RESTART, LogTail, advice
from evalharness.engines.wire import line, record, revived
from evalharness.errors import EngineError
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec

POLL_S = 0.2
FATAL_GRACE_S = 3.0  # for a child that reports its own failure in order
STOP_S = 20.0
ABORT_S = 120.0
Environment = Callable[[RunSpec], Mapping[str, str]]


class SupervisedEngine:
    """An Engine that lives in a child process.

    `target` (`module:factory`) makes the real engine there. `environment` runs before the child starts: it
    may refuse the spec, and returns variables for the child alone. `after_stop` runs when the child and all
    its processes are gone; it waits for what they held.
    """

    def __init__(
        self,
        target: str,
        environment: Environment = lambda _: {},
        after_stop: Callable[[], None] = lambda: None,
        start_timeout_s: float = 1800.0,
    ) -> None:
        self._target, self._environment, self._after_stop = target, environment, after_stop
        self._start_timeout_s = start_timeout_s
        self._log_path: Callable[[str], Path] | None = None
        self._process: ChildProcess | None = None

    def log_to(self, path_of: Callable[[str], Path]) -> None:
        """Write the child's output to `path_of(arm)`, and to `path_of("engine")` while it loads."""
        self._log_path = path_of

    def open(self, spec: RunSpec) -> None:
        """Start the child and load the model; a failed start leaves nothing behind."""
        self.close()
        variables = self._environment(spec)
        self._process = ChildProcess(self._target, variables, self._log("engine"))
        timeout = float(getattr(spec.engine, "start_timeout_s", self._start_timeout_s))
        try:
            self._ask("open", spec, timeout)
        except BaseException:
            self.close()
            raise

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """Bring `arm` up in the child; its output goes to the arm's log from here on."""
        self._running().log.switch(self._log(arm.name))
        return record(ArmEvidence, self._ask("use", arm, self._start_timeout_s))

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Yield completions as the child sends them; what was yielded before a failure stays valid.

        A caller that stops early stops the child's work too.
        """
        process = self._running()
        for request in requests:
            process.send("request", request)
        process.send("generate")
        ended = False
        try:
            while True:
                word, body = process.receive(None)
                ended = word != "completion"
                if ended:
                    return
                yield record(Completion, body)
        except EngineError:
            ended = True
            raise
        finally:
            if not ended:
                self._abort(process)

    def evidence(self) -> ArmEvidence:
        """Ask the child for the arm's evidence."""
        return record(ArmEvidence, self._ask("evidence", None, self._start_timeout_s))

    def close(self) -> None:
        """End the child and everything it started, then wait for what they held."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()
            self._after_stop()

    def _running(self) -> ChildProcess:
        if self._process is None:
            raise EngineError("The engine is not open.", "Call open() first; after a failure, open it again.")
        return self._process

    def _ask(self, word: str, value: object, timeout: float) -> str:
        process = self._running()
        process.send(word, value)
        return process.receive(timeout)[1]

    def _abort(self, process: ChildProcess) -> None:
        process.send("abort")
        deadline = time.monotonic() + ABORT_S
        while process.receive(deadline - time.monotonic())[0] == "completion":
            continue

    def _log(self, name: str) -> Path:
        if self._log_path is None:
            folder = Path(tempfile.mkdtemp(prefix="evalharness-logs-"))
            self._log_path = lambda arm: folder / f"{arm}.log"
        return self._log_path(name)


class ChildProcess:
    """A child in a process group of its own, two pipes to talk over and one for all that it prints."""

    def __init__(self, target: str, variables: Mapping[str, str], log: Path) -> None:
        commands_out, commands_in = os.pipe()
        replies_out, replies_in = os.pipe()
        command = [sys.executable, "-u", "-m", "evalharness.engines.process_child", target]
        self._child = subprocess.Popen(  # noqa: S603 - this interpreter, this package
            [*command, str(commands_out), str(replies_in)],
            pass_fds=(commands_out, replies_in),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        os.close(commands_out)
        os.close(replies_in)
        self._commands = os.fdopen(commands_in, "w", encoding="utf-8")
        self._replies: queue.Queue[tuple[str, str] | None] = queue.Queue()
        replies = os.fdopen(replies_out, encoding="utf-8")
        self._reader = threading.Thread(target=self._read, args=(replies,), name="engine-replies", daemon=True)
        self._reader.start()
        assert self._child.stdout is not None  # noqa: S101 - PIPE was asked for
        self.log = LogTail(self._child.stdout)
        self.log.switch(log)

    def send(self, word: str, value: object = None) -> None:
        """Send one line; raises EngineError when the child is gone."""
        try:
            self._commands.write(line(word, value))
            self._commands.flush()
        except (OSError, ValueError) as error:
            raise self._gone() from error

    def receive(self, timeout: float | None) -> tuple[str, str]:
        """The next reply: its word and its JSON.

        Raises:
            EngineError: the child ended, printed a fatal line, or did not answer within `timeout` seconds.
            EvalHarnessError: what the child reported.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        doomed_since: float | None = None
        while True:
            try:
                reply = self._replies.get(timeout=POLL_S)
            except queue.Empty:
                # A forked worker may hold the pipe open after the child itself has gone.
                if self.log.fatal is not None or self._child.poll() is not None:
                    doomed_since = doomed_since or time.monotonic()
                    if time.monotonic() - doomed_since > FATAL_GRACE_S:
                        raise self._gone() from None
                if deadline is not None and time.monotonic() > deadline:
                    raise self._silent(timeout or 0.0) from None
                continue
            if reply is None:
                raise self._gone()
            if reply[0] == "error":
                raise revived(reply[1], self.log.path)
            return reply

    def stop(self) -> None:
        """Ask, then terminate, then kill; returns when the process group is empty and its output is written."""
        try:
            self.send("close")
            self._child.wait(STOP_S)
        except (EngineError, subprocess.TimeoutExpired):
            pass
        for number, patience in ((signal.SIGTERM, STOP_S / 2), (signal.SIGKILL, STOP_S)):
            if end_group(self._child, number, patience):
                break
        self._child.wait()
        self._reader.join(5)
        self.log.close()
        self._commands_close()

    def _commands_close(self) -> None:
        try:
            self._commands.close()
        except OSError:  # the child went with a command half read
            return

    def _read(self, replies: IO[str]) -> None:
        with replies:
            for text in replies:
                word, _, body = text.rstrip("\n").partition(" ")
                self._replies.put((word, body))
        self._replies.put(None)

    def _gone(self) -> EngineError:
        self._kill()
        cause = self.log.cause()
        how = "was stopped after a fatal line" if self.log.fatal else f"ended ({ended_how(self._child.returncode)})"
        return EngineError(f"The engine process {how}: {cause} (log: {self.log.path}).", advice(cause, RESTART))

    def _silent(self, timeout: float) -> EngineError:
        self._kill()
        return EngineError(
            f"The engine did not answer within {timeout:.0f} s: {self.log.cause()} (log: {self.log.path}).",
            "Raise engine.start_timeout_s if it only needs longer.",
        )

    def _kill(self) -> None:
        end_group(self._child, signal.SIGKILL, STOP_S)
        self._child.wait()
        self.log.join(timeout=2)
