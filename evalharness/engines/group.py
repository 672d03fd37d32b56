"""Ends a process group: the leader, its workers, and theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import time

POLL_S = 0.05


def end_group(leader: subprocess.Popen[bytes], number: signal.Signals, patience_s: float) -> bool:
    """Send `number` to the group that `leader` heads; whether it was empty within `patience_s` seconds."""
    deadline = time.monotonic() + patience_s
    try:
        os.killpg(leader.pid, number)
        while time.monotonic() < deadline:
            leader.poll()  # collects the leader, which would count as a member for ever
            os.killpg(leader.pid, 0)
            time.sleep(POLL_S)
    except (ProcessLookupError, PermissionError):
        return True
    return False


def ended_how(code: int | None) -> str:
    """An exit status in words."""
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"
