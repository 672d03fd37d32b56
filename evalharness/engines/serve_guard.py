"""Stands between `serve-arm` and the server it starts: when the parent goes, however it ends, the server goes too.

    python -m evalharness.engines.serve_guard FD COMMAND...

FD is a pipe whose other end only the parent holds. The guard heads a process group of its own, which the server and
its workers join.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 10.0


def main(arguments: list[str]) -> None:
    """Run COMMAND and end as it ends (128 + n when signal n killed it)."""
    # A handler, not SIG_IGN: the server would inherit that, and never stop when asked.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    threading.Thread(target=_follow_parent, args=(int(arguments[0]),), daemon=True).start()
    code = subprocess.Popen(arguments[1:]).wait()  # noqa: S603 - the user's own server
    os._exit(code if code >= 0 else 128 - code)


def _follow_parent(fd: int) -> None:
    os.read(fd, 1)  # nothing is ever written: this returns when the parent has gone
    os.killpg(os.getpgrp(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
