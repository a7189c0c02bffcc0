"""A dashboard without a run: each page offers to load an example trace, or to start the demo sweep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.charts import drawn_count
from tests.browser.conftest import PATIENCE_MS, Visit, see_that_it_fits
from tests.browser.dashboard import dashboard_of
from tests.browser.test_live import eventually
from tests.private_directory import know_ceilings, private_directory
from tests.service_processes import ServiceProcesses

pytestmark = pytest.mark.browser


@pytest.fixture
def visit(browser: Browser, ceilings_file: Path) -> Iterator[Visit]:
    """Of a dashboard of its own. The test fails when a page had errors or asked anybody else for anything."""
    with private_directory() as directory:
        know_ceilings(directory, ceilings_file)
        services = ServiceProcesses(directory)
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        context.set_default_timeout(PATIENCE_MS)
        try:
            with dashboard_of(services, services.start("profiler")) as dashboard:
                context.request.get(f"{dashboard.url}/?token={dashboard.ui.token}", max_redirects=0)
                made = Visit(context, dashboard)
                yield made
                assert made.complaints == []
        finally:
            context.close()
            services.stop_all()


@pytest.mark.slow
def test_an_example_is_loaded_and_the_demo_sweep_is_started(visit: Visit) -> None:
    page = visit.open("/timeline")
    see_that_it_fits(page, 390, 1280)
    page.get_by_role("button", name="Load an example trace").dblclick()
    eventually(lambda: drawn_count(page, "timeline:events") > 100)
    (run,) = visit.dashboard.runs()
    page.wait_for_url(f"**/timeline?runs={run.run_id}")
    expect(page.get_by_role("button", name="Load an example trace")).to_have_count(0)
    page.close()

    visit.dashboard.delete(run.run_id)
    page = visit.open("/live")
    page.get_by_role("button", name="Start the demo sweep").dblclick()
    expect(page.get_by_role("heading", name="Demo sweep")).to_be_visible()
    eventually(lambda: drawn_count(page, "live_roofline:points") > 1)
    (run,) = visit.dashboard.runs()
    visit.dashboard.cancel(run.run_id)
    eventually(lambda: visit.dashboard.run(run.run_id).state.is_final)


@pytest.mark.slow
def test_two_examples_are_compared(visit: Visit) -> None:
    page = visit.open("/compare")
    page.get_by_role("button", name="Load two example traces").click()
    eventually(lambda: drawn_count(page, "changes:bars") > 10)
    chosen = [page.get_by_label(label).locator("option:checked") for label in ("Baseline (as is)", "Candidate (to be)")]
    assert ["written_out" in option.inner_text() for option in chosen] == [True, False]
