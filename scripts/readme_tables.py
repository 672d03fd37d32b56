"""Fill README.md's tables from the committed run records, or with --check say whether they are up to date.

    python scripts/readme_tables.py [--check]

A table stands between `<!-- record: NAME -->` and `<!-- /record -->`; it is that of the newest run of the spec NAME in
results/published/. Nobody types a figure into the README.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from evalharness.reports.comparison_json import parse
from evalharness.reports.terminal import render

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "results" / "published"
BLOCK = re.compile(r"(<!-- record: (\S+) -->\n).*?(<!-- /record -->)", re.DOTALL)
WIDTH = 112


def main() -> int:
    """Rewrite the README, or compare: 1 when it differs."""
    readme = ROOT / "README.md"
    before = readme.read_text(encoding="utf-8")
    after = BLOCK.sub(lambda match: f"{match[1]}{table(match[2])}{match[3]}", before)
    if "--check" in sys.argv[1:]:
        return int(after != before)
    readme.write_text(after, encoding="utf-8")
    return 0


def table(name: str) -> str:
    """The table a run ends with, as a Markdown block that names its record."""
    run = re.compile(rf"[0-9TZ]+-{re.escape(name)}-[0-9a-f]{{8}}")
    folder = max(path for path in PUBLISHED.iterdir() if run.fullmatch(path.name))
    comparison = parse((folder / "comparison.json").read_text(encoding="utf-8"))
    text = io.StringIO()
    Console(file=text, width=WIDTH, no_color=True).print(render(comparison))
    lines = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    link = f"[{folder.name}](results/published/{folder.name}/comparison.md)"
    return f"\n```text\n{lines}\n```\nrecord: {link}\n\n"


if __name__ == "__main__":
    raise SystemExit(main())
