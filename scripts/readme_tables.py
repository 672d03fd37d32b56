"""Fill README.md's tables from the committed run records, or with --check say whether they are up to date.

    python scripts/readme_tables.py [--check]

A table stands between `<!-- VIEW: NAME... -->` and `<!-- /VIEW -->`; each NAME is a run in results/published/, by its
id, or by its spec's name for the newest of that spec. Nobody types a figure into the README. The views:

- `record`: the table a run ends with;
- `arms`: accuracy and token agreement of each arm on each task;
- `batch`: the same on the first task for runs that differ in how many requests they take at a time;
- `costs`: what each arm costs.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from evalharness.assess import read_stored
from evalharness.reports import signoff_costs
from evalharness.reports.comparison_json import parse
from evalharness.reports.terminal import render
from evalharness.store import RunFolder

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "results" / "published"
BLOCK = re.compile(r"(<!-- (\w+): (.+?) -->\n).*?(<!-- /\2 -->)", re.DOTALL)
Figures = dict[str, str]  # a row of comparison.csv
WIDTH = 112


def main() -> int:
    """Rewrite the README, or compare: 1 when it differs."""
    readme = ROOT / "README.md"
    before = readme.read_text(encoding="utf-8")
    after = BLOCK.sub(lambda match: f"{match[1]}\n{VIEWS[match[2]](match[3].split())}\n{match[4]}", before)
    if "--check" in sys.argv[1:]:
        return int(after != before)
    readme.write_text(after, encoding="utf-8")
    return 0


def find(name: str) -> Path:
    """The folder of a published run."""
    if (PUBLISHED / name / "run.json").is_file():
        return PUBLISHED / name
    run = re.compile(rf"[0-9TZ]+-{re.escape(name)}-[0-9a-f]{{8}}")
    return max(path for path in PUBLISHED.iterdir() if run.fullmatch(path.name))


def link(folder: Path) -> str:
    """Markdown link to a run's tables."""
    return f"[{folder.name}](results/published/{folder.name}/comparison.md)"


def record(names: Sequence[str]) -> str:
    """The table a run ends with, and its record."""
    (folder,) = map(find, names)
    comparison = parse((folder / "comparison.json").read_text(encoding="utf-8"))
    text = io.StringIO()
    Console(file=text, width=WIDTH, no_color=True).print(render(comparison))
    lines = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    return f"```text\n{lines}\n```\nrecord: {link(folder)}\n"


def figures(folder: Path) -> dict[tuple[str, str], Figures]:
    """The main metric of each task and arm."""
    rows: dict[tuple[str, str], Figures] = {}
    with (folder / "comparison.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.setdefault((row["task"], row["arm"]), row)
    return rows


def shown(found: Figures) -> list[str]:
    """Accuracy, and the share of tokens that are eager's."""
    agreement = found["token_agreement"]
    return [f"{float(found['value']):.3f}", f"{float(agreement):.3f}" if agreement else "—"]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def arms(names: Sequence[str]) -> str:
    """One row an arm."""
    (folder,) = map(find, names)
    rows = figures(folder)
    tasks = list(dict.fromkeys(task for task, _ in rows))
    head = ["arm", *(text for task in tasks for text in (f"{task}, n {rows[task, 'eager']['n']}", "tokens as eager"))]
    body = [
        [f"`{arm}`", *(text for task in tasks for text in shown(rows[task, arm]))]
        for arm in dict.fromkeys(arm for _, arm in rows)
    ]
    return f"{markdown(head, body)}\nrecord: {link(folder)}\n"


def batch(names: Sequence[str]) -> str:
    """One row a run."""
    folders = [find(name) for name in names]
    body = []
    for folder in folders:
        rows = figures(folder)
        task = next(task for task, _ in rows)
        most = RunFolder(folder).read_run().spec["engine"]["max_num_seqs"]
        texts = [text for arm in ("eager", "stock", "patched") for text in shown(rows[task, arm])]
        body.append([str(most), rows[task, "eager"]["n"], texts[0], *texts[2:]])
    head = ["requests at a time", "n", "eager", "stock", "tokens as eager", "patched", "tokens as eager"]
    return f"{markdown(head, body)}\nrecords: {', '.join(map(link, folders))}\n"


def costs(names: Sequence[str]) -> str:
    """One row a cost; the sign-off report says how each is measured."""
    (folder,) = map(find, names)
    table = signoff_costs.costs(read_stored(RunFolder(folder)))
    body = [[row.head, *(cell.text for cell in row.cells)] for row in table.rows]
    record = f"[{folder.name}](results/published/{folder.name}/signoff.md)"
    return f"{markdown([table.corner, *table.columns], body)}\nrecord: {record}\n"


VIEWS: dict[str, Callable[[Sequence[str]], str]] = {"record": record, "arms": arms, "batch": batch, "costs": costs}

if __name__ == "__main__":
    raise SystemExit(main())
