"""The reports in a real browser, with the network off. Skipped where Chromium or Playwright is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.assess import read_stored
from evalharness.reports import write_signoff
from evalharness.reports.signoff import build
from tests.stored_runs import stored_run

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    stored = read_stored(stored_run(folder / "results", hostile=True))
    for name, content in write_signoff(build(stored, stored.comparison), ["html"]).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.mark.parametrize("file", ["signoff.html", "report.html"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_page_opens_offline_without_complaint(browser: Any, pages: Path, file: str, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
    page = context.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((pages / file).as_uri())
    assert complaints == []
    assert [url for url in asked if not url.startswith("file:") and not url.startswith("data:")] == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("h1").inner_text().startswith("PASS")
    context.close()


def test_the_keyboard_reaches_the_skip_link_first_and_every_folded_part(browser: Any, pages: Path) -> None:
    page = browser.new_page()
    page.goto((pages / "report.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Any, pages: Path, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.goto((pages / "signoff.html").as_uri())
    weak = page.evaluate(CONTRAST)
    assert weak == []
    page.close()


# Elements whose own text has a contrast under 4.5 (WCAG 2.2, 1.4.3) against the nearest opaque ground.
CONTRAST = """() => {
  const part = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 };
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b) };
  const clear = c => /^rgba.*, 0\\)$/.test(c);
  const ground = e => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor; if (!clear(c)) return c } return 'rgb(255, 255, 255)' };
  return [...document.body.querySelectorAll('*')].filter(e => !e.closest('svg') &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).filter(e => {
      const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05) < 4.5 }).map(e => e.outerHTML.slice(0, 80));
}"""
