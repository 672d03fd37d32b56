"""Templates and the words they use. Everything is escaped where it is printed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evalharness.reports.words import MISSING, plain
from evalharness.watch.nights import Status

ASSETS: Final = ("style.css", "app.js", "compare.js", "live.js")
IN_JSON: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # json.dumps escapes all beyond ASCII itself


def page(template: str, root: str, **values: Any) -> str:
    """Render `template`; `root` leads from the page to the top of the site."""
    return _environment().get_template(template).render(root=root, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("evalharness.reports.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "share": share,
        "count": count,
        "when": when,
        "day": day,
        "tone": tone,
        "embed": embed,
        "plain": plain,
    }
    return environment


def share(value: float | None, decimals: int = 3) -> str:
    """A share with three decimals, or a dash."""
    return MISSING if value is None else f"{value:.{decimals}f}"


def count(value: float | None) -> str:
    """A mean count with one decimal, or a dash."""
    return MISSING if value is None else f"{value:.1f}"


def when(moment: datetime | str | None) -> str:
    """`2026-12-01 02:00 UTC`, or a dash."""
    return f"{_moment(moment):%Y-%m-%d %H:%M} UTC" if moment else MISSING


def day(moment: datetime | str | None) -> str:
    """`2026-12-01`, or a dash."""
    return f"{_moment(moment):%Y-%m-%d}" if moment else MISSING


def _moment(moment: datetime | str) -> datetime:
    found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return found.astimezone(UTC)


def tone(word: str) -> str:
    """The colour of a verdict or status word."""
    return Status(word).tone if word in set(Status) else "none"


def embed(data: Any) -> Markup:
    """JSON that may stand inside a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character, written in IN_JSON.items():
        text = text.replace(character, written)
    return Markup(text)  # noqa: S704 - nothing of HTML is left in it
