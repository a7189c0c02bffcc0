"""How long after a sample was taken it is on a screen: worker's stamp to the animation frame that draws it; of that, from the server on.

Starts the three services in private directories, keeps the kernels to one core, and lets a real Chromium measure with the same
clock that the worker stamps with. Prints the median and the 95th percentile for one viewer and for ten (the browser and
nine socket clients). From the server means from the first frame of its message, which loopback passes on at once.

    python -m tests.benchmarks.live_latency [--seconds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any, Final

import numpy as np
from playwright.async_api import Browser, async_playwright

from tests.benchmarks.dashboard_alone import chromium_or_exit, dashboard_alone
from tests.browser.charts import SOURCE
from tests.browser.dashboard import CHROMIUM_ARGUMENTS, Dashboard
from tests.browser.socket_viewer import SocketViewer, all_served, log_in

VIEWER_COUNTS: Final = (1, 10)
TARGETS_MS: Final[dict[int, tuple[float | None, float]]] = {1: (None, 150.0), 10: (None, 200.0)}

PREPARING_S: Final = 90.0
"""After its start a server renders charts for the pages that nobody has opened yet; it does so once."""

SERVER_TARGET_MS: Final = 33.0

NOTE_ARRIVALS: Final = """
  const Socket = window.WebSocket
  window.WebSocket = class extends Socket {
    constructor(...options) {
      super(...options)
      this.addEventListener("message", ({data}) => {
        if (typeof data === "string" && data.startsWith('{"msgid"')) window.arrival = performance.now()
      })
    }
  }
"""

MEASURE: Final = f"""() => {{
  const source = ({SOURCE})("samples:samples")
  window.latencies = []
  let seen = 0
  const drawn = () => {{
    const stamps = source.data.measured_unix_ms
    const newest = stamps[stamps.length - 1]
    if (!(newest > seen)) return
    seen = newest
    const arrival = window.arrival
    requestAnimationFrame(() => window.latencies.push([Date.now() - newest, performance.now() - arrival]))
  }}
  source.streaming.connect(drawn)
  source.properties.data.change.connect(drawn)
}}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of watching for each number of viewers")
    seconds = parser.parse_args().seconds
    path = chromium_or_exit("live latency")
    with dashboard_alone() as dashboard:
        time.sleep(PREPARING_S)
        asyncio.run(measure(dashboard, path, seconds))


async def measure(dashboard: Dashboard, chromium_path: str, seconds: float) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path, args=list(CHROMIUM_ARGUMENTS))
        try:
            for viewer_count in VIEWER_COUNTS:
                report(viewer_count, await latencies_ms(dashboard, browser, viewer_count, seconds))
        finally:
            await browser.close()


async def latencies_ms(dashboard: Dashboard, browser: Browser, viewer_count: int, seconds: float) -> list[tuple[float, float]]:
    """Return of each update that was drawn how old its newest sample was, and how long ago its message came."""
    run = dashboard.start_sweep("saxpy", "vector_add", seconds=1.0, sizes=tuple(range(2**18, 2**18 + 200 * 4096, 4096)))
    cookie = log_in(dashboard.ui.address, dashboard.ui.token)
    viewers = [SocketViewer(dashboard.ui.address, cookie) for _ in range(viewer_count - 1)]
    watching = [asyncio.create_task(viewer.watch()) for viewer in viewers]
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    await context.add_init_script(NOTE_ARRIVALS)
    page = await context.new_page()
    try:
        await page.goto(f"{dashboard.url}/live?token={dashboard.ui.token}")
        await page.goto(f"{dashboard.url}/live?runs={run.run_id}")
        await page.wait_for_selector("[data-ready]", timeout=60_000)
        await page.wait_for_function(f'() => ({SOURCE})("samples:samples")?.length > 0', timeout=60_000)
        await all_served(viewers, watching)
        await asyncio.sleep(1)
        await page.evaluate(MEASURE)
        await asyncio.sleep(seconds)
        found: list[Any] = await page.evaluate("() => window.latencies")
    finally:
        await context.close()
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await asyncio.to_thread(dashboard.cancel, run.run_id)
    return [(float(age), float(since_arrival)) for age, since_arrival in found]


def report(viewer_count: int, found_ms: list[tuple[float, float]]) -> None:
    viewers = "1 viewer  " if viewer_count == 1 else f"{viewer_count} viewers"
    if not found_ms:
        print(f"sample to screen, {viewers}: no update was drawn")
        return
    (median, server_median), (p95, server_p95) = np.percentile(found_ms, [50, 95], axis=0)
    wanted_median, wanted_p95 = TARGETS_MS[viewer_count]
    targets = f"targets {f'{wanted_median:.0f} / ' if wanted_median else 'p95 '}{wanted_p95:.0f} ms"
    print(f"sample to screen, {viewers}: median {median:.0f} ms, p95 {p95:.0f} ms over {len(found_ms)} updates ({targets})")
    print(f"server to screen, {viewers}: median {server_median:.0f} ms, p95 {server_p95:.0f} ms (target p95 {SERVER_TARGET_MS:.0f} ms)")


if __name__ == "__main__":
    main()
