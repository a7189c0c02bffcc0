"""From page to page: nothing is loaded anew, nothing of the last page stays behind, and the browser's history works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, Route, expect

from kernalyse.services.ui.state import PAGE_TITLES
from tests.browser.conftest import PATIENCE_MS, Visit
from tests.browser.test_live import settled

pytestmark = pytest.mark.browser

WHAT_IS_KEPT: Final = "() => [Bokeh.documents.length, new Set(Bokeh.index.roots.map(({model}) => model.document)).size]"


def go(page: Page, name: str) -> None:
    page.locator(f'#f-nav a[href^="/{name}?"]').click()
    shows(page, name)


def shows(page: Page, name: str) -> None:
    page.wait_for_selector(f'.shell[data-page="{name}"][data-ready]')
    expect(page).to_have_url(re.compile(f"/{name}[?]"))


def nothing_is_left_of_others(page: Page) -> None:
    page.wait_for_function(f"() => JSON.stringify(({WHAT_IS_KEPT})()) === '[1,1]'")


@pytest.fixture
def run_id(visit: Visit, tmp_path: Path) -> str:
    row = {"kernel": "gemm", "batch_size": 8, "dtype": "float16", "model": "bert", "arithmetic_intensity": 12.0, "performance": 3.5}
    return visit.dashboard.import_file(tmp_path / "list.json", [row])


@pytest.mark.slow
def test_every_page_follows_the_one_before_without_loading_anew_and_leaves_nothing_behind(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/live?runs={run_id}")
    page.evaluate("window.isSame = true")
    sockets: list[str] = []
    page.on("websocket", lambda socket: socket.on("close", lambda _: sockets.append(socket.url)))
    for name, title in PAGE_TITLES.items():
        go(page, name)
        expect(page).to_have_title(f"{title} · kernalyse")
        expect(page.locator('#f-nav [aria-current="page"]')).to_have_text(title)
        expect(page.locator("main")).to_be_focused()
        nothing_is_left_of_others(page)
    assert page.evaluate("window.isSame")
    assert len(sockets) >= len(PAGE_TITLES) - 1


@pytest.mark.slow
def test_back_and_forward_show_the_pages_as_they_were(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/roofline?runs={run_id}&kernel=gemm")
    page.evaluate("window.isSame = true")
    go(page, "kernels")
    page.locator('#f-filters [data-set="kernel"]').fill("nothing")
    expect(page).to_have_url(re.compile("kernel=nothing"))
    go(page, "nodes")
    page.go_back()
    shows(page, "kernels")
    expect(page.locator('#f-filters [data-set="kernel"]')).to_have_value("nothing")
    page.go_back()
    shows(page, "roofline")
    expect(page.locator('#f-filters [data-set="kernel"]')).to_have_value("gemm")
    page.go_forward()
    shows(page, "kernels")
    assert page.evaluate("window.isSame")


def test_only_the_last_of_several_clicks_counts(visit: Visit) -> None:
    page = visit.open("/live")
    page.evaluate(
        """() => { for (const name of ["roofline", "compare", "history"]) document.querySelector(`#f-nav a[href^="/${name}?"]`).click() }"""
    )
    shows(page, "history")
    nothing_is_left_of_others(page)
    for name in ("kernels", "nodes", "live"):  # left before they are drawn
        page.locator(f'#f-nav a[href^="/{name}?"]').click()
        page.wait_for_selector(f'.shell[data-page="{name}"]')
    shows(page, "live")
    nothing_is_left_of_others(page)


def test_an_upload_goes_on_while_other_pages_are_looked_at(visit: Visit) -> None:
    page = visit.open("/start?form=import")
    waiting: list[Route] = []
    page.route("**/imports/*?file=*", lambda route: waiting.append(route), times=1)  # noqa: PLW0108 - Playwright takes no built-in function
    page.locator("[data-import]").first.set_input_files({"name": "elsewhere.md", "mimeType": "text/plain", "buffer": b"# A text\n"})
    go(page, "live")
    while not waiting:
        page.wait_for_timeout(50)
    waiting[0].continue_()
    go(page, "start")
    arrived = page.locator("#f-imports .import").filter(has_text="elsewhere.md")
    expect(arrived.locator(".state")).to_have_text("failed")
    arrived.get_by_role("button", name="Take elsewhere.md from the list").click()
    expect(arrived).to_have_count(0)


@pytest.mark.slow
def test_light_and_dark_change_in_place_with_what_was_typed(visit: Visit, run_id: str) -> None:
    page = visit.open("/nodes")
    page.evaluate("window.isSame = true")
    page.locator("#f-add_node summary").click()
    page.get_by_label("Address").fill("gpu7:7001")
    page.get_by_label("Token").fill("not sent yet")
    toggle = page.get_by_role("button", name="Switch between light and dark")
    for theme in ("dark", "light"):
        toggle.press("Enter")
        page.wait_for_selector(f'.shell[data-theme="{theme}"][data-ready]')
        expect(toggle).to_be_focused()
        expect(page.get_by_label("Address")).to_have_value("gpu7:7001")
        expect(page.get_by_label("Token")).to_have_value("not sent yet")
        expect(page.get_by_label("Token")).to_be_visible()
        nothing_is_left_of_others(page)
    go(page, "start")
    page.locator('#panel-sweep [name="p.N"]').wait_for()  # until the node has told of its kernels the form still grows
    page.locator("#panel-sweep").get_by_label("Only where").fill("N > 7")
    toggle.click()
    page.wait_for_selector('.shell[data-theme="dark"][data-ready]')
    expect(page.locator("#panel-sweep").get_by_label("Only where")).to_have_value("N > 7")
    go(page, "kernels")
    page.set_viewport_size({"width": 390, "height": 500})
    page.locator("#f-table tbody tr").first.wait_for()
    settled(lambda: page.evaluate("document.documentElement.scrollHeight"))  # what comes above moves what lies below it
    page.locator("#f-table").scroll_into_view_if_needed()
    place = page.evaluate("scrollY")
    assert place > 500
    toggle.click()
    page.wait_for_selector('.shell[data-theme="light"][data-ready]')
    page.wait_for_function("place => Math.abs(scrollY - place) < 5", arg=place)
    page.go_back()  # a change of colours is no step
    shows(page, "start")
    assert page.evaluate("window.isSame")


@pytest.mark.slow
def test_what_is_unfolded_stays_so_in_other_colours(visit: Visit, run_id: str) -> None:
    page = visit.open("/nodes")
    toggle = page.get_by_role("button", name="Switch between light and dark")
    fold = page.locator("#f-add_node details")
    fold.locator("summary").click()
    for theme, is_open in (("dark", True), ("light", False)):
        expect(fold).to_have_js_property("open", is_open)
        toggle.press("Enter")
        page.wait_for_selector(f'.shell[data-theme="{theme}"][data-ready]')
        expect(fold).to_have_js_property("open", is_open)
        fold.locator("summary").press("Enter")
    go(page, "kernels")
    page.locator("#column-choice summary").click()
    toggle.press("Enter")
    page.wait_for_selector('.shell[data-theme="dark"][data-ready]')
    expect(page.locator("#column-choice")).to_have_js_property("open", True)
    assert page.locator("details[open]").count() == 1
    go(page, "nodes")  # which is opened as always
    expect(fold).to_have_js_property("open", False)


def test_a_server_that_is_away_is_told_and_the_wanted_page_comes_when_it_is_back(visit: Visit) -> None:
    page = visit.open("/live")
    page.route("**/nodes?*", lambda route: route.abort())
    page.locator('#f-nav a[href^="/nodes?"]').click()
    expect(page.locator("#lost")).to_be_visible()
    page.unroute("**/nodes?*")
    page.wait_for_selector('.shell[data-page="nodes"][data-ready]', timeout=PATIENCE_MS)
    visit.complaints[:] = [text for text in visit.complaints if "ERR_FAILED" not in text]
