"""The Timeline page over a large trace: `python -m tests.benchmarks.timeline [COPIES]`.

Imports h100x2_mfu_before.sqlite in so many copies (2500 are 10 M kernels). Printed are, over windows of all lengths, the time from the
wish for a window until the columns of its bars are ready on the dashboard's server, the time that a stretch's statistics and a
search take, and in Chromium that from a turn of the wheel to the frame that shows the new tile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from kernalyse.client import Client
from kernalyse.services.core.model import Filter, FilterOperator
from kernalyse.services.ui.charts import timeline
from kernalyse.services.ui.charts.timeline_rows import Looks, timeline_rows
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.data.timeline_questions import Outline, TileRequest, TimelineQuestions, TimeWindow
from tests.benchmarks.trace_reading import LARGE_COPIES, SHARED, SOURCE, run
from tests.benchmarks.warm_tables import COPIES, IMPORT_MAX_BYTES
from tests.browser.charts import SOURCE as CHART_SOURCE
from tests.browser.dashboard import CHROMIUM_ARGUMENTS, chromium
from tests.service_processes import ServiceProcess, ServiceProcesses

WIDTH_PX = 1500
LEVELS = 8
WINDOWS_PER_LEVEL = 6
GOAL = "(goal: at most 250 ms)"
WHEEL_GOAL = "(goal: at most 150 ms)"
WHEEL_COUNT = 12

WATCH_TILES = f"""
() => {{
  const source = ({CHART_SOURCE})("timeline:pixels")
  window.drawn = []
  source.properties.data.change.connect(() => requestAnimationFrame(() => window.drawn.push(performance.now())))
  document.addEventListener("wheel", () => {{ window.turned = performance.now() }}, true)
}}
"""


async def timed(work: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
    start = time.monotonic()
    answer = await work
    return time.monotonic() - start, answer


async def draw(ask: TimelineQuestions, run_id: str, outline: Outline, view: TimeWindow) -> None:
    """What the page does between a turn of the wheel and its message to the browser."""
    request = TileRequest.for_view(view, outline.whole, WIDTH_PX)
    tile = await ask.tile(run_id, request)
    rows = timeline_rows(outline.lanes, outline.devices, outline.processes)
    drawn = timeline.drawn_tile(tile.rows, rows, Looks(), request.pixel_ns)
    timeline.label_columns(drawn, view.start_ns, view.end_ns, request.pixel_ns)


async def measure(client: AnalyzerClient, run_id: str) -> None:
    ask = TimelineQuestions(client)
    first_s, outline = await timed(ask.outline(run_id))
    again_s, _ = await timed(ask.outline(run_id))
    whole = outline.whole
    print(f"  outline of the trace: first {first_s:.1f} s (worked out once), then {again_s * 1e3:.0f} ms")
    random = Random(1)
    windows = [whole]
    for level in range(1, LEVELS):
        length_ns = max(whole.length_ns // 8**level, 1)
        starts = (random.randrange(whole.start_ns, whole.end_ns - length_ns) for _ in range(WINDOWS_PER_LEVEL))
        windows += [TimeWindow(start, start + length_ns) for start in starts]
    took = [(await timed(draw(ask, run_id, outline, window)))[0] for window in windows]
    print(f"  {len(took)} windows, wish to columns: median {median(took) * 1e3:.0f} ms, slowest {max(took) * 1e3:.0f} ms {GOAL}")
    took = [(await timed(ask.summary(run_id, window)))[0] for window in (whole, *windows)][1:]
    print(f"  statistics of a stretch: all of it {took[0] * 1e3:.0f} ms, others median {median(took[1:]) * 1e3:.0f} ms {GOAL}")
    filters = (Filter("name", "flash", FilterOperator.CONTAINS),)
    count_s, count = await timed(ask.match_count(run_id, filters))
    next_s, _ = await timed(ask.match_at(run_id, filters, count // 2))
    print(f"  search: {count} matches counted in {count_s * 1e3:.0f} ms, the next one in {next_s * 1e3:.0f} ms")


def turn_the_wheel(ui: ServiceProcess, run_id: str) -> None:
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        print("  wheel to pixels: skipped, Chromium is not there")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_ARGUMENTS))
        page = browser.new_page(viewport={"width": 1680, "height": 1000})
        page.set_default_timeout(120_000)
        page.goto(f"http://{ui.address}/?token={ui.token}")
        page.goto(f"http://{ui.address}/timeline?runs={run_id}")
        page.wait_for_selector("[data-ready]")
        page.wait_for_function(f'() => ({CHART_SOURCE})("timeline:pixels")?.length > 0')
        page.wait_for_timeout(3000)
        page.evaluate(WATCH_TILES)
        box = page.locator(".timeline .bars").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
        took = []
        for _ in range(WHEEL_COUNT):
            page.evaluate("window.drawn.length = 0")
            page.mouse.wheel(0, -480)
            page.wait_for_function("window.drawn.length > 0")
            took.append(page.evaluate("window.drawn[0] - window.turned"))
            page.wait_for_timeout(700)
        browser.close()
    print(f"  Chromium, wheel to the frame with the new tile: median {median(took):.0f} ms, slowest {max(took):.0f} ms {WHEEL_GOAL}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("copies", nargs="?", type=int, default=COPIES, help=f"of the trace; default: {COPIES}")
    parser.add_argument(
        "--directory", type=Path, help="where the large file is made, and found again; default: a new one, deleted afterwards"
    )
    options = parser.parse_args()
    if not SOURCE.exists():
        print(f"   skipped: {SOURCE} is not there, nor are the tools beside it")
        return
    with tempfile.TemporaryDirectory(prefix="kn-bench-") as temporary:
        store, directory = Path(temporary), options.directory or Path(temporary)
        path = directory / f"traces_{options.copies}.sqlite"
        if not path.exists():
            short = ["--min-range-ns", "100000"] if options.copies >= LARGE_COPIES else []
            run(["python", str(SHARED / "tools" / "scale_nsys.py"), str(SOURCE), str(options.copies), str(path), *short])
        for name in ("config", "data", "run"):
            (store / name).mkdir(mode=0o700)
            os.environ[f"XDG_{'RUNTIME_DIR' if name == 'run' else name.upper() + '_HOME'}"] = str(store / name)
        os.environ["KERNALYSE_ANALYZER_IMPORT_MAX_BYTES"] = str(IMPORT_MAX_BYTES)
        services = ServiceProcesses(store)
        try:
            analyzer = services.start("analyzer")
            start = time.monotonic()
            with Client(analyzer.endpoint) as client:
                run_id = client.import_trace(path).run.run_id
            print(f"{options.copies} copies: imported in {time.monotonic() - start:.1f} s")
            asking = AnalyzerClient(analyzer.endpoint, lambda: None)
            asking.start()
            asyncio.run(measure(asking, run_id))
            asking.stop()
            turn_the_wheel(services.start("ui", "--analyzer-address", analyzer.address), run_id)
        finally:
            services.stop_all()


if __name__ == "__main__":
    main()
