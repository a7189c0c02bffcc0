"""The real page in a real browser while a real sweep runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Browser, expect

from kernalyse.services.core.model import RunState
from tests.browser.charts import drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.dashboard import MANY_SIZES, Dashboard
from tests.service_processes import ServiceProcesses

pytestmark = pytest.mark.browser

EVIL_TITLE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'


def settled(read: Callable[[], int]) -> int:
    """What is read, once it has been the same for a second: charts and rows come one after the other."""
    found, since = read(), time.monotonic()
    while time.monotonic() < since + 1:
        time.sleep(0.1)
        now = read()
        if now != found:
            found, since = now, time.monotonic()
    return found


def eventually(check: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.1)


def is_over(dashboard: Dashboard, run_id: str) -> bool:
    return dashboard.run(run_id).state.is_final


def delete_all_runs(dashboard: Dashboard) -> None:
    """Those of tests before included, whether they are over or not."""
    for run in dashboard.runs():
        if not run.state.is_final:
            dashboard.cancel(run.run_id)
        eventually(partial(is_over, dashboard, run.run_id))
        dashboard.delete(run.run_id)


def test_without_runs_the_page_says_how_to_start(visit: Visit) -> None:
    delete_all_runs(visit.dashboard)
    page = visit.open("/live")
    expect(page.locator(".first-visit")).to_contain_text("kernalyse bench saxpy")
    expect(page.locator(".node")).to_contain_text("serving")


@pytest.mark.slow
def test_points_arrive_while_the_sweep_runs_and_cancel_ends_it(visit: Visit) -> None:
    page = visit.open("/live")
    run = visit.dashboard.start_sweep("saxpy", title=EVIL_TITLE, seconds=0.4, sizes=MANY_SIZES)
    expect(page.locator(".run-name")).to_contain_text("running")
    eventually(lambda: drawn_count(page, "samples:samples") > 0)
    eventually(lambda: drawn_count(page, "samples:finished") > 0)
    first = drawn_count(page, "samples:finished")
    eventually(lambda: drawn_count(page, "samples:finished") > first)
    eventually(lambda: drawn_count(page, "live_roofline:points") >= 2)
    eventually(lambda: drawn_count(page, "telemetry:host_busy") >= 2)
    assert visit.dashboard.run(run.run_id).state is RunState.RUNNING
    expect(page.locator(".facts > div", has_text="Now")).to_contain_text("saxpy")
    expect(page.locator(".results .tabulator-row").first).to_contain_text("saxpy N=")

    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Keep it running").click()
    assert visit.dashboard.run(run.run_id).state is RunState.RUNNING
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator(".run-name")).to_contain_text("cancelled")
    assert visit.dashboard.run(run.run_id).state is RunState.CANCELLED
    expect(page.locator("h1")).to_have_text(EVIL_TITLE)
    assert page.evaluate("window.pwned") is None


@pytest.mark.slow
def test_a_late_page_starts_from_memory_and_its_link_shows_the_same(visit: Visit) -> None:
    run_id = visit.open("/live").locator(".run-row").first.get_attribute("data-run")
    page = visit.open(f"/live?runs={run_id}&theme=dark")
    eventually(lambda: drawn_count(page, "samples:finished") > 0)
    assert f"runs={run_id}" in page.url
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.slow
def test_a_run_gets_tags_and_notes_and_is_deleted_when_somebody_means_it(visit: Visit) -> None:
    run = visit.dashboard.start_sweep("saxpy", title="short-lived", seconds=0.05)
    eventually(lambda: visit.dashboard.run(run.run_id).state.is_final)
    page = visit.open(f"/live?runs={run.run_id}")
    menu = page.locator(".run-card .fold")
    unfold = menu.get_by_role("button", name="Tags and notes")
    unfold.click()
    menu.get_by_role("textbox", name="Tags").fill("nightly, <b>bold</b>, nightly")
    menu.get_by_role("textbox", name="Notes").fill("clocks were locked")
    menu.get_by_role("button", name="Save").click()
    expect(page.locator(".run-name .tag")).to_have_text(["nightly", "<b>bold</b>"])
    expect(page.locator(".run-card .note.lines")).to_have_text("clocks were locked")
    expect(menu.get_by_role("button", name="Save")).to_be_hidden()
    expect(page.locator(".run-row.selected .tag")).to_have_text(["nightly", "<b>bold</b>"])

    unfold.click()
    menu.get_by_role("button", name="Delete the run").click()
    page.get_by_role("button", name="Keep it", exact=True).click()
    assert visit.dashboard.run(run.run_id).tags == ("nightly", "<b>bold</b>")
    menu.get_by_role("button", name="Delete the run").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the run", exact=True).click()
    expect(page.locator("h1")).not_to_have_text("short-lived")
    assert run.run_id not in [other.run_id for other in visit.dashboard.runs()]
    assert run.run_id not in page.url


@pytest.mark.slow
def test_the_theme_is_kept_in_url_and_cookie(visit: Visit) -> None:
    page = visit.open("/live")
    page.get_by_role("button", name="Switch between light and dark").click()
    page.wait_for_selector('html[data-theme="dark"]')
    page.wait_for_url(re.compile("theme=dark"))
    expect(visit.open("/kernels").locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("path", ["/live", "/roofline", "/kernels"])
def test_pages_fit_the_screen(visit: Visit, path: str) -> None:
    see_that_it_fits(visit.open(path), 1280, 390)


@pytest.fixture(scope="module")
def finished_run_id(dashboard: Dashboard) -> str:
    """Of a short sweep: other files leave runs of theirs behind."""
    run = dashboard.start_sweep("saxpy", seconds=0.05)
    eventually(lambda: dashboard.run(run.run_id).state.is_final)
    return run.run_id


@pytest.mark.slow
def test_roofline_filters_points_and_keeps_them_in_the_url(visit: Visit, finished_run_id: str) -> None:
    page = visit.open(f"/roofline?runs={finished_run_id}")
    eventually(lambda: drawn_count(page, "roofline:points") > 0)
    assert drawn_count(page, "roofline:ceilings") >= 2
    page.get_by_label("Kernel", exact=True).fill("no such kernel")
    eventually(lambda: drawn_count(page, "roofline:points") == 0)
    page.wait_for_url(re.compile("kernel=no"))
    page.get_by_label("Kernel", exact=True).fill("SAXPY")
    eventually(lambda: drawn_count(page, "roofline:points") > 0)


@pytest.mark.slow
def test_kernels_are_filtered_sorted_and_downloaded(visit: Visit, finished_run_id: str) -> None:
    page = visit.open(f"/kernels?runs={finished_run_id}")
    rows = page.locator(".listed .tabulator-row")
    expect(rows.first).to_contain_text("saxpy")
    page.get_by_role("link", name="Sort by Median", exact=True).click()
    expect(page.get_by_role("link", name="Median, ascending")).to_be_visible()
    page.get_by_role("textbox", name="Kernel").fill("nothing like it")
    expect(page.locator(".listed")).to_contain_text("No row matches")
    page.get_by_role("textbox", name="Kernel").fill("")
    expect(rows.first).to_contain_text("saxpy")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Cache", exact=True).check()
    expect(page.locator(".listed .tabulator-header")).to_contain_text("Cache")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download CSV").click()
    text = download.value.path().read_text()
    assert text.startswith("run_id,")
    assert text.count("\n") >= 2


def test_a_run_that_does_not_exist_is_said_in_a_sentence(visit: Visit) -> None:
    page = visit.open("/live?runs=no-such-run")
    expect(page.locator(".run-card")).to_contain_text("cannot be shown")


@pytest.mark.slow
def test_an_analyzer_that_is_away_is_named_and_found_again(browser: Browser, services: ServiceProcesses) -> None:
    address = f"unix:{services.directory}/run/analyzer.sock"
    ui = services.start("ui", "--analyzer-address", address)
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://{ui.address}/?token={ui.token}")
    expect(page.locator(".banner")).to_contain_text("Analyzer unreachable, trying again")
    services.start("analyzer", address=address)
    expect(page.locator(".banner")).to_be_hidden()
    expect(page.locator(".first-visit")).to_contain_text("kernalyse bench saxpy")
    context.close()
