"""The Nodes page: a node added, looked at, and removed again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.charts import drawn_count
from tests.browser.conftest import Visit
from tests.browser.dashboard import MANY_SIZES, dashboard_of
from tests.browser.test_live import eventually
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses

pytestmark = pytest.mark.browser


@pytest.fixture
def profiler() -> Iterator[ServiceProcess]:
    """One more, that nobody collects from."""
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            yield services.start("profiler", "--telemetry-interval-s", "0.2")
        finally:
            services.stop_all()


@pytest.mark.slow
def test_a_node_is_added_looked_at_and_removed(visit: Visit, profiler: ServiceProcess) -> None:
    page = visit.open("/nodes")
    cards = page.locator(".node-list .run-row")
    expect(cards).to_have_count(1)
    expect(page.locator(".device-entry").first).to_contain_text("opencl:")
    page.get_by_role("button", name="Add a node").click()

    def add(address: str, token: str, certificate: str = "") -> None:
        page.get_by_label("Address").fill(address)
        page.get_by_label("Token").fill(token)
        page.get_by_label("CA certificate").fill(certificate)
        page.get_by_role("button", name="Add", exact=True).click()

    problem = page.locator(".add-node .problem")
    add("nowhere", "x")
    expect(problem).to_contain_text("expected host:port, with a port from 1 to 65535, or unix:PATH")
    add(profiler.address, "a wrong one")
    expect(problem).to_contain_text("token")
    add(profiler.address, profiler.token, "no PEM")
    expect(problem).to_contain_text("no PEM certificate")
    add(profiler.address, profiler.token)
    expect(cards).to_have_count(2)
    expect(problem).to_have_count(0)
    expect(page.get_by_label("Token")).to_have_value("")

    # What was added is shown, and the address says so.
    page.wait_for_url(lambda url: "node=" in url)
    expect(page.locator(".node-facts")).to_contain_text(profiler.address)
    eventually(lambda: drawn_count(page, "node_utilization:series0") > 1)
    expect(page.locator(".card.chart", has=page.get_by_role("heading", name="Power"))).to_be_hidden()  # no reading has such a figure
    expect(page.locator(".node-runs")).to_contain_text("Idle")

    page.get_by_role("button", name="Remove", exact=True).click()
    page.get_by_role("button", name="Keep it").click()
    expect(cards).to_have_count(2)
    page.get_by_role("button", name="Remove", exact=True).click()
    page.get_by_role("button", name="Remove the node").click()
    expect(cards).to_have_count(1)
    expect(page.locator(".node-facts")).not_to_contain_text(profiler.address)


@pytest.mark.slow
def test_a_run_whose_node_has_gone_says_so(browser: Browser) -> None:
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            profiler = services.start("profiler")
            with dashboard_of(services, profiler) as own:
                run = own.start_sweep("saxpy", sizes=MANY_SIZES)
                page = browser.new_page()
                page.goto(f"{own.url}/live?runs={run.run_id}&token={own.ui.token}")
                expect(page.locator(".run-head .state").first).to_have_text("running")
                profiler.kill()
                expect(page.locator("p.problem.block").first).to_contain_text("Check that it runs")
                page.close()
        finally:
            services.stop_all()


def test_what_a_node_runs_links_to_it(visit: Visit) -> None:
    run = visit.dashboard.start_sweep("saxpy", title="seen from its node", seconds=60, sizes=MANY_SIZES)
    page = visit.open("/nodes")
    link = page.locator(".node-runs a", has_text="seen from its node")
    expect(link).to_have_attribute("href", f"/live?runs={run.run_id}")
    visit.dashboard.cancel(run.run_id)
    expect(link).to_have_count(0)
