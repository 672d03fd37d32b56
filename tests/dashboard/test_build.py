"""The site as files: what it holds, what is kept, and what no folder or name can do to it."""

import copy
import json
import random
import re
import shutil
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from evalharness.errors import StoreError
from evalharness.reports.dashboard import Built, build
from tests.dashboard.conftest import NOW, SCHEDULE

Rebuild = Callable[[], Built]
PAGE_LIMIT = 1_500_000


class Links(HTMLParser):
    """Collects what a page refers to, and whether its tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value for name, value in attrs if name in {"href", "src", "srcset", "poster", "action"} and value
        ]


def read_links(page: Path) -> Links:
    found = Links()
    found.feed(page.read_text())
    return found


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_is_small_and_links_only_to_files_that_are_there(site: Path) -> None:
    assert len(pages(site)) > 390
    for page in pages(site)[::20] + list(site.glob("*.html")) + list(site.glob("tasks/*.html")):
        assert page.stat().st_size <= PAGE_LIMIT
        for link in read_links(page).links:
            assert not re.match(r"^(?:[a-z]+:)?//", link), link
            target = unquote(link.partition("#")[0])
            assert link.startswith("data:") or not target or (page.parent / target).exists(), f"{page}: {link}"


def test_the_task_page_shows_everything_without_a_script(site: Path) -> None:
    (page,) = site.glob("tasks/*gsm8k*.html")
    text = page.read_text()
    for panel in ("accuracy, eager", "accuracy, stock", "accuracy, patched", "output length", "degenerate answers"):
        assert panel in text
    for drawn in ('class="band arm-patched"', 'class="limit low"', 'class="noise"', 'class="shift"', "dots outside"):
        assert drawn in text
    for status in ("MISSING", "LATE", "UNFINISHED", "INVALID", "FAIL"):
        assert f">{status}</span>" in text
    assert "in control between" in text
    assert text.count("<tr data-row") == 400


def test_the_overview_tells_the_status_of_every_profile_and_task(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert "All 2 in order" in text
    assert text.count("data-row") == 2
    assert "4 h" in text
    assert "next due Wed 02:00 UTC" in text


def test_a_night_that_did_not_come_turns_the_overview_red(year: Path, tmp_path: Path) -> None:
    build(year, tmp_path / "site", SCHEDULE, NOW.replace(day=2))
    text = (tmp_path / "site" / "index.html").read_text()
    assert "2 of 2 need attention" in text
    assert "MISSING" in text
    assert "no run started by 04:00 UTC" in text


def test_a_figure_that_moved_is_red_where_the_verdict_is_not(year: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(year, results)
    for folder in [p for p in results.iterdir() if p.name >= "202605240" and p.is_dir()]:
        if folder.name >= "202606":
            shutil.rmtree(folder)  # as on the last of May, within the regression
    now = NOW.replace(month=5, day=31)
    built = build(results, tmp_path / "site", SCHEDULE, now)
    assert "DRIFT" in {event.kind for event in built.events if event.is_open}
    text = (tmp_path / "site" / "index.html").read_text()
    assert "2 of 2 need attention" in text
    assert '<span class="chip bad">DRIFT</span>' in text


def test_a_second_build_keeps_the_pages_of_runs_and_a_new_night_adds_one(results: Path, rebuild: Rebuild) -> None:
    name = max(p.name for p in results.iterdir() if p.is_dir())
    aside = results.parent / name
    (results / name).rename(aside)
    first = rebuild()
    again = rebuild()
    aside.rename(results / name)
    more = rebuild()
    assert (again.made, again.kept) == (0, first.made)
    assert (more.made, more.kept) == (1, first.made)
    site = results.parent / "site"
    assert (site / "runs" / name / "index.html").exists()
    assert name in (site / "index.html").read_text() or name in (site / "runs.html").read_text()


def test_a_changed_run_is_made_anew_and_a_deleted_one_goes(results: Path, rebuild: Rebuild) -> None:
    rebuild()
    rebuild()
    runs = sorted(p for p in results.iterdir() if p.is_dir())
    (runs[0] / "signoff.html").write_text("<p>the report</p>")
    shutil.rmtree(runs[1])
    rebuild()
    built = rebuild()
    site = results.parent / "site"
    assert (site / "runs" / runs[0].name / "signoff.html").read_text() == "<p>the report</p>"
    assert 'href="signoff.html"' in (site / "runs" / runs[0].name / "index.html").read_text()
    assert not (site / "runs" / runs[1].name).exists()
    assert built.made == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 99}', '{"run_id": "x"}'])
def test_an_odd_folder_is_listed_and_breaks_nothing(results: Path, rebuild: Rebuild, content: str) -> None:
    odd = results / "odd <b>folder"
    odd.mkdir()
    (odd / "run.json").write_text(content)
    built = rebuild()
    assert built.unreadable == 1
    text = (results.parent / "site" / "index.html").read_text()
    assert "odd &lt;b&gt;folder" in text


def test_names_from_outside_cannot_become_markup(results: Path, rebuild: Rebuild) -> None:
    evil = "/../../../x</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{7*7}}"
    for folder in [p for p in results.iterdir() if p.is_dir()]:
        run = json.loads((folder / "run.json").read_text())
        run["spec"]["engine"]["model"] = evil
        run["provenance"]["packages"]["vllm"] = evil
        run["arms"] = [arm | {"message": evil} for arm in run["arms"]]
        (folder / "run.json").write_text(json.dumps(run))
        path = folder / "comparison.json"
        if path.exists():
            text = path.read_text().replace('"patched"', json.dumps("patched" + evil))
            path.write_text(text.replace("reproduced: yes.", json.dumps(evil)[1:-1]))
    rebuild()
    for page in pages(results.parent / "site"):
        found = read_links(page)
        assert "<script>alert" not in page.read_text()
        assert "img" not in found.tags
    assert {path.parent.name for path in (results.parent / "site").rglob("*.json")} <= {
        "site",
        *(p.name for p in results.iterdir()),
    }


ODD_VALUES = (
    None, "", "x", -1, 0, 2.5, 1e308, -1e308, 10**30, True, [], {}, [None], {"low": 2, "high": -3}, "NaN", float("nan"),
    float("inf"), "9999-12-31T23:59:59+00:00", "0001-01-01", "2026-12-01", "</script>",
    "\u2028\ud7ff\x00", "\ud800", "../../x",
)  # fmt: skip


def spoil(record: Any, rng: random.Random) -> Any:
    """The record with one value somewhere in it replaced."""
    if rng.random() < 0.12 or not isinstance(record, dict | list) or not record:
        return copy.deepcopy(rng.choice(ODD_VALUES))
    key = rng.choice(list(record)) if isinstance(record, dict) else rng.randrange(len(record))
    record[key] = spoil(record[key], rng)
    return record


@pytest.mark.parametrize("file", ["run.json", "comparison.json"])
def test_no_record_however_spoilt_breaks_the_site(results: Path, rebuild: Rebuild, file: str) -> None:
    rng, model = random.Random(42444), min(p for p in results.iterdir() if (p / file).exists())
    for number in range(150):
        folder = results / f"20261101T{number:06}Z-odd-{number:08}"
        shutil.copytree(model, folder)
        run = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(run | {"run_id": folder.name}))
        (folder / file).write_text(json.dumps(spoil(json.loads((folder / file).read_text()), rng)))
    built = rebuild()
    site = results.parent / "site"
    assert 0 < built.unreadable < 150
    for page in pages(site):
        assert page.stat().st_size <= PAGE_LIMIT
        assert "script>alert" not in page.read_text()
    assert {p.name for p in site.iterdir()} == {
        ".build.json", "assets", "compare.html", "index.html", "metrics.prom", "runs", "runs.html", "tasks",
    }  # fmt: skip


def test_an_empty_results_folder_makes_a_site_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    build(tmp_path / "results", tmp_path / "site", SCHEDULE, NOW)
    assert "No runs yet" in (tmp_path / "site" / "index.html").read_text()


def test_a_folder_that_is_no_site_is_not_replaced(results: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not a dashboard"):
        build(results, tmp_path / "home", SCHEDULE, NOW)
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_a_reader_never_sees_half_a_site(results: Path, rebuild: Rebuild) -> None:
    rebuild()
    site, done, misses = results.parent / "site", threading.Event(), []

    def read() -> None:
        while not done.is_set():
            try:
                assert "</html>" in (site / "index.html").read_text()
                assert "</html>" in (site / "compare.html").read_text()
            except (OSError, AssertionError) as error:
                misses.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(8):
        rebuild()
    done.set()
    reader.join()
    assert not misses


def test_a_build_that_breaks_off_leaves_the_old_site_and_the_next_one_mends_it(
    results: Path, rebuild: Rebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuild()
    rebuild()
    site = results.parent / "site"
    before = (site / "index.html").read_text()
    with monkeypatch.context() as broken:
        broken.setattr("evalharness.reports.dashboard.prometheus", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rebuild()
    assert (site / "index.html").read_text() == before
    built = rebuild()
    assert (site / "index.html").read_text() == before
    assert built.made == 0
