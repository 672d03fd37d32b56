"""Where commands print."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

PIPE_WIDTH: Final = 100
console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
