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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from evalharness.engines.base import Completion, Request
from evalharness.engines.group import end_group, ended_how
from evalharness.engines.logtail import KILLED, RESTART, LogTail, advice
from evalharness.engines.wire import Following, line, record, revived
from evalharness.errors import EngineError, EvalHarnessError
from evalharness.records import ArmEvidence
from evalharness.spec import ArmSpec, RunSpec

POLL_S = 0.2
FATAL_GRACE_S = 3.0  # for a child that reports its own failure in order
STOP_S = 20.0
STALL_S = 900.0
ABORT_S = 120.0
STACK_S = 1.0  # for a stuck child to print where it is
SETTLE_S = 1.0
SLOW = "Raise engine.start_timeout_s if it only needs longer."
STUCK = (
    "Where it hangs stands at the end of the log. Run again with --resume; finished samples are kept. Raise"
    " engine.stall_timeout_s if one step needs longer; with several GPUs look at NCCL (NCCL_DEBUG=INFO)."
)
ANSWERED = {"open": 1, "use": 1, "generate": 1, "evidence": 1}  # commands that end with a reply
FOLLOWED = 2  # replies more when an arm follows: evidence of the one, and of the next
EVIDENCE = ("evidence", None)
GOES_ON = {"completion", "alive"}  # replies that are not their command's last
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
        self._start_timeout_s, self._stall_timeout_s = start_timeout_s, STALL_S
        self._log_path: Callable[[str], Path] | None = None
        self._process: ChildProcess | None = None
        self._loading = False
        self._following: ArmSpec | None = None
        self._ahead: deque[tuple[str, object]] = deque()  # questions whose replies come without being asked

    def log_to(self, path_of: Callable[[str], Path]) -> None:
        """Write the child's output to `path_of(arm)`, and to `path_of("engine")` while it loads."""
        self._log_path = path_of

    def begin(self, spec: RunSpec) -> None:
        """Start the child and have it load; what it prints is kept until `open` knows its log."""
        self.close()
        variables = self._environment(spec)
        self._process, self._loading = ChildProcess(self._target, variables), True
        self._process.send("open", spec)

    def open(self, spec: RunSpec) -> None:
        """Start the child, unless it was begun, and load the model; a failed start leaves nothing behind."""
        if not self._loading:
            self.begin(spec)
        self._loading = False
        self._start_timeout_s = float(getattr(spec.engine, "start_timeout_s", self._start_timeout_s))
        self._stall_timeout_s = float(getattr(spec.engine, "stall_timeout_s", self._stall_timeout_s))
        try:
            process = self._running()
            process.log.switch(self._log("engine"))
            process.receive(self._start_timeout_s)
        except BaseException:
            self.close()
            raise

    def use(self, arm: ArmSpec) -> ArmEvidence:
        """Bring `arm` up in the child; its output goes to the arm's log from here on."""
        if ("use", arm) not in self._ahead:
            self._running().send("log", self._announced(arm))
        return record(ArmEvidence, self._ask("use", arm))

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Yield completions as the child sends them; what was yielded before a failure stays valid.

        A caller that stops early stops the child's work too. An engine that says nothing for `stall_timeout_s`
        is given up; one that ticks says once a second that it works.
        """
        process = self._running()
        self._refuse_if_ahead()
        for request in requests:
            process.send("request", request)
        process.send("generate", self._next())
        ended = False
        try:
            while True:
                word, body = process.receive(self._stall_timeout_s, STUCK)
                ended = word == "done"
                if ended:
                    return
                if word == "completion":
                    yield record(Completion, body)
        except EvalHarnessError:
            ended = True
            self._ahead.clear()  # nothing follows what failed
            raise
        except KeyboardInterrupt:
            ended = True  # whoever interrupts ends the child, which may hang
            raise
        finally:
            if not ended:
                self._abort(process)

    def follow(self, arm: ArmSpec) -> None:
        """Have the child bring `arm` up after the next `generate`, whether its answers have been read here or not."""
        self._following = arm

    def evidence(self) -> ArmEvidence:
        """Ask the child for the arm's evidence."""
        if EVIDENCE not in self._ahead:
            self._refuse_if_ahead()
        return record(ArmEvidence, self._ask("evidence", None))

    def close(self) -> None:
        """End the child and everything it started, then wait for what they held."""
        process, self._process = self._process, None
        self._loading, self._following = False, None
        self._ahead.clear()
        if process is not None:
            process.stop()
            self._after_stop()

    def _running(self) -> ChildProcess:
        if self._process is None:
            raise EngineError("The engine is not open.", "Call open() first; after a failure, open it again.")
        return self._process

    def _ask(self, word: str, value: object) -> str:
        process = self._running()
        while self._ahead:
            asked = self._ahead.popleft()
            reply = self._told(process)
            if asked == (word, value):
                return reply
        process.send(word, value)
        return self._told(process)

    def _told(self, process: ChildProcess) -> str:
        try:
            return process.receive(self._start_timeout_s)[1]
        except EvalHarnessError:
            self._ahead.clear()  # nothing follows what failed
            raise

    def _announced(self, arm: ArmSpec) -> int:
        """The number by which the child switches to the arm's log."""
        return self._running().log.announce(self._log(arm.name))

    def _next(self) -> Following | None:
        """What the child does by itself once all is answered."""
        arm, self._following = self._following, None
        if arm is None:
            return None
        self._ahead.extend([EVIDENCE, ("use", arm)])
        return Following(arm, self._announced(arm))

    def _refuse_if_ahead(self) -> None:
        if self._ahead:
            raise EngineError("The next arm is coming up already.", "Ask for the evidence once, then use() that arm.")

    def _abort(self, process: ChildProcess) -> None:
        process.send("abort")
        deadline = time.monotonic() + ABORT_S
        while process.receive(deadline - time.monotonic(), STUCK)[0] != "done":
            continue

    def _log(self, name: str) -> Path:
        if self._log_path is None:
            folder = Path(tempfile.mkdtemp(prefix="evalharness-logs-"))
            self._log_path = lambda arm: folder / f"{arm}.log"
        return self._log_path(name)


class ChildProcess:
    """A child in a process group of its own, two pipes to talk over and one for all that it prints."""

    def __init__(self, target: str, variables: Mapping[str, str]) -> None:
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
        self._owed = 0  # replies still to come
        self._replies: queue.Queue[tuple[str, str] | None] = queue.Queue()
        replies = os.fdopen(replies_out, encoding="utf-8")
        self._reader = threading.Thread(target=self._read, args=(replies,), name="engine-replies", daemon=True)
        self._reader.start()
        assert self._child.stdout is not None  # noqa: S101 - PIPE was asked for
        self.log = LogTail(self._child.stdout)

    def send(self, word: str, value: object = None) -> None:
        """Send one line; raises EngineError when the child is gone."""
        self._owed += ANSWERED.get(word, 0) + (FOLLOWED if isinstance(value, Following) else 0)
        try:
            self._commands.write(line(word, value))
            self._commands.flush()
        except (OSError, ValueError) as error:
            raise self._gone() from error

    def receive(self, timeout: float, too_long: str = SLOW) -> tuple[str, str]:
        """The next reply: its word and its JSON. `too_long` is the remedy when there is none in time.

        Raises:
            EngineError: the child ended, printed a fatal line, or did not answer within `timeout` seconds.
            EvalHarnessError: what the child reported.
        """
        deadline = time.monotonic() + timeout
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
                if time.monotonic() > deadline:
                    raise self._silent(timeout, too_long) from None
                continue
            if reply is None:
                raise self._gone()
            self._owed = 0 if reply[0] == "error" else self._owed - (reply[0] not in GOES_ON)
            if reply[0] == "error":
                self.log.settle(SETTLE_S)
                raise revived(reply[1], self.log.path)
            return reply

    def stop(self) -> None:
        """Ask, then terminate, then kill; returns when the process group is empty and its output is written.

        A child in the middle of loading or capturing would not hear the question.
        """
        if not self._owed:
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
        how, killed = self._ending()
        self._kill()
        if self.log.fatal:
            how = "was stopped after a fatal line"
        cause = self.log.cause()
        remedy = advice(cause, f"{RESTART} {KILLED}" if killed else RESTART)
        return EngineError(f"The engine process {how}: {cause} (log: {self.log.path}).", remedy)

    def _ending(self) -> tuple[str, bool]:
        """How the child ended by itself, and whether by SIGKILL."""
        try:
            code = self._child.wait(0 if self.log.fatal else FATAL_GRACE_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe", False
        return f"ended ({ended_how(code)})", code == -signal.SIGKILL

    def _silent(self, timeout: float, remedy: str) -> EngineError:
        cause = self.log.cause()
        self._child.send_signal(signal.SIGUSR1)  # its stacks, into the log
        time.sleep(STACK_S)
        self._kill()
        said = f"The engine did not answer within {timeout:.0f} s: {cause} (log: {self.log.path})."
        return EngineError(said, remedy)

    def _kill(self) -> None:
        end_group(self._child, signal.SIGKILL, STOP_S)
        self._child.wait()
        self.log.join(timeout=2)
