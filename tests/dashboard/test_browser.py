"""The pages in a real browser, from the disk and from the server: no console error, no request off the machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from evalharness.reports.dashboard.server import DashboardServer
from evalharness.stats.significance import sign_flip
from tests.dashboard.test_server import running, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=[WIDE, PHONE], ids=["1280px", "390px"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """A page that fails the test on a console error, a script error, or a request off the machine."""
    context = browser.new_context(viewport=request.param)
    opened, faults = context.new_page(), []
    opened.on("console", lambda message: faults.append(message.text) if message.type in {"error", "warning"} else None)
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("request", lambda asked: None if is_local(asked.url) else faults.append(f"request: {asked.url}"))
    yield opened
    context.close()
    assert not faults


def is_local(url: str) -> bool:
    return bool(re.match(r"(file://|data:|http://127\.0\.0\.1:)", url))


def fits(page: Page) -> bool:
    """Nothing but tables that scroll by themselves is wider than the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def task_page(site: Path) -> str:
    (found,) = site.glob("tasks/*gsm8k*.html")
    return found.as_uri()


def test_every_kind_of_page_opens_and_fits(page: Page, site: Path) -> None:
    newest = max((site / "runs").iterdir()) / "index.html"
    for url in [*(p.as_uri() for p in sorted(site.glob("*.html"))), task_page(site), newest.as_uri()]:
        page.goto(url)
        assert page.locator("h1, h2").first.is_visible()
        assert fits(page), url


def test_from_the_overview_to_a_run(page: Page, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    page.get_by_role("link", name="gsm8k_canary").click()
    page.locator("#nights tbody tr a").first.click()
    assert page.locator("h1.id").inner_text().startswith("20261201T")
    page.get_by_role("link", name="Compare with the last good run").click()
    page.locator("#result table").wait_for()
    assert page.locator("#result table tbody tr").count() == 6


def test_filters_narrow_the_lists(page: Page, site: Path) -> None:
    page.goto((site / "runs.html").as_uri())
    rows = page.locator("#runs tbody tr:visible")
    assert rows.count() == 400
    page.get_by_label("Status").select_option("bad")
    assert 0 < rows.count() < 60
    page.get_by_label("Filter runs").fill("missing")
    assert rows.count() == 7
    page.get_by_label("Filter runs").fill("no such night")
    assert rows.count() == 0
    assert page.get_by_text("Nothing fits the filter.").is_visible()


def test_hovering_tells_the_night_and_zoom_and_arms_work(page: Page, site: Path) -> None:
    page.goto(task_page(site))
    plot = page.locator("svg.plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] - 0.3, box["y"] + 20)
    tip = page.locator(".tip")
    assert "2026-12-01 02:00 UTC" in tip.inner_text()
    assert "n 250" in tip.inner_text()
    page.mouse.move(box["x"] + 0.3, box["y"] + 20)
    assert "2025-10-28" in tip.inner_text()
    page.get_by_role("button", name="30 d").click()
    assert plot.get_attribute("viewBox") == "370 0 30 100"
    page.mouse.move(box["x"] + 2, box["y"] + 20)
    assert "2026-11-01" in tip.inner_text() or "2026-11-02" in tip.inner_text()
    page.get_by_label("stock").uncheck()
    assert not page.locator(".panel[data-arm=stock]").is_visible()
    assert page.locator(".panel[data-arm=patched]").is_visible()


def test_the_chart_is_walked_with_the_keyboard(page: Page, site: Path) -> None:
    page.goto(task_page(site))
    page.locator("[data-chart]").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert "2026-11-30" in page.locator(".tip").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/20261130T*/index.html")


def test_a_finger_taps_twice_to_open_a_run(browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True)
    try:
        page = context.new_page()
        page.goto(task_page(site))
        plot = page.locator("svg.plot").first
        plot.tap(position={"x": 100, "y": 20})
        assert page.locator(".tip").is_visible()
        plot.tap(position={"x": 100, "y": 20})
        page.wait_for_url("**/runs/*/index.html")
    finally:
        context.close()


def test_any_two_runs_compare(page: Page, site: Path) -> None:
    page.goto((site / "compare.html").as_uri())
    result = page.locator("#result")
    result.locator("table").wait_for()
    assert "250 pairs" in result.inner_text()
    bad = next(p.name for p in sorted((site / "runs").iterdir()) if p.name.startswith("20260525"))
    page.locator("#before").select_option(bad)
    page.wait_for_function("document.querySelector('#result').innerText.includes('not at hand')")
    assert bad in result.inner_text()
    page.get_by_label("Swap the two").click()
    page.wait_for_function(f"location.hash.endsWith('{bad}')")


def test_the_browser_tests_as_the_harness_does(page: Page, site: Path) -> None:
    page.goto((site / "compare.html").as_uri())
    for sums in ([10, 10, -10], [-10] * 9, [20, -10, 30, 10], [0, 0], [10] * 40 + [-10] * 25):
        found = page.evaluate("sums => signFlip(sums)", sums)
        assert found == pytest.approx(sign_flip(np.array(sums) / 10, 0).p_two_sided, abs=1e-9), sums


def test_a_site_that_nobody_rebuilds_says_so(page: Page, site: Path) -> None:
    page.add_init_script("Date.now = () => Date.parse('2026-12-01T08:00:00Z')")
    page.goto((site / "index.html").as_uri())
    assert not page.locator("#stale").is_visible()
    page.add_init_script("Date.now = () => Date.parse('2026-12-02T12:00:00Z')")
    page.reload()
    assert "The scheduled job has stopped" in page.locator("#stale").inner_text()


def test_without_scripts_everything_but_choosing_is_there(browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(task_page(site))
        assert page.locator("svg.plot path.band").first.is_visible()
        assert page.locator("#nights tbody tr").count() == 400
        assert not page.locator("input[type=search]").first.is_visible()
        page.goto((site / "compare.html").as_uri())
        assert page.locator("#newest table tbody tr").count() == 6
        assert not page.locator("#chooser").is_visible()
    finally:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser: Browser, site: Path, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.goto((site / "index.html").as_uri())
        for selector in ("h1", ".sub", ".chip.good", ".card a", "small"):
            assert page.evaluate(CONTRAST, selector) >= 4.5, selector
    finally:
        context.close()


CONTRAST = """selector => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  let part = document.querySelector(selector);
  const ink = light(parse(getComputedStyle(part).color));
  while (part && (parse(getComputedStyle(part).backgroundColor)[3] ?? 1) === 0) part = part.parentElement;
  const paper = light(parse(getComputedStyle(part || document.body).backgroundColor));
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""


@pytest.fixture
def server(results: Path, tmp_path: Path) -> Iterator[DashboardServer]:
    running(results, done=17)
    with serving(results, tmp_path / "site", "sesame") as started:
        yield started


def test_the_live_page_follows_a_run(page: Page, server: DashboardServer) -> None:
    page.goto(f"http://127.0.0.1:{server.server_address[1]}/index.html?token=sesame")
    assert "token" not in page.url
    page.get_by_role("link", name="Live").click()
    page.get_by_text("137 of 370 answers").wait_for()
    assert "loading <weights>" in page.locator("pre.log").inner_text()
    assert fits(page)


def test_the_command_serves_until_interrupted(results: Path) -> None:
    command = [sys.executable, "-m", "evalharness", "dashboard", "serve", "--results", str(results), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as serve:
        assert serve.stdout is not None
        assert re.match(r"serving http://127\.0\.0\.1:\d+/ ", serve.stdout.readline())
        serve.send_signal(signal.SIGINT)
        assert serve.wait(30) == 0
