"""Imports run one way, and what makes or scores an answer names neither stock nor patched."""

import ast
import re
from pathlib import Path

import pytest

import evalharness
from evalharness.capture.paths import CAPTURE_PATHS
from evalharness.spec import CAPTURES

PACKAGE = Path(evalharness.__file__).parent
TABLE = (Path(__file__).parents[1] / "docs" / "ARCHITECTURE.md").read_text().partition("## Where")[0]
ORDER = [*re.findall(r"^\| `(\w+)` \|", TABLE, re.MULTILINE), "__main__"]  # a module imports only from those above it
MODULES = sorted(PACKAGE.rglob("*.py"))


def part(module: str) -> str:
    """`evalharness.engines.base` -> `engines`."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else ""


def imported(tree: ast.AST) -> set[str]:
    """Parts of the package that `tree` imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {part(name) for name in names if name.startswith("evalharness.")} & set(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_those_above_it(path: Path) -> None:
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if own in {"__init__", "profiles", "policies"}:
        return
    assert own in ORDER, f"{own} has no place in the order of imports"
    below = {name for name in imported(ast.parse(path.read_text())) if ORDER.index(name) > ORDER.index(own)}
    assert not below


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f.name for f in functions if (f.end_lineno or 0) - f.lineno > 60]
    assert not long


def test_every_module_of_the_documented_order_is_there() -> None:
    present = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in MODULES}
    assert present - {"__init__", "profiles", "policies"} == set(ORDER)


@pytest.mark.parametrize("folder", ["canary", "engines", "scoring", "runner"])
def test_what_makes_or_scores_an_answer_names_neither_stock_nor_patched(folder: str) -> None:
    nodes = [node for path in (PACKAGE / folder).rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert len(words) > 10
    assert not words & {name for name, path in CAPTURE_PATHS.items() if path.shares_state is not None}


def test_every_capture_path_can_be_named_in_a_spec() -> None:
    assert tuple(CAPTURE_PATHS) == tuple(name for name in CAPTURES if name != "eager")
