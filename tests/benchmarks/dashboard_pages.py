"""How long a page takes in a real browser: the first one of a visitor, and the switch to each other page.

A page counts as useful when its bridge is attached and the charts and tables of the shown run are drawn: no text says that
something is on its way.

    python -m tests.benchmarks.dashboard_pages [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

from kernalyse.services.ui.state import PAGE_TITLES
from tests.benchmarks.dashboard_alone import chromium_or_exit, dashboard_alone
from tests.browser.dashboard import CHROMIUM_ARGUMENTS, Dashboard

FIRST_GOAL_MS: Final = 2000
SWITCH_GOAL_MS: Final = 700
TIMEOUT_MS: Final = 60_000

IS_USEFUL: Final = """() => document.querySelector(".shell[data-ready]") !== null
  && !/Waiting for|is being asked|on its way/.test(document.querySelector("main").innerText)"""
"""A page is ready when Bokeh has drawn its figures."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    path = chromium_or_exit("pages")
    with dashboard_alone() as dashboard, sync_playwright() as playwright:
        run_id = finished_sweep(dashboard)
        browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_ARGUMENTS))
        firsts = [first_page_ms(browser, dashboard, run_id) for _ in range(rounds)]
        report("first page of a new browser profile", firsts, FIRST_GOAL_MS)
        for page_name, found in switches_ms(browser, dashboard, run_id, rounds).items():
            report(f"switch to {PAGE_TITLES[page_name]}", found, SWITCH_GOAL_MS)  # type: ignore[index]
        browser.close()


def finished_sweep(dashboard: Dashboard) -> str:
    run = dashboard.start_sweep("saxpy", "vector_add", seconds=0.2)
    while not dashboard.run(run.run_id).state.is_final:
        time.sleep(0.1)
    return run.run_id


def first_page_ms(browser: Browser, dashboard: Dashboard, run_id: str) -> float:
    """Nothing is in the browser's cache but the cookie."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.request.get(f"{dashboard.url}/?token={dashboard.ui.token}")
    start = time.perf_counter()
    page.goto(f"{dashboard.url}/live?runs={run_id}", wait_until="commit")
    page.wait_for_function(IS_USEFUL, timeout=TIMEOUT_MS)
    took_ms = (time.perf_counter() - start) * 1e3
    context.close()
    return took_ms


def switches_ms(browser: Browser, dashboard: Dashboard, run_id: str, rounds: int) -> dict[str, list[float]]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.goto(f"{dashboard.url}/?token={dashboard.ui.token}")
    page.goto(f"{dashboard.url}/live?runs={run_id}")
    page.wait_for_function(IS_USEFUL, timeout=TIMEOUT_MS)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for page_name in (*[name for name in PAGE_TITLES if name != "live"], "live"):
            found.setdefault(page_name, []).append(switch_ms(page, page_name))
    context.close()
    return found


def switch_ms(page: Page, page_name: str) -> float:
    start = time.perf_counter()
    page.locator(f'#f-nav a[href^="/{page_name}?"]').click(no_wait_after=True)
    page.wait_for_function(
        f"""() => document.querySelector('.shell[data-page="{page_name}"]') !== null && ({IS_USEFUL})()""", timeout=TIMEOUT_MS
    )
    return (time.perf_counter() - start) * 1e3


def report(what: str, found_ms: list[float], goal_ms: float) -> None:
    print(f"{what}: median {statistics.median(found_ms):.0f} ms, worst {max(found_ms):.0f} ms of {len(found_ms)} (goal {goal_ms:.0f})")


if __name__ == "__main__":
    main()
