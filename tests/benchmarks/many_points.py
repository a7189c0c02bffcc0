"""A filter on the Roofline page with 100 000 points, from the wish to its drawing: `python -m tests.benchmarks.many_points`.

The points are operations of an accelerator, imported as commands.json; services and Chromium share this machine's cores. The
server's share is the processor time of the dashboard between wish and drawing.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import psutil
from playwright.sync_api import Page, expect, sync_playwright

from kernalyse.trace_upload import OutgoingTrace, TraceUpload
from tests.browser.charts import SOURCE
from tests.browser.dashboard import CHROMIUM_ARGUMENTS, Dashboard, chromium, dashboard_of
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcesses

POINT_COUNT = 100_000
WISHES = (
    ("Category", "matmul"),
    ("Efficiency", "memory bound"),
    ("Efficiency", "all"),
    ("Category", "all"),
    ("Data type", "int8"),
    ("Data type", "all"),
)
ROUND_COUNT = 4

UNTIL_DRAWN = f"""(select, value) => new Promise((resolve) => {{
  const source = ({SOURCE})("roofline:points")
  const begin = performance.now()
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame(() => {{
    source.properties.data.change.disconnect(drawn)
    resolve(performance.now() - begin)
  }}))
  source.properties.data.change.connect(drawn)
  select.value = value
  select.dispatchEvent(new Event("change", {{bubbles: true}}))
}})"""
"""Two animation frames after the change: the first one draws it."""


def operations() -> list[dict[str, object]]:
    made = random.Random(0)
    found: list[dict[str, object]] = []
    for _ in range(POINT_COUNT // 2):
        rows, depth, columns = (made.randint(1, 4096) for _ in range(3))
        matmul = {"type": "ID_MM", "data_type": "INT8", "input_mat1": [rows, depth], "input_mat2": [depth, columns]}
        spread = {"data_type": "FP16", "macs": 10 ** made.uniform(5, 10), "bytes": 10 ** made.uniform(5, 8)}
        for operation in (matmul, {"type": "ID_MINE", **spread}):
            found.append({**operation, "name": f"#{len(found)}", "time_ns": 10 ** made.uniform(4, 7)})
    return found


def import_points(dashboard: Dashboard, directory: Path) -> str:
    path = directory / "commands.json"
    path.write_text(json.dumps(operations()))
    (directory / "roofline_config.json").write_text(json.dumps({"peak_tops": 200.0, "mem_bw": 1000.0, "mem_thresh": 50, "comp_thresh": 40}))
    run_id: str = TraceUpload([OutgoingTrace(path)], lambda _: None).send(dashboard.stub).run.run_id
    return run_id


def show(page: Page, dashboard: Dashboard, run_id: str) -> None:
    """Prints one line per figure."""
    begin = time.perf_counter()
    page.goto(f"{dashboard.url}/roofline?runs={run_id}")
    expect(page.locator(".chart-note")).to_contain_text(f"of {POINT_COUNT:,}".replace(",", "\u202f"), timeout=120_000)
    print(f"   first drawing of {POINT_COUNT} points that the dashboard did not know: {time.perf_counter() - begin:.1f} s")
    server = psutil.Process(dashboard.ui.process.pid)
    walls, shares = [], []
    for name, value in WISHES * ROUND_COUNT:
        page.wait_for_timeout(300)
        before = sum(server.cpu_times()[:2])
        walls.append(page.get_by_label(name, exact=True).evaluate(UNTIL_DRAWN, value))
        shares.append((sum(server.cpu_times()[:2]) - before) * 1000)
    low, middle, high = statistics.quantiles(walls, n=4)
    print(f"   a filter, from wish to drawing: {middle:.0f} ms ({low:.0f} to {high:.0f}); goal: at most 300")
    print(f"   of which the dashboard computes {statistics.median(shares):.0f} ms")


def main() -> None:
    with private_directory() as directory, tempfile.TemporaryDirectory() as files, sync_playwright() as playwright:
        services = ServiceProcesses(directory)
        try:
            with dashboard_of(services, services.start("profiler")) as dashboard:
                run_id = import_points(dashboard, Path(files))
                page = playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_ARGUMENTS)).new_page()
                page.set_default_timeout(120_000)
                page.goto(f"{dashboard.url}/?token={dashboard.ui.token}")
                show(page, dashboard, run_id)
        finally:
            services.stop_all()


if __name__ == "__main__":
    main()
