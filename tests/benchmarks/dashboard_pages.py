"""How long a page takes in a real browser: the first one of a visitor, and the switch to each other page.

The yardstick is a bare Panel page with three Bokeh figures and six widgets, opened in the same run: each page is held against it. A page
counts as there when Bokeh has drawn it and nothing that it asked for is on its way.

    python -m tests.benchmarks.dashboard_pages [--rounds 5]
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import BrowserContext, Page, sync_playwright

from kernalyse.services.ui.shell import NAVIGATION
from tests.benchmarks.dashboard_alone import chromium_or_exit, dashboard_alone
from tests.browser.charts import IS_DRAWN
from tests.browser.dashboard import CHROMIUM_ARGUMENTS, Dashboard

FIRST_GOAL_RATIO: Final = 1.5
SWITCH_MEDIAN_GOAL_MS: Final = 500
SWITCH_WORST_GOAL_MS: Final = 800
UP_S: Final = 10.0
"""How long the server has been up when the first page is opened: by then its charts are rendered."""

ENDED_S: Final = 90.0
"""After which the server has forgotten tabs that were closed."""

TIMEOUT_MS: Final = 60_000
IS_IDLE: Final = "() => window.Bokeh !== undefined && Bokeh.documents.length > 0 && Bokeh.documents.every((document) => document.is_idle)"
IS_THERE: Final = f"() => ({IS_DRAWN})() && ({IS_IDLE})()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    path = chromium_or_exit("pages")
    with dashboard_alone() as dashboard, bare_server() as bare_url, sync_playwright() as playwright:
        run_id = finished_sweep(dashboard)
        time.sleep(UP_S)
        browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_ARGUMENTS))
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        context.request.get(f"{dashboard.url}/?token={dashboard.ui.token}")
        urls = {name: f"{dashboard.url}/{name}?runs={run_id}" for name in NAVIGATION}
        for url, condition in ((bare_url, IS_IDLE), *((url, IS_THERE) for url in urls.values())):
            opened_ms(context, url, condition)  # the browser's cache is warm from here on
        bare = [opened_ms(context, bare_url, IS_IDLE) for _ in range(rounds)]
        yardstick_ms = statistics.median(bare)
        print(f"bare Panel page: median {yardstick_ms:.0f} ms, worst {max(bare):.0f} ms of {rounds}")
        for name, url in urls.items():
            found = [opened_ms(context, url, IS_THERE) for _ in range(rounds)]
            ratio = statistics.median(found) / yardstick_ms
            print(f"{NAVIGATION[name]}, opened: median {statistics.median(found):.0f} ms, x{ratio:.2f} (goal x{FIRST_GOAL_RATIO})")
        print("while the tabs that were closed meanwhile end (a full collection of the garbage walks through all of them):")
        report_switches(switches_ms(context, urls["live"], rounds))
        time.sleep(ENDED_S)
        print("when they have ended:")
        report_switches(switches_ms(context, urls["live"], rounds))
        browser.close()


@contextmanager
def bare_server() -> Iterator[str]:
    """Serve the bare page, and yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "-m", "tests.benchmarks.bare_page", str(port)]) as server:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/bare"
        finally:
            server.terminate()


def finished_sweep(dashboard: Dashboard) -> str:
    run = dashboard.start_sweep("saxpy", "vector_add", seconds=0.2)
    while not dashboard.run(run.run_id).state.is_final:
        time.sleep(0.1)
    return run.run_id


def opened_ms(context: BrowserContext, url: str, condition: str) -> float:
    """Open the page in a tab of its own."""
    page = context.new_page()
    start = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_function(condition, timeout=TIMEOUT_MS)
    took_ms = (time.perf_counter() - start) * 1e3
    page.close()
    return took_ms


def switches_ms(context: BrowserContext, url: str, rounds: int) -> dict[str, list[float]]:
    """Go through all pages of one tab, and return what each switch took, by the page's name."""
    page = context.new_page()
    page.goto(url)
    page.wait_for_function(IS_THERE, timeout=TIMEOUT_MS)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in (*(name for name in NAVIGATION if name != "live"), "live"):
            found.setdefault(name, []).append(switch_ms(page, name))
    page.close()
    return found


def switch_ms(page: Page, name: str) -> float:
    start = time.perf_counter()
    page.locator(f'nav a[href^="/{name}?"]').click(no_wait_after=True)
    page.wait_for_function(f"() => location.pathname === '/{name}' && ({IS_THERE})()", timeout=TIMEOUT_MS)
    return (time.perf_counter() - start) * 1e3


def report_switches(found: dict[str, list[float]]) -> None:
    for name, took_ms in found.items():
        first, again = took_ms[0], took_ms[1:] or took_ms
        print(
            f"switch to {NAVIGATION[name]}: first {first:.0f} ms, then median {statistics.median(again):.0f} ms, worst {max(again):.0f} ms"
        )
    every = [one for took_ms in found.values() for one in took_ms]
    goals = f"(goals {SWITCH_MEDIAN_GOAL_MS}, {SWITCH_WORST_GOAL_MS})"
    print(f"all {len(every)} switches: median {statistics.median(every):.0f} ms, worst {max(every):.0f} ms {goals}")


if __name__ == "__main__":
    main()
