"""From page to page: nothing is loaded anew, nothing of the last page stays behind, and the browser's history works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from kernalyse.services.ui.shell import NAVIGATION
from tests.browser.conftest import PATIENCE_MS, Visit
from tests.browser.test_live import settled
from tests.service_processes import ServiceProcesses, free_port

pytestmark = pytest.mark.browser

WHAT_IS_KEPT: Final = "() => [Bokeh.documents.length, new Set(Bokeh.index.roots.map(({model}) => model.document)).size]"
DRAWN_FIGURES: Final = """() => {
  const within = (root) => [...root.querySelectorAll("*")].flatMap((one) => [one, ...(one.shadowRoot ? within(one.shadowRoot) : [])])
  const count = (view) => (view.model.type === "Figure") + [...view.children()].reduce((sum, child) => sum + count(child), 0)
  const viewed = Bokeh.index.roots.reduce((sum, root) => sum + count(root), 0)
  return viewed === within(document).filter((one) => one.matches(".bk-Figure")).length
}"""
"""Whether each figure that there is a view of is in the document."""


def link(name: str) -> str:
    """Selector of a link of the navigation."""
    return f'nav a[href^="/{name}?"], nav a[href="/{name}"]'


def go(page: Page, name: str) -> None:
    page.locator(link(name)).click()
    shows(page, name)


def shows(page: Page, name: str) -> None:
    expect(page.locator('nav [aria-current="page"]')).to_have_text(NAVIGATION[name])
    expect(page).to_have_url(re.compile(rf"/{name}(\?|$)"))
    expect(page).to_have_title(f"{NAVIGATION[name]} · kernalyse")


def nothing_is_left_of_others(page: Page) -> None:
    page.wait_for_function(f"() => JSON.stringify(({WHAT_IS_KEPT})()) === '[1,1]'")
    page.wait_for_function(DRAWN_FIGURES)


@pytest.fixture
def run_id(visit: Visit, tmp_path: Path) -> str:
    row = {"kernel": "gemm", "batch_size": 8, "dtype": "float16", "model": "bert", "arithmetic_intensity": 12.0, "performance": 3.5}
    return visit.dashboard.import_file(tmp_path / "list.json", [row])


@pytest.mark.slow
def test_every_page_follows_the_one_before_over_one_connection_and_leaves_nothing_behind(visit: Visit, run_id: str) -> None:
    page = visit.context.new_page()
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    page.goto(f"{visit.dashboard.url}/live?runs={run_id}")
    page.wait_for_selector("[data-ready]")
    page.evaluate("window.isSame = true")
    for name in [*list(NAVIGATION)[1:], *NAVIGATION]:  # the second time pages are there already
        go(page, name)
        expect(page.locator("main")).to_be_focused()
        nothing_is_left_of_others(page)
    assert page.evaluate("window.isSame")
    assert len(sockets) == 1


@pytest.mark.slow
def test_back_and_forward_show_the_pages_as_they_were(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/roofline?runs={run_id}")
    page.evaluate("window.isSame = true")
    before = page.evaluate("history.length")
    kernel = page.locator(".filters:visible").get_by_label("Kernel", exact=True)
    kernel.fill("gemm")
    expect(page).to_have_url(re.compile("kernel=gemm"))
    page.get_by_label("Colour and shape").select_option("kernel")
    expect(page).to_have_url(re.compile("color_by=kernel"))
    go(page, "kernels")
    expect(kernel).to_have_value("gemm")
    kernel.fill("nothing")
    expect(page).to_have_url(re.compile("kernel=nothing"))
    page.get_by_label("Table", exact=True).select_option("kernels of sweeps")
    expect(page).to_have_url(re.compile("table=kernels"))
    go(page, "history")
    page.get_by_label("Figure", exact=True).select_option("Mean time")
    expect(page).to_have_url(re.compile("metric=duration_mean_ns"))
    assert page.evaluate("history.length") == before + 2  # a page is a step, a filter is none

    page.go_back()
    shows(page, "kernels")
    expect(kernel).to_have_value("nothing")
    expect(page.get_by_label("Table", exact=True)).to_have_value("kernels of sweeps")
    page.go_back()
    shows(page, "roofline")
    expect(kernel).to_have_value("gemm")
    expect(page.get_by_label("Colour and shape")).to_have_value("kernel")
    assert f"runs={run_id}" in page.url
    page.go_forward()
    shows(page, "kernels")
    expect(kernel).to_have_value("nothing")
    expect(page.get_by_label("Table", exact=True)).to_have_value("kernels of sweeps")
    expect(page.locator(".listed:visible")).to_contain_text("No row matches")
    assert page.evaluate("history.length") == before + 2
    page.go_forward()
    shows(page, "history")
    expect(page.get_by_label("Figure", exact=True)).to_have_value("Mean time")
    assert page.evaluate("window.isSame")


def test_only_the_last_of_several_clicks_counts(visit: Visit) -> None:
    page = visit.open("/live")
    page.evaluate(
        """() => { for (const name of ["roofline", "compare", "history"]) document.querySelector(`nav a[href^="/${name}"]`).click() }"""
    )
    shows(page, "history")
    nothing_is_left_of_others(page)
    for name in ("kernels", "nodes", "live"):  # left before they are drawn
        page.locator(link(name)).click()
    shows(page, "live")
    nothing_is_left_of_others(page)
    page.wait_for_timeout(500)
    shows(page, "live")


def test_an_upload_goes_on_while_other_pages_are_looked_at(visit: Visit) -> None:
    page = visit.open("/start?form=import")
    waiting: list[Route] = []
    page.route("**/imports/*?file=*", lambda route: waiting.append(route), times=1)  # noqa: PLW0108 - Playwright takes no built-in function
    page.get_by_label("Choose files", exact=True).set_input_files(
        {"name": "elsewhere.md", "mimeType": "text/plain", "buffer": b"# A text\n"}
    )
    go(page, "live")
    while not waiting:
        page.wait_for_timeout(50)
    waiting[0].continue_()
    go(page, "start")
    arrived = page.locator(".import").filter(has_text="elsewhere.md")
    expect(arrived.locator(".state")).to_have_text("failed")
    arrived.get_by_role("button", name="Clear elsewhere.md").click()
    expect(arrived).to_have_count(0)


@pytest.mark.slow
def test_light_and_dark_change_in_place_with_what_was_typed(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/nodes?runs={run_id}")
    page.evaluate("window.isSame = true")
    page.get_by_role("button", name="Add a node").click()
    page.get_by_label("Address").fill("gpu7:7001")
    page.get_by_label("Token").fill("not sent yet")
    toggle = page.get_by_role("button", name="Switch between light and dark")
    for theme in ("dark", "light"):
        old = page.get_by_label("Address").element_handle()
        toggle.press("Enter")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.wait_for_function("old => !old.isConnected", arg=old)  # drawn anew
        expect(toggle).to_be_focused()
        expect(page.get_by_label("Address")).to_have_value("gpu7:7001")
        expect(page.get_by_label("Token")).to_have_value("not sent yet")
        expect(page.get_by_label("Token")).to_be_visible()
        nothing_is_left_of_others(page)
    assert "not sent yet" not in str(page.evaluate("JSON.stringify(sessionStorage)"))
    go(page, "start")
    form = page.locator(".start-form:visible")
    form.get_by_label("N", exact=True).wait_for()  # until the node has told of its kernels the form still grows
    form.get_by_label("Only where").fill("N > 7")
    old = form.get_by_label("Only where").element_handle()
    toggle.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.wait_for_function("old => !old.isConnected", arg=old)
    expect(form.get_by_label("Only where")).to_have_value("N > 7")
    go(page, "kernels")
    page.set_viewport_size({"width": 390, "height": 500})
    page.locator(".listed .tabulator-row").first.wait_for()
    settled(lambda: page.evaluate("document.documentElement.scrollHeight"))  # what comes above moves what lies below it
    page.locator(".listed .tabulator-row").first.scroll_into_view_if_needed()
    place = page.evaluate("scrollY")
    assert place > 500
    old = page.locator(".listed .tabulator-row").first.element_handle()
    toggle.dispatch_event("click")  # without going there: the place would be another
    page.wait_for_function("old => !old.isConnected", arg=old)
    page.locator(".listed .tabulator-row").first.wait_for()
    settled(lambda: page.evaluate("document.documentElement.scrollHeight"))
    assert abs(page.evaluate("scrollY") - place) < 5
    page.wait_for_function("""() => !document.getElementById("main").style.minHeight""")
    assert abs(page.evaluate("scrollY") - place) < 5
    page.go_back()  # a change of colours is no step
    shows(page, "start")
    assert page.evaluate("window.isSame")


@pytest.mark.slow
def test_what_is_unfolded_stays_so_in_other_colours(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/nodes?runs={run_id}")
    toggle = page.get_by_role("button", name="Switch between light and dark")
    fold, within = page.get_by_role("button", name="Add a node"), page.get_by_label("CA certificate")
    fold.click()
    for theme, is_open in (("dark", True), ("light", False)):
        expect(within).to_be_visible(visible=is_open)
        old = fold.element_handle()
        toggle.press("Enter")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.wait_for_function("old => !old.isConnected", arg=old)
        expect(within).to_be_visible(visible=is_open)
        fold.press("Enter")
    go(page, "kernels")
    page.get_by_role("button", name="Columns").click()
    expect(page.get_by_label("Cache", exact=True)).to_be_visible()
    old = page.get_by_role("button", name="Columns").element_handle()
    toggle.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.wait_for_function("old => !old.isConnected", arg=old)
    expect(page.get_by_label("Cache", exact=True)).to_be_visible()
    go(page, "nodes")
    expect(within).to_be_visible()  # as it was left


def test_a_server_that_is_away_is_told_and_the_wanted_page_comes_when_it_is_back(browser: Browser, services: ServiceProcesses) -> None:
    address, analyzer = f"127.0.0.1:{free_port()}", f"unix:{services.directory}/run/analyzer.sock"
    ui = services.start("ui", "--analyzer-address", analyzer, address=address)
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"http://{address}/live?token={ui.token}")
    page.wait_for_selector("[data-ready]")
    ui.kill()
    expect(page.locator("#lost")).to_be_visible()
    page.locator(link("nodes")).click()
    services.start("ui", "--analyzer-address", analyzer, address=address)
    shows(page, "nodes")
    expect(page.locator("#lost")).to_be_hidden()
    expect(page.locator(".node-list")).to_be_visible()
    page.go_back()
    shows(page, "live")
    assert faults == []
    context.close()
