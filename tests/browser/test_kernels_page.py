"""The Kernels page: heatmap and split charts of a list as seed 000 has it, a table in pages, a real sweep's samples and listings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Locator, Page, expect

from kernalyse.services.core.model import Run, RunState
from tests.browser.charts import column, drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.test_live import eventually, settled

pytestmark = pytest.mark.browser

EVIL_NAME: Final = '<img src=x onerror="window.pwned=1">' + "x" * 10_000
KERNELS: Final = [
    {"name": "Kernel A", "M": 1024, "N": 512, "K": 256, "tflops": 100, "batch": 32, "dtype": "f32", "model": "modelX"},
    {"name": "Kernel A", "M": 1024, "N": 512, "K": 256, "tflops": 60, "batch": 64, "dtype": "f32", "model": "modelY"},
    {"name": "Kernel B", "M": 64, "N": 32, "K": 16, "tflops": 80.5, "batch": 64, "dtype": "f16", "model": "modelY"},
    *({"name": f"Kernel C{place}", "M": 64, "N": 32, "K": 16, "tflops": 1, "dtype": "f16", "model": "modelX"} for place in range(26)),
    {"name": EVIL_NAME, "M": 8, "N": 8, "K": 8, "tflops": 2, "batch": 8, "dtype": "f16", "model": "modelX"},
]


def card(page: Page, title: str) -> Locator:
    """Return the card of a chart."""
    return page.locator(".card").filter(has=page.get_by_role("heading", name=title, exact=True)).last


@pytest.fixture
def page(visit: Visit, tmp_path: Path) -> Page:
    """Of the list, which is the same run however often it is imported."""
    run_id = visit.dashboard.import_file(tmp_path / "kernels.json", KERNELS)
    opened = visit.open(f"/kernels?runs={run_id}")
    eventually(lambda: drawn_count(opened, "heatmap:cells") == len(KERNELS))
    return opened


def test_seed_000_performance_heatmap_of_kernels_over_models_tells_exact_values_and_why_a_cell_is_empty(page: Page) -> None:
    expect(page.get_by_label("X axis")).to_have_value("kernel")
    expect(page.get_by_label("Y axis")).to_have_value("model")
    exact = dict(zip(column(page, "heatmap:cells", "place"), column(page, "heatmap:cells", "figure"), strict=True))
    assert exact["kernel Kernel A, model modelX"].startswith("100 Tflop/s")
    assert exact["kernel Kernel A, model modelY"].startswith("60.0 Tflop/s")
    reasons = dict(zip(column(page, "heatmap:gaps", "place"), column(page, "heatmap:gaps", "reason"), strict=True))
    assert reasons["kernel Kernel B, model modelX"] == "no configuration of these runs lies here"
    page.get_by_label("Y axis").select_option("dtype")
    page.wait_for_url(re.compile("heat_y=dtype"))
    eventually(lambda: "kernel Kernel B, dtype float16" in column(page, "heatmap:cells", "place"))
    page.get_by_label("Charts show").select_option("Efficiency")
    expect(card(page, "Heatmap").locator(".chart-note")).to_contain_text("ceilings of its device are not known")
    assert page.evaluate("window.pwned") is None


def test_the_heatmap_is_read_and_chosen_from_by_keyboard(page: Page) -> None:
    heat, said = page.get_by_role("application", name="Heatmap"), card(page, "Heatmap").get_by_role("status")
    page.get_by_label("Y axis").focus()
    while not heat.evaluate("heat => heat === heat.getRootNode().activeElement"):
        page.keyboard.press("Tab")
    expect(said).to_contain_text("kernel Kernel A, model modelX: 100 Tflop/s")  # the best one
    assert column(page, "heatmap:pointed", "left") == [1 - 0.48]
    page.keyboard.press("ArrowUp")
    expect(said).to_contain_text("kernel Kernel A, model modelY: 60.0 Tflop/s")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(said).to_have_text("kernel Kernel B, model modelX: no figure, no configuration of these runs lies here.")
    page.keyboard.press("Enter")  # there is nothing to choose
    page.keyboard.press("ArrowDown")  # nor further down
    page.keyboard.press("ArrowUp")
    expect(said).to_contain_text("kernel Kernel B, model modelY: 80.5 Tflop/s")
    assert "configuration=" not in page.url
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"configuration=.*\.2"))
    expect(page.locator(".detail.text")).to_contain_text("Kernel B")
    expect(heat).to_be_focused()
    page.keyboard.press("Tab")
    expect(said).to_be_empty()
    assert column(page, "heatmap:pointed", "left") == []


@pytest.mark.slow
def test_seed_000_split_charts_and_interactive_filtering_by_batch_size_dtype_and_model(page: Page) -> None:
    labels = column(page, "performance:bars", "label")
    assert (labels[0][:15], labels[1][:13]) == ("Kernel A M=1024", "Kernel B M=64")
    assert column(page, "intensity:bars", "label") == labels
    assert column(page, "performance:bars", "top")[:2] == [100e12, 80.5e12]
    expect(card(page, "Performance").locator(".chart-note")).to_contain_text(
        re.compile("Without a bar, for want of room: Kernel C13, .*, Kernel C25[.]")
    )
    # Of one configuration nothing varies that a heatmap could lay out.
    for name, value, cell_count, bar_count in (("Batch size", "64", 2, 2), ("Data type", "float16", 0, 1)):
        page.locator(".filters").get_by_label(name).select_option(value)
        eventually(lambda wanted=cell_count: drawn_count(page, "heatmap:cells") == wanted)  # type: ignore[misc]
        eventually(lambda wanted=bar_count: drawn_count(page, "performance:bars") == wanted)  # type: ignore[misc]
    expect(card(page, "Heatmap").locator(".chart-note")).to_contain_text("A heatmap needs something that varies")
    expect(page.locator(".listed .tabulator-row")).to_have_count(1)
    page.locator(".filters").get_by_label("Model").select_option("modelX")
    expect(card(page, "Performance").locator(".chart-note")).to_contain_text("No configuration of these runs matches the filters")


@pytest.mark.slow
def test_a_table_is_paged_sorted_and_given_other_columns(page: Page) -> None:
    rows = page.locator(".listed .tabulator-row")
    expect(rows).to_have_count(25)
    page.get_by_label("Page", exact=True).fill("2")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(5)
    expect(page.locator(".listed .pager")).to_contain_text("26 to 30 of 30")
    page.get_by_role("link", name="First rows").click()
    expect(page.get_by_label("Page", exact=True)).to_have_value("1")
    page.get_by_label("Rows at once").select_option("50")
    expect(rows).to_have_count(30)
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("button", name="all", exact=True).click()
    expect(page.locator(".listed .tabulator-header")).to_contain_text("Toolkit")


@pytest.fixture
def swept(visit: Visit) -> Run:
    run = visit.dashboard.start_sweep("saxpy", seconds=0.05, sizes=(65_536, 262_144))
    eventually(lambda: visit.dashboard.run(run.run_id).state is RunState.SUCCEEDED)
    return run


@pytest.mark.slow
def test_a_chosen_row_shows_samples_figures_and_what_the_compiler_left(visit: Visit, swept: Run) -> None:
    page = visit.open(f"/kernels?runs={swept.run_id}")
    page.locator(".listed").get_by_role("link", name="saxpy N=262144").click()
    page.wait_for_url(re.compile(rf"configuration={swept.run_id}\.1"))
    expect(page.locator('.listed a[aria-current="true"]')).to_have_text(["saxpy N=262144"])
    detail = page.locator(".detail.text")
    expect(detail.get_by_role("heading")).to_have_text("saxpy N=262144")
    expect(detail).to_contain_text("hot: what the launch before left in the caches")
    expect(card(page, "Samples of the chosen row").locator(".chart-note")).to_contain_text("its 95 % interval")
    assert drawn_count(page, "order:samples") >= 2
    expect(page.locator(".listing")).to_contain_text("saxpy")
    with page.expect_download() as download:
        page.locator(".listings").get_by_role("link", name="Download").click()
    assert "saxpy" in download.value.path().read_text()
    assert detail.get_by_role("link", name="On the roofline").get_attribute("href") == (
        f"/roofline?runs={swept.run_id}&point={swept.run_id}.1"
    )
    see_that_it_fits(page, 390)

    again = visit.open(page.url.removeprefix(visit.dashboard.url))
    expect(again.locator(".detail.text").get_by_role("heading")).to_have_text("saxpy N=262144")
    again.locator(".detail.text").get_by_role("button", name="Close").click()
    expect(again.locator(".detail")).to_have_count(0)


@pytest.mark.slow
def test_a_kernel_of_a_sweep_leads_to_its_configurations_and_to_its_history(visit: Visit, swept: Run) -> None:
    again = visit.dashboard.start_sweep("saxpy", seconds=0.05, sizes=(65_536, 262_144))
    eventually(lambda: visit.dashboard.run(again.run_id).state is RunState.SUCCEEDED)
    page = visit.open(f"/kernels?runs={swept.run_id}&table=kernels")
    rows = page.locator(".listed .tabulator-row")
    settled(rows.count)  # the table is drawn anew when the first rows have come
    rows.get_by_role("link", name="saxpy", exact=True).press("Enter")
    page.wait_for_url(re.compile(rf"configuration={swept.run_id}\.k"))
    detail = page.locator(".detail.text")
    expect(detail.get_by_role("heading", level=2)).to_have_text("saxpy")
    for told in ("Best configuration", "Configurations2", "times as long", "half of them at least"):
        expect(detail.locator(".facts")).to_contain_text(told)
    expect(card(page, "Samples of the chosen row")).to_be_hidden()  # they are those of its configurations
    expect(page.locator(".listing")).to_contain_text("saxpy")
    configurations = detail.locator("tbody tr")
    expect(configurations).to_have_count(2)
    assert detail.locator(".facts dd").first.inner_text() == f"saxpy {configurations.first.locator('a').inner_text()}"
    assert detail.get_by_role("link", name="On the roofline").get_attribute("href") == f"/roofline?runs={swept.run_id}&kernel=%22saxpy%22"
    assert detail.get_by_role("link", name="On the timeline").count() == 0  # sweeps tell how long, not when
    see_that_it_fits(page, 390, 1280)

    configurations.get_by_role("link", name="N=262144").press("Enter")
    expect(detail.get_by_role("heading", level=2)).to_have_text("saxpy N=262144")
    detail.get_by_role("link", name="Its kernel").click()
    expect(detail.get_by_role("heading", level=2)).to_have_text("saxpy")
    detail.get_by_role("link", name="All its configurations").click()
    expect(page.locator(".listed .tabulator-row")).to_have_count(2)
    expect(page.locator(".listed")).to_contain_text("saxpy N=65536")
    detail.get_by_role("link", name="Its history").click()
    expect(page.locator(".listed .tabulator-row", has_text="saxpy N=65536")).to_have_count(1)


def test_a_choice_that_is_gone_is_said_in_a_sentence(visit: Visit) -> None:
    page = visit.open("/kernels?configuration=no-such-run.3")
    expect(page.locator(".detail.text")).to_contain_text("no-such-run")
    expect(page.locator(".detail.text .problem")).to_be_visible()
