"""A run on a busy host, under ceilings of a busy host: every page that shows its numbers says so, beside them and at the charts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from playwright.sync_api import expect

from kernalyse.services.analyzer.export.results import results_document
from kernalyse.services.core.model import Ceiling, CeilingsMeasured, RunState, StateChanged
from tests.browser.charts import column
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.dashboard import Dashboard
from tests.browser.test_live import eventually
from tests.integration.profiler_stand_in import configuration, measurement
from tests.unit.run_results import results_of

pytestmark = pytest.mark.browser

DEVICE: Final = "cuda:0"
BUSY_RATIO: Final = 0.98
CEILINGS: Final = (
    Ceiling(DEVICE, "dram", "bytes_per_s", 11.5e9, "copy", "measured", host_busy_ratio=BUSY_RATIO),
    Ceiling(DEVICE, "float32", "flop_per_s", 60e9, "fma", "measured", host_busy_ratio=BUSY_RATIO),
)
TOLD: Final = "host 98 % busy"
LAYERS_OF_NAMES: Final = {"live": "live_roofline:names", "roofline": "roofline:names"}
OF_CEILINGS: Final = "ceilings of a host 98 % busy"


@pytest.fixture(scope="module")
def busy_run_id(dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two configurations, imported; other programs kept the host busy for the first."""
    directory = tmp_path_factory.mktemp("busy")
    results = results_of(
        directory / "store",
        CeilingsMeasured(CEILINGS),
        configuration(0, flop=2e3, bytes_=12e3),
        replace(measurement(0), host_busy_ratio=BUSY_RATIO),
        configuration(1, kernel_name="matmul_naive", flop=2e4, bytes_=12e3),
        measurement(1),
        StateChanged(RunState.SUCCEEDED),
    )
    path = directory / "busy.json"
    path.write_text(results_document(results))
    return dashboard.import_file(path)


@pytest.mark.parametrize("page_name", ["live", "roofline"])
def test_rooflines_mark_points_and_ceilings_of_a_busy_host(visit: Visit, busy_run_id: str, page_name: str) -> None:
    page = visit.open(f"/{page_name}?runs={busy_run_id}")
    expect(
        page.locator(".card.chart", has_text="Arithmetic")
        .or_(page.locator(".card.chart", has_text="Roofline"))
        .locator(".chart-note")
        .first
    ).to_contain_text(f"⚠ 2 of 2 disturbed: {TOLD}, {OF_CEILINGS}.")
    row = page.locator(".results .tabulator-row").filter(has_text="saxpy")
    expect(row).to_contain_text("⚠ disturbed")
    expect(row).to_contain_text(f"{TOLD}; {OF_CEILINGS}")
    eventually(
        lambda: (
            [text.strip() for text in column(page, LAYERS_OF_NAMES[page_name], "text")] == ["DRAM 11.5 GB/s ⚠", "float32 60.0 Gflop/s ⚠"]
        )
    )
    see_that_it_fits(page, 390, 1280)


def test_the_kernels_page_marks_rows_and_charts_of_a_busy_host(visit: Visit, busy_run_id: str) -> None:
    page = visit.open(f"/kernels?runs={busy_run_id}")
    for chart in ("Heatmap", "Arithmetic intensity", "Performance"):
        note = page.locator(".card.chart", has=page.get_by_role("heading", name=chart, exact=True)).locator(".chart-note")
        expect(note).to_contain_text(f"⚠ 2 of 2 disturbed: {TOLD}")
    row = page.locator(".listed .tabulator-row").filter(has_text="saxpy")
    expect(row.locator(".problem")).to_have_text(TOLD)
    row.locator(".tabulator-cell:visible").first.click()
    expect(page.locator(".detail.text")).to_contain_text(f"Disturbed by{TOLD}")
    see_that_it_fits(page, 390, 1280)
