"""The report as one HTML file: no script, no network, and a policy that forbids both."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined

from evalharness.records import Outcome
from evalharness.reports.charts import charts, svg
from evalharness.reports.signoff import Signoff
from evalharness.reports.signoff_tables import TONES
from evalharness.reports.words import MISSING, figure, plain

BRIEF = 3  # flips of each direction in the one-page sign-off
MOST_PAIRS = 400  # answer pairs on one page, which keeps it under 2 MB


def render(signoff: Signoff) -> str:
    """signoff.html: the one page, with the first few answers that changed."""
    return _page(signoff, BRIEF)


def render_full(signoff: Signoff) -> str:
    """report.html: the same with every answer pair the record has, or fewer of each kind where many arms ran."""
    return _page(signoff, max(BRIEF, MOST_PAIRS // (2 * max(1, len(signoff.flips)))))


def _page(signoff: Signoff, pairs: int) -> str:
    style = _style()
    page = (
        _environment()
        .get_template("signoff.html")
        .render(
            signoff=signoff,
            comparison=signoff.comparison,
            tone=TONES[signoff.comparison.verdict.outcome],
            passed=signoff.comparison.verdict.outcome is Outcome.PASS,
            charts=[(chart, svg(chart)) for chart in charts(signoff.comparison)],
            pairs=pairs,
            brief=pairs == BRIEF,
            style=style,
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        )
    )
    return page.encode("utf-8", "backslashreplace").decode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("evalharness.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain, "figure": figure}
    environment.globals["MISSING"] = MISSING
    return environment


@cache
def _style() -> str:
    """The style sheet, between the tags exactly as its hash has it."""
    return resources.files("evalharness.reports").joinpath("templates", "signoff.css").read_text(encoding="utf-8")
