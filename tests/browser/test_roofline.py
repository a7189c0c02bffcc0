"""The Roofline page with ceilings from three sources, and a point that no device can reach."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from kernalyse.trace_upload import OutgoingTrace, TraceUpload
from services.analyzer.writers.results import results_document
from services.core.model import Ceiling, CeilingsMeasured, RunState, StateChanged
from tests.browser.conftest import Visit
from tests.browser.test_live import drawn_count, eventually
from tests.integration.profiler_stand_in import configuration, measurement
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


@pytest.fixture
def page(visit: Visit, tmp_path: Path) -> Page:
    """Of a run on a GPU that this machine lacks, imported: two points, the second one implausible."""
    results = results_of(
        tmp_path / "store",
        CeilingsMeasured(GPU_CEILINGS),
        configuration(0, flop=24e9, bytes_=PLAIN_BYTES),
        replace(measurement(0, duration_ns=DURATION_NS * 1000), sm_clock_hz=1_500_000_000),
        configuration(1, kernel_name="too_good", flop=24e9, bytes_=IMPOSSIBLE_BYTES),
        replace(measurement(1, duration_ns=DURATION_NS * 1000), sm_clock_hz=1_400_000_000),
        StateChanged(RunState.SUCCEEDED),
    )
    path = tmp_path / "gpu.json"
    path.write_text(results_document(results))
    run_id = TraceUpload([OutgoingTrace(path)], lambda _: None).send(visit.dashboard.stub).run.run_id
    opened = visit.open(f"/roofline?runs={run_id}")
    eventually(lambda: drawn_count(opened, "roofline:points") == 2)
    return opened


def solid_ceilings(page: Page) -> list[str]:
    """Name and value of every ceiling that counts."""
    texts: list[str] = page.evaluate(
        "() => Array.from(Bokeh.documents[0].get_model_by_name('roofline:names').data.text, text => text.trim())"
    )
    return sorted(texts)


def test_the_source_of_ceilings_is_chosen_and_kept_in_the_url(page: Page) -> None:
    efficiency = page.locator("#f-results tbody tr", has_text="saxpy").locator(".meter").locator("..")
    choice = page.get_by_label("Ceilings")
    expect(choice).to_have_value("best")
    expect(efficiency).to_have_text("55.8 %")  # 2.4 of 4.3 TB/s
    assert solid_ceilings(page) == ["DRAM 4.30 TB/s", "L2 cache 7.50 TB/s", "float32 60.0 Tflop/s"]

    choice.select_option("datasheet")
    expect(efficiency).to_have_text("50.0 %")
    page.wait_for_url(re.compile("ceilings=datasheet"))
    eventually(lambda: solid_ceilings(page) == ["DRAM 4.80 TB/s", "float32 66.9 Tflop/s"])

    choice.select_option("at the clock")
    eventually(lambda: solid_ceilings(page) == ["DRAM 4.80 TB/s", "L2 cache 7.50 TB/s", "float32 50.7 Tflop/s"])
    expect(page.locator("#f-roofline_note")).to_contain_text("1.50 GHz, the highest clock of the points")

    page.reload()
    page.wait_for_selector(".shell[data-ready]")
    expect(choice).to_have_value("clock")
    eventually(lambda: "float32 50.7 Tflop/s" in solid_ceilings(page))


def test_an_implausible_point_has_its_own_shape_and_is_named(page: Page) -> None:
    markers: list[str] = page.evaluate("() => Array.from(Bokeh.documents[0].get_model_by_name('roofline:points').data.marker)")
    assert sorted(markers) == ["asterisk", "square"]
    expect(page.locator("#f-legend")).to_contain_text("✱implausible")
    expect(page.locator("#f-roofline_note")).to_contain_text("1 implausible (✱)")
    row = page.locator("#f-results tbody tr", has_text="too_good")
    expect(row).to_contain_text("implausible")
    expect(row).to_contain_text("It moves 1.6 times what the fastest memory that counts can (l2, 7500.0 GB/s)")
    expect(page.locator("#f-results tbody tr", has_text="saxpy")).not_to_contain_text("implausible")


@pytest.mark.parametrize("width", [1280, 390])
def test_reasons_fit_the_screen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
