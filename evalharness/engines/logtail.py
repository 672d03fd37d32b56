"""What a child process prints: kept in a log file, watched for lines that mean the end, quoted when it fails."""

from __future__ import annotations

import re
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from evalharness.redact import redact, secrets

KEPT_LINES = 400
MARK = "\0evalharness log "  # what follows in the stream goes to the file that was announced under the number here
RESTART = "Run again with --resume; finished samples are kept."
KILLED = "If nobody killed it, the kernel did for want of host memory (dmesg says so)."
LOST = "evalharness: the engine lost its process"  # printed by the child itself, which sees that one has ended
MEMORY = "Lower engine.gpu_memory_utilization, engine.max_num_seqs or engine.max_model_len, or free the GPU."
# What a line says -> what to do about it. A child that prints one of these will not answer again.
FATAL: dict[str, str] = {
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory": MEMORY,
    r"illegal memory access|misaligned address|unspecified launch failure": RESTART,
    r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError": (
        "Check that the GPUs of engine.tensor_parallel_size see each other (nvidia-smi topo -m), then run again."
    ),
    r"CUDA error:": RESTART,
    rf"{LOST}.* killed by SIGKILL": f"{RESTART} {KILLED}",
    rf"{LOST}|EngineDeadError|EngineCore encountered a fatal error|WorkerProc hit an exception": RESTART,
}
# Failures that Python reports by itself and for which better advice exists than "see the log".
ADVICE: dict[str, str] = FATAL | {
    r"No available memory for the cache blocks|less than desired GPU memory utilization|larger than the available KV": (
        MEMORY
    ),
    r"is not a local folder|RepositoryNotFound|LocalEntryNotFound|OfflineModeIsEnabled|does not appear to have": (
        "Check engine.model and engine.revision, and that the weights are on this host or may be downloaded."
    ),
    r"not supported on this device|no kernel image": (
        "Choose engine.attention_backend for this GPU; FlashMLA needs Hopper or Blackwell."
    ),
    r"Selected backend .* is not valid": (
        "Choose engine.attention_backend for this model and GPU (FLASHMLA: latent attention, Hopper or Blackwell, with"
        " engine.block_size=64)."
    ),
}
# Kernels that the autotuner tries and leaves; nothing has failed.
HARMLESS = re.compile(r"out of resource|Ignoring this choice")
ERROR_LINE = re.compile(r"(?:^|\s|\])(?:[A-Za-z_.]*(?:Error|Exception|Interrupt)\b:? ?.*)")


class LogTail:
    """Drains a stream in a thread of its own, so that a child never waits for its reader.

    `fatal` is the first line that FATAL knows. Further lines go to another file from the line on at which the
    program says so (MARK), so that none goes astray on its way here. Lines that come before the first `switch` wait
    for it, the last KEPT_LINES of them. A file that cannot be written ends; the draining does not.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.fatal: str | None = None
        self.path: Path | None = None
        self._secrets = secrets()  # some programs print their environment
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._file: IO[str] | None = None
        self._announced: list[Path] = []
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, args=(stream,), name="engine-log", daemon=True)
        self._thread.start()

    def announce(self, path: Path) -> int:
        """The number for the program to write after MARK where the lines of `path` begin."""
        self._settled.clear()
        self._announced.append(path)
        return len(self._announced) - 1

    def settle(self, timeout: float) -> None:
        """Wait until the lines of the file announced last have begun; `path` then names it."""
        if self._announced:
            self._settled.wait(timeout)

    def switch(self, path: Path) -> None:
        """Append to `path` what is read from here on."""
        with self._lock:
            waiting = [] if self._file else [f"{line}\n" for line in self._lines]
            self._end_file()
            self.path = path
            try:
                self._file = path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                self._give_up(error)
            self._write("".join(waiting))

    def cause(self) -> str:
        """The line that best says why the child failed: a fatal one, else the last error, else the last line."""
        lines = [line for line in self._lines if line.strip()]
        errors = [line for line in lines if ERROR_LINE.search(line)]
        if self.fatal or errors:
            return _shown(self.fatal or errors[-1])
        return f"it last printed {_shown(lines[-1])!r}" if lines else "it printed nothing"

    def join(self, timeout: float) -> None:
        """Wait until the stream has ended and every line of it is written."""
        self._thread.join(timeout)

    def close(self) -> None:
        """Wait for the end of the stream and close the file."""
        self.join(timeout=5)
        with self._lock:
            self._end_file()

    def _drain(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in iter(stream.readline, b""):
                text, mark, number = raw.decode("utf-8", errors="replace").partition(MARK)
                if text:
                    self._take(redact(text, self._secrets))
                if mark:
                    self._begin(int(number))

    def _begin(self, number: int) -> None:
        self.switch(self._announced[number])
        if number == len(self._announced) - 1:
            self._settled.set()

    def _take(self, line: str) -> None:
        if self.fatal is None and not HARMLESS.search(line) and any(re.search(pattern, line) for pattern in FATAL):
            self.fatal = line.rstrip("\n")
        with self._lock:
            self._lines.append(line.rstrip("\n"))
            self._write(line if line.endswith("\n") else f"{line}\n")

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._end_file()
        self._lines.append(f"evalharness: {self.path} could not be written: {error.strerror}")

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what it still holds finds no room either
                file.close()


def _shown(line: str) -> str:
    """A line as a terminal shows it in the end: a progress bar writes over itself."""
    return line.strip().rpartition("\r")[2].strip()[:400]


def advice(text: str, otherwise: str) -> str:
    """What to do about a failure that says `text`."""
    return next((remedy for pattern, remedy in ADVICE.items() if re.search(pattern, text)), otherwise)
