"""The Roofline page with ceilings from three sources, and a point that no device can reach."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from kernalyse.services.analyzer.export.results import results_document
from kernalyse.services.core.model import Ceiling, CeilingsMeasured, CountersStored, KernelResources, RunState, StateChanged
from tests.browser.charts import SOURCE, drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.dashboard import Dashboard
from tests.browser.test_live import eventually
from tests.integration.profiler_stand_in import configuration, measurement
from tests.unit.analyzer.analysis.test_counted_work import NO_WORK
from tests.unit.run_results import results_of

pytestmark = pytest.mark.browser

DEVICE: Final = "cuda:0"
GPU_CEILINGS: Final = (
    Ceiling(DEVICE, "dram", "bytes_per_s", 4.8e12, "copy", "datasheet", "high", "of a table"),
    Ceiling(DEVICE, "float32", "flop_per_s", 66.9e12, "fma", "datasheet", "high", "of a table", 1_980_000_000),
    Ceiling(DEVICE, "float32", "flop_per_s", 66.9e12, "fma", "clock", "medium", "rates times clock", 1_980_000_000),
    Ceiling(DEVICE, "dram", "bytes_per_s", 4.3e12, "copy", "measured", note="Best launch of each form."),
    Ceiling(DEVICE, "l2", "bytes_per_s", 7.5e12, "copy", "measured", note="Best launch of each form."),
    Ceiling(DEVICE, "float32", "flop_per_s", 60e12, "fma", "measured", note="Best launch of each form.", clock_hz=1_755_000_000),
)
DURATION_NS: Final = 5000.0
PLAIN_BYTES, IMPOSSIBLE_BYTES = 12e9, 60e9
"""In 5 ms: 2.4 TB/s, half of what memory can; and 12 TB/s, which not even the L2 can."""


COUNTED: Final = {
    "dram__bytes.sum": 6e9, "lts__t_bytes.sum": 20e9, "l1tex__t_bytes.sum": 40e9,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 12e9
}  # fmt: skip
"""Of the third configuration, which has no formulas: 24 Gflop, and bytes of three levels."""

NCU_REPORT: Final = "\n".join(
    [
        '"ID","Kernel Name","Block Size","Grid Size","CC","Section Name","Metric Name","Metric Unit","Metric Value"',
        *(
            f'"0","counted","(256, 1, 1)","(4, 1, 1)","9.0","Command line profiler metrics","{name}","","{value}"'
            for name, value in (NO_WORK | COUNTED).items()
        ),
    ]
)


@pytest.fixture(scope="module")
def gpu_run_id(dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run on a GPU that this machine lacks, imported: a plain point, an implausible one, and one by counters."""
    directory = tmp_path_factory.mktemp("gpu")
    plain = replace(measurement(0, duration_ns=DURATION_NS * 1000), sm_clock_hz=1_500_000_000)
    too_good = replace(measurement(1, duration_ns=DURATION_NS * 1000), sm_clock_hz=1_400_000_000)
    results = results_of(
        directory / "store",
        CeilingsMeasured(GPU_CEILINGS),
        configuration(0, flop=24e9, bytes_=PLAIN_BYTES),
        replace(plain, resources=KernelResources(theoretical_occupancy_ratio=0.125, register_count=200)),
        configuration(1, kernel_name="too_good", flop=24e9, bytes_=IMPOSSIBLE_BYTES),
        too_good,
        configuration(2, kernel_name="counted", flop=None, bytes_=None),
        measurement(2, duration_ns=DURATION_NS * 1000),
        CountersStored("counters.csv", (2,), "all", "base"),
        StateChanged(RunState.SUCCEEDED),
        ncu_report=NCU_REPORT,
    )
    path = directory / "gpu.json"
    path.write_text(results_document(results))
    return dashboard.import_file(path)


@pytest.fixture
def page(visit: Visit, gpu_run_id: str) -> Page:
    opened = visit.open(f"/roofline?runs={gpu_run_id}")
    eventually(lambda: drawn_count(opened, "roofline:points") == 3)
    return opened


def solid_ceilings(page: Page) -> list[str]:
    """Name and value of every ceiling that counts."""
    texts: list[str] = page.evaluate(f"() => Array.from(({SOURCE})('roofline:names').data.text, text => text.trim())")
    return sorted(texts)


@pytest.mark.slow
def test_the_source_of_ceilings_is_chosen_and_kept_in_the_url(page: Page) -> None:
    efficiency = page.locator(".results .tabulator-row", has_text="saxpy").locator(".tabulator-cell:has(.meter)")
    choice = page.get_by_label("Ceilings")
    expect(choice).to_have_value("best known")
    expect(efficiency).to_have_text("55.8 %")  # 2.4 of 4.3 TB/s
    assert solid_ceilings(page) == ["DRAM 4.30 TB/s", "L2 7.50 TB/s", "float32 60.0 Tflop/s"]

    choice.select_option("datasheet")
    expect(efficiency).to_have_text("50.0 %")
    page.wait_for_url(re.compile("ceilings=datasheet"))
    eventually(lambda: solid_ceilings(page) == ["DRAM 4.80 TB/s", "float32 66.9 Tflop/s"])

    choice.select_option("at the clock")
    eventually(lambda: solid_ceilings(page) == ["DRAM 4.80 TB/s", "L2 7.50 TB/s", "float32 50.7 Tflop/s"])
    expect(page.locator(".chart-note")).to_contain_text("1.50 GHz, the highest clock of the points")

    page.reload()
    page.wait_for_selector("[data-ready]")
    expect(choice).to_have_value("at the clock")
    eventually(lambda: "float32 50.7 Tflop/s" in solid_ceilings(page))


def test_an_implausible_point_has_its_own_shape_and_is_named(page: Page) -> None:
    markers: list[str] = page.evaluate("() => Array.from(Bokeh.documents[0].get_model_by_name('roofline:points').data.marker)")
    assert sorted(markers) == ["asterisk", "square", "square"]
    expect(page.locator(".chart .series")).to_contain_text("✱implausible")
    expect(page.locator(".chart-note")).to_contain_text("1 implausible (✱)")
    row = page.locator(".results .tabulator-row", has_text="too_good")
    expect(row).to_contain_text("implausible")
    expect(row).to_contain_text("It moves 1.6 times what the fastest memory that counts can (l2, 7500.0 GB/s)")
    expect(page.locator(".results .tabulator-row", has_text="saxpy")).not_to_contain_text("implausible")


def place_of(page: Page, label: str) -> tuple[float, float]:
    """Pixels of the point with this label, in the page."""
    x, y = page.evaluate(
        """(label) => {
          const source = (SOURCE)("roofline:points")
          const row = Array.from(source.data.label).indexOf(label)
          const find = (view) => view.model.type === "Figure" ? view : [...view.children()].map(find).find((found) => found)
          const figure = [...Bokeh.index].map(find).find((found) => found)
          const box = figure.el.getBoundingClientRect()
          const {x_scale, y_scale} = figure.frame
          return [box.left + x_scale.compute(source.data.intensity[row]), box.top + y_scale.compute(source.data.rate[row])]
        }""".replace("SOURCE", SOURCE),
        label,
    )
    return x, y


@pytest.mark.slow
def test_seed_002_a_click_on_a_point_opens_its_panel_and_the_url_keeps_it(page: Page) -> None:
    panel = page.locator(".point-card")
    expect(panel).to_be_hidden()
    page.mouse.click(*place_of(page, "saxpy N=1000"))
    expect(panel.locator("h2")).to_have_text("saxpy N=1000")
    for term in ("Flop", "Bytes", "Utilisation", "Bandwidth", "Occupancy", "Bound"):
        expect(panel.locator("dt").get_by_text(term, exact=True)).to_be_visible()
    expect(panel).to_contain_text("At its roof it would take 2.79 ms instead of 5.00 ms")
    expect(panel).to_contain_text("Occupancy is low")
    assert drawn_count(page, "roofline:rings") == 1
    page.wait_for_url(re.compile(r"point=[^&]+\.0"))

    page.reload()
    page.wait_for_selector("[data-ready]")
    expect(panel.locator("h2")).to_have_text("saxpy N=1000")
    page.get_by_role("button", name="Close").click()
    expect(panel).to_be_hidden()
    # The keyboard chooses points in the table.
    page.get_by_role("link", name="counted N=1002").focus()
    page.keyboard.press("Enter")
    expect(panel.locator("h2")).to_have_text("counted N=1002")
    expect(panel).to_contain_text("DRAM would be its limit")


def test_seed_002_efficiency_is_a_filter_and_a_colour(page: Page) -> None:
    page.get_by_label("Efficiency", exact=True).select_option("memory inefficient")
    eventually(lambda: drawn_count(page, "roofline:points") == 1)
    page.wait_for_url(re.compile(r"efficiency=memory\+inefficient"))
    page.get_by_label("Efficiency", exact=True).select_option("all")
    page.get_by_label("Colour and shape").select_option("efficiency")
    expect(page.locator(".chart .series")).to_contain_text("memory inefficient")


def test_points_are_held_against_the_chosen_memory_level(page: Page) -> None:
    level = page.get_by_label("Memory level")
    level.select_option("L2 cache")
    eventually(lambda: drawn_count(page, "roofline:points") == 1)
    eventually(lambda: solid_ceilings(page) == ["L2 7.50 TB/s", "float32 60.0 Tflop/s"])
    expect(page.locator(".chart-note")).to_contain_text("2 not shown: their bytes at L2 cache are not known.")
    level.select_option("all, side by side")
    eventually(lambda: drawn_count(page, "roofline:points") == 5)
    page.get_by_role("link", name="counted N=1002 · L2 cache").click()
    expect(page.locator(".point-card table")).to_contain_text("1.20 flop/B")
    assert drawn_count(page, "roofline:rings") == 3


def test_a_click_in_the_legend_hides_a_series_and_the_url_keeps_it(page: Page) -> None:
    page.get_by_label("Colour and shape").select_option("kernel")
    entry = page.locator(".chart .series").get_by_role("button", name="too_good")
    entry.click()
    eventually(lambda: drawn_count(page, "roofline:points") == 2)
    expect(entry).to_have_attribute("aria-pressed", "false")
    page.wait_for_url(re.compile("hidden=too_good"))
    entry.press("Enter")
    eventually(lambda: drawn_count(page, "roofline:points") == 3)


def test_seed_000_hover_tells_a_kernels_details(page: Page) -> None:
    tooltip = page.locator(".bk-Tooltip")

    def is_shown() -> bool:
        x, y = place_of(page, "saxpy N=1000")  # figures move while the page takes its size
        page.mouse.move(x - 3, y)
        page.mouse.move(x, y)
        return tooltip.filter(has_text="saxpy N=1000").count() > 0

    eventually(is_shown)
    figures = ("4.80 Tflop/s · 2.40 TB/s", "55.8 %", "2.00 flop/B", "5.00 ms median", "24.0 Gflop · 11.2 GiB, by formula")
    for figure in ("saxpy N=1000", *figures):
        expect(tooltip).to_contain_text(figure)


def test_reasons_fit_the_screen(page: Page) -> None:
    see_that_it_fits(page, 1280, 390)


def test_a_list_of_kernels_has_the_roof_of_the_gpu_that_it_names_or_says_how_to_give_one(visit: Visit, tmp_path: Path) -> None:
    saxpy = {"kernel": "saxpy", "time_us": 100, "flops": 2e6, "bytes": 102e6, "dtype": "f32"}
    run_id = visit.dashboard.import_file(tmp_path / "a100.json", [saxpy | {"device": "NVIDIA A100-SXM4-80GB"}])
    page = visit.open(f"/roofline?runs={run_id}")
    eventually(lambda: solid_ceilings(page) == ["DRAM 2.04 TB/s", "float32 19.5 Tflop/s"])
    expect(page.locator(".results .tabulator-row")).to_contain_text("50.0 %")
    run_id = visit.dashboard.import_file(tmp_path / "nowhere.json", [saxpy])
    page = visit.open(f"/live?runs={run_id}")
    expect(page.locator(".run-card")).to_contain_text("No device is named, so nothing has a roof: add a column device")
    see_that_it_fits(page, 390, 1280)
