"""What a child process prints: kept in a log file, watched for lines that mean the end, quoted when it fails."""

from __future__ import annotations

import re
import threading
from collections import deque
from pathlib import Path
from typing import IO

from evalharness.redact import redact, secrets

KEPT_LINES = 400
RESTART = "Run again with --resume; finished samples are kept."
MEMORY = "Lower engine.gpu_memory_utilization, engine.max_num_seqs or engine.max_model_len, or free the GPU."
# What a line says -> what to do about it. A child that prints one of these will not answer again.
FATAL: dict[str, str] = {
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory": MEMORY,
    r"illegal memory access|misaligned address|unspecified launch failure": RESTART,
    r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError": (
        "Check that the GPUs of engine.tensor_parallel_size see each other (nvidia-smi topo -m), then run again."
    ),
    r"CUDA error:": RESTART,
    r"EngineDeadError|EngineCore encountered a fatal error|WorkerProc hit an exception": RESTART,
}
# Failures that Python reports by itself and for which better advice exists than "see the log".
ADVICE: dict[str, str] = FATAL | {
    r"No available memory for the cache blocks|less than desired GPU memory utilization|larger than the available KV": (
        MEMORY
    ),
    r"is not a local folder|RepositoryNotFound|LocalEntryNotFound|OfflineModeIsEnabled|does not appear to have": (
        "Check engine.model and engine.revision, and that the weights are on this host or may be downloaded."
    ),
    r"not supported on this device|no kernel image|Selected backend .* is not valid": (
        "Choose engine.attention_backend for this GPU; FlashMLA needs Hopper or Blackwell."
    ),
}
ERROR_LINE = re.compile(r"(?:^|\s|\])(?:[A-Za-z_.]*(?:Error|Exception|Interrupt)\b:? ?.*)")


class LogTail:
    """Drains a stream in a thread of its own, so that a child never waits for its reader.

    `fatal` is the first line that FATAL knows; `switch` changes the file that further lines go to.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.fatal: str | None = None
        self.path: Path | None = None
        self._secrets = secrets()  # some programs print their environment
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._file: IO[str] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, args=(stream,), name="engine-log", daemon=True)
        self._thread.start()

    def switch(self, path: Path) -> None:
        """Append to `path` from here on."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self.path, self._file = path, path.open("a", encoding="utf-8", buffering=1)

    def cause(self) -> str:
        """The line that best says why the child failed: a fatal one, else the last error, else the last line."""
        lines = list(self._lines)
        errors = [line for line in lines if ERROR_LINE.search(line)]
        best = self.fatal or (errors or [line for line in lines if line.strip()] or ["it printed nothing"])[-1]
        return best.strip()[:400]

    def join(self, timeout: float) -> None:
        """Wait until the stream has ended and every line of it is written."""
        self._thread.join(timeout)

    def close(self) -> None:
        """Wait for the end of the stream and close the file."""
        self.join(timeout=5)
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _drain(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in iter(stream.readline, b""):
                self._take(redact(raw.decode("utf-8", errors="replace"), self._secrets))

    def _take(self, line: str) -> None:
        self._lines.append(line.rstrip("\n"))
        if self.fatal is None and any(re.search(pattern, line) for pattern in FATAL):
            self.fatal = line.rstrip("\n")
        with self._lock:
            if self._file is not None:
                self._file.write(line if line.endswith("\n") else f"{line}\n")


def advice(text: str, otherwise: str) -> str:
    """What to do about a failure that says `text`."""
    return next((remedy for pattern, remedy in ADVICE.items() if re.search(pattern, text)), otherwise)
