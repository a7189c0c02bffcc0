"""What leaves the page: every chart as PNG, SVG and CSV, and the run as documents."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from kernalyse.services.analyzer.export.results import results_document
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.dashboard import Dashboard
from tests.integration.test_importing import requests
from tests.unit.run_results import sweep_results

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def run_id(dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory) -> str:
    content = results_document(sweep_results(tmp_path_factory.mktemp("results"))).encode()
    return str(dashboard.stub.ImportTrace(iter(requests(content, name="sweep.json", chunk_bytes=2**20))).run.run_id)


def downloaded(page: Page, menu: str, choice: str) -> tuple[str, bytes]:
    """File name and content of what a menu's choice saves; keyboard alone."""
    page.get_by_label(menu).focus()
    page.keyboard.press("Enter")
    chosen = page.locator("details[open]").get_by_text(choice)
    chosen.focus()
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


@pytest.mark.slow
def test_every_chart_downloads_as_png_svg_and_csv(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/live?runs={run_id}")
    expect(page.locator(".card.chart details.download:visible")).to_have_count(page.locator(".card.chart:visible").count())
    expect(page.locator(".results .tabulator-row").first).to_be_visible()
    name, picture = downloaded(page, "Download chart Roofline", "PNG")
    assert name == "live-saxpy-roofline.png"
    size = page.locator(".card.chart", has=page.get_by_role("heading", name="Roofline")).locator(".bk-Figure").bounding_box()
    assert size is not None
    assert Image.open(io.BytesIO(picture)).width >= 2 * int(size["width"]) - 2
    name, drawing = downloaded(page, "Download chart Roofline", "SVG")
    words = [element.text for element in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "Roofline"
    assert "Arithmetic intensity (flop/B)" in words
    name, figures = downloaded(page, "Download chart Roofline", "CSV")
    assert name == "live-saxpy-roofline.csv"
    tables = list(csv.reader(io.StringIO(figures.decode("utf-8-sig"))))
    heads = [row for row in tables if row and row[0] == "layer"]
    points = next(head for head in heads if "label" in head)
    assert points[:3] == ["layer", "intensity (Arithmetic intensity (flop/B))", "rate (Achieved (flop/s))"]
    drawn = sorted(row[points.index("label")] for row in tables if row and row[0] == "points" and row != points)
    assert drawn == ["saxpy N=1000 TILE=16", "saxpy N=1001"]
    assert not {"color", "marker", "size"} & {name for head in heads for name in head}


@pytest.mark.slow
def test_a_run_leaves_as_a_document_that_opens_offline(visit: Visit, run_id: str, browser: Browser, tmp_path: Path) -> None:
    page = visit.open(f"/live?runs={run_id}")
    name, content = downloaded(page, "This run as a document", "HTML page")
    assert name == f"kernalyse-{run_id}.html"
    expect(page.locator("#drawing")).to_be_empty()
    file = tmp_path / "page.html"
    file.write_bytes(content)
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 800})
    asked: list[str] = []
    try:
        offline = context.new_page()
        offline.on("request", lambda request: asked.append(request.url))
        offline.on("console", lambda message: asked.append(message.text) if message.type == "error" else None)
        offline.goto(file.as_uri())
        expect(offline.locator(".bk-Canvas, .bk-CanvasPanel").first).to_be_attached()
        see_that_it_fits(offline, 390)
    finally:
        context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_what_cannot_be_written_is_said_on_the_page(visit: Visit, run_id: str, dashboard: Dashboard) -> None:
    page = visit.open(f"/live?runs={run_id}")
    answer = page.request.get(f"{dashboard.url}/export/nothing.text")
    assert (answer.status, "nothing" in answer.text()) == (404, True)
    assert page.request.get(f"{dashboard.url}/export/{run_id}.doc").status == 404
    text = page.request.get(f"{dashboard.url}/export/{run_id}.markdown")
    assert text.headers["content-disposition"] == f'attachment; filename="kernalyse-{run_id}.md"'
    page.get_by_label("This run as a document").click()
    page.locator("a.drawn").first.evaluate("link => { link.href = '/export/nothing.pdf' }")
    page.locator("a.drawn").first.click()
    expect(page.locator("#drawing")).to_contain_text("Not written: ")
    visit.complaints.clear()  # Chromium logs the 404 that the page tells of
