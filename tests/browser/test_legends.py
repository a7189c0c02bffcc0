"""Legends of all pages: each entry is a button that hides its series and shows it again, while rows arrive too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Locator, Page, expect

from kernalyse.services.core.model import RunState
from tests.browser.charts import column
from tests.browser.conftest import Visit
from tests.browser.dashboard import Dashboard
from tests.browser.test_layers import import_net
from tests.browser.test_live import eventually, settled
from tests.unit.compat.test_model_dashboards import PROFILE
from tests.unit.nsys_export import call, kernel, nvtx, write_export

pytestmark = pytest.mark.browser

KERNELS = ("saxpy", "reduce_sum")
"""Of a category each: elementwise and reduction."""


@pytest.fixture(scope="module")
def sweeps(dashboard: Dashboard) -> list[str]:
    """Two runs of two kernels, of a category each."""
    runs = [dashboard.start_sweep(*KERNELS, title=title, seconds=0.05, sizes=(65_536,)) for title in ("as is", "to be")]
    eventually(lambda: all(dashboard.run(run.run_id).state is RunState.SUCCEEDED for run in runs))
    return [run.run_id for run in runs]


SEEN: Final = """(chart) => new Set(Bokeh.documents.flatMap((shown) => shown.roots().flatMap((root) => [...root.references()])))
  .values().filter(({visible, data_source}) => visible && data_source?.name?.startsWith(chart + ":"))
  .reduce((sum, {data_source}) => sum + data_source.length, 0)"""


def seen_count(page: Page, chart: str) -> int:
    """Rows of all layers of the chart that are not hidden."""
    count: int = page.evaluate(SEEN, chart)
    return count


def legend(page: Page, title: str) -> Locator:
    """Return the card with this title, that has a legend."""
    return (
        page.locator(".card", has=page.get_by_role("heading", name=title, exact=True)).filter(has=page.locator("button[data-series]")).last
    )


def see_that_entries_hide(page: Page, title: str, *charts: str) -> None:
    """The first entry of the legend in the card of this title, by mouse and by keyboard."""
    entry = legend(page, title).locator("button[data-series]").first
    expect(entry).to_have_attribute("aria-pressed", "true")
    eventually(lambda: all(seen_count(page, chart) > 0 for chart in charts))
    before = [seen_count(page, chart) for chart in charts]
    entry.click()
    expect(entry).to_have_attribute("aria-pressed", "false")
    page.wait_for_url(re.compile("hidden="))
    eventually(lambda: all(seen_count(page, chart) < count for chart, count in zip(charts, before, strict=True)))
    entry.press("Enter")
    expect(entry).to_have_attribute("aria-pressed", "true")
    page.wait_for_url(lambda url: "hidden=" not in url)
    eventually(lambda: all(seen_count(page, chart) >= count for chart, count in zip(charts, before, strict=True)))  # telemetry goes on


@pytest.mark.slow
def test_of_a_run_that_is_over(visit: Visit, sweeps: list[str]) -> None:
    page = visit.open(f"/live?runs={sweeps[0]}")
    expect(page.locator(".results .tabulator-row")).to_have_count(2)
    eventually(lambda: len(column(page, "samples:medians", "label")) == 2)
    see_that_entries_hide(page, "Roofline", "samples", "live_roofline")
    see_that_entries_hide(page, "Telemetry", "telemetry")


@pytest.mark.slow
def test_of_kernels_and_of_samples(visit: Visit, sweeps: list[str]) -> None:
    page = visit.open(f"/kernels?runs={sweeps[0]}&configuration={sweeps[0]}.0")
    for title in ("Arithmetic intensity", "Performance"):
        see_that_entries_hide(page, title, "intensity", "performance")
    see_that_entries_hide(page, "Samples of the chosen row", "order", "distribution")
    for name in ("elementwise", "reduction"):
        legend(page, "Performance").get_by_role("button", name=name).click()
    expect(legend(page, "Performance").locator(".chart-note")).to_contain_text("The legend hides all")


def test_of_two_runs(visit: Visit, sweeps: list[str]) -> None:
    page = visit.open(f"/compare?baseline={sweeps[0]}&candidate={sweeps[1]}&allow=method")
    for title, chart in (("Speed-up", "speedups"), ("Roofline, before and after", "compared_roofline")):
        see_that_entries_hide(page, title, chart)
    card = page.locator(".chart", has=page.get_by_role("heading", name="Roofline, before and after"))
    for name in ("before", "after"):
        card.get_by_role("button", name=name).click()
    expect(card.get_by_role("button", name="before")).to_be_visible()  # or nobody could show them again


def test_of_a_node(visit: Visit) -> None:
    page = visit.open("/nodes")
    for title in ("Utilization", "Memory used"):
        see_that_entries_hide(page, title, "node_utilization", "node_memory")


@pytest.mark.slow
def test_of_whole_passes(visit: Visit, tmp_path: Path) -> None:
    other = PROFILE | {"metadata": {"gpu_name": "B", "batch_size": 4}}
    files = {"first.json": PROFILE, "second.json": other}
    run_ids = [visit.dashboard.import_file(tmp_path / name, content) for name, content in files.items()]
    page = visit.open(f"/layers?runs={','.join(run_ids)}")
    see_that_entries_hide(page, "Whole passes", "latency", "throughput", "width", "percentiles", "efficiency")
    see_that_entries_hide(page, "Percentiles of latency", "percentiles", "efficiency")
    see_that_entries_hide(page, "Efficiency: throughput for each layer", "percentiles", "efficiency")


@pytest.mark.parametrize("color", ["efficiency", "bound", "category"])
def test_of_a_tree_of_layers(visit: Visit, tmp_path: Path, color: str) -> None:
    page = visit.open(f"/layers?runs={import_net(visit, tmp_path)}&layer_color={color}")
    see_that_entries_hide(page, "Model tree", "icicle")
    if color == "category":
        legend(page, "Model tree").locator("button[data-series]").first.click()
        page.wait_for_url(re.compile("hidden="))
        page.get_by_label("Colour").select_option("bound")
        page.wait_for_url(lambda url: "hidden=" not in url)  # which was of other names


@pytest.mark.slow
def test_of_a_timeline(visit: Visit, tmp_path: Path) -> None:
    starts = range(0, 2_000_000, 200_000)
    path = write_export(
        tmp_path / "gaps.sqlite",
        kernels=[kernel(start + 20_000, start + 80_000, place + 1) for place, start in enumerate(starts)],
        calls=[call(start + 5_000, start + 9_000, place + 1) for place, start in enumerate(starts)],
        ranges=[nvtx(start, start + 90_000, None, textId=2) for start in starts],
        gpus=[{}],
        strings={1: "gemm", 2: "forward"},
    )
    page = visit.open(f"/timeline?runs={visit.dashboard.import_file(path)}")
    gaps = legend(page, "Timeline").locator("button[data-series]", has_text="gap:").first
    eventually(lambda: len(column(page, "timeline:gaps", "left")) > 5)
    settled(lambda: seen_count(page, "timeline"))  # asked for anew when the browser has told its width
    see_that_entries_hide(page, "Timeline", "timeline")
    gaps.click()
    eventually(lambda: not column(page, "timeline:gaps", "left"))
    assert column(page, "timeline:events", "left")


@pytest.mark.slow
def test_what_is_hidden_stays_hidden_while_rows_arrive(visit: Visit) -> None:
    page = visit.open("/live")
    sizes = tuple(range(65_536, 65_536 * 7, 65_536))
    run = visit.dashboard.start_sweep(*KERNELS, title="hidden from", seconds=0.4, sizes=sizes)
    expect(page.locator("h1")).to_have_text("hidden from")
    legend(page, "Roofline").get_by_role("button", name="elementwise").click()
    page.wait_for_url(re.compile("hidden=elementwise"))
    expect(page.locator(".results .tabulator-row").nth(3)).to_be_visible()  # measured and listed, yet not drawn
    assert "saxpy" not in drawn_kernels(page)
    eventually(lambda: len(column(page, "live_roofline:points", "label")) == len(sizes))
    assert drawn_kernels(page) == {"reduce_sum"}
    assert min(column(page, "samples:finished", "configuration")) == len(sizes)
    eventually(lambda: visit.dashboard.run(run.run_id).state.is_final)


def drawn_kernels(page: Page) -> set[str]:
    return {label.split()[0] for source in ("samples:medians", "live_roofline:points") for label in column(page, source, "label")}
