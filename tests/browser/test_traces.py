"""An imported trace on the pages: its roofline by kernel and by layer, its layers as a table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.charts import drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.test_live import eventually
from tests.unit.analyzer.readers.test_kineto import call, kernel, module, operator

pytestmark = pytest.mark.browser


@pytest.fixture
def run_id(visit: Visit, tmp_path: Path) -> str:
    """Of a step of one layer with two products, of kernels of two names."""
    shapes = {"Input Dims": [[512, 256], [256, 128]], "Input type": ["c10::Half", "c10::Half"]}
    events = [
        module("Linear_0", 0, 50),
        operator("aten::mm", 10, 10, **shapes),
        operator("aten::mm", 30, 10, **shapes),
        call(12, 1),
        call(32, 2),
        kernel("gemm_a", 200, 2, 1),
        kernel("gemm_b", 203, 4, 2),
    ]
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    content = {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}
    return visit.dashboard.import_file(tmp_path / "step.json", content)


def test_points_of_a_trace_are_its_kernels_or_its_layers(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/roofline?runs={run_id}")
    eventually(lambda: drawn_count(page, "roofline:points") == 2)
    rows = page.locator(".results .tabulator-row")
    # 448 KiB in 2 us and in 4 us, of 4.8 TB/s.
    expect(rows.filter(has_text="gemm_a")).to_contain_text("4.78 %")
    expect(rows.filter(has_text="gemm_b")).to_contain_text("2.39 %")
    page.get_by_label("Points by").select_option("layer")
    page.wait_for_url(re.compile("points=layer"))
    eventually(lambda: drawn_count(page, "roofline:points") == 1)
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Linear_0")


def test_layers_have_a_page_of_their_own(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/layers?runs={run_id}")
    row = page.locator(".listed .tabulator-row")
    expect(row).to_contain_text("nn.Module: Linear_0")
    expect(row).to_contain_text("100 %")
    expect(page.get_by_role("link", name="Layers", exact=True)).to_have_attribute("aria-current", "page")
    see_that_it_fits(page, 1280, 390)


def test_kernels_of_a_trace_are_shown_without_choosing_rows(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/kernels?runs={run_id}")
    rows = page.locator(".listed .tabulator-row")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("gemm_b")
    choice = page.get_by_label("Table", exact=True)
    expect(choice).to_have_value("kernels of traces")
    choice.select_option("idle time of traces, by reason")
    # 1 ns between the kernels; both calls were over long before.
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("launch latency")


def test_a_chosen_kernel_of_a_trace_leads_to_its_launches_on_the_timeline(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/kernels?runs={run_id}&table=kernels")
    page.locator(".listed").get_by_role("link", name="gemm_b").click()
    detail = page.locator(".detail.text")
    expect(detail.locator(".facts")).to_contain_text("Share of all kernels")
    detail.get_by_role("link", name="On the timeline").click()
    expect(page.locator(".matches")).to_contain_text("1 match")


def test_the_live_page_of_a_trace_shows_what_it_has(visit: Visit, run_id: str) -> None:
    page = visit.open(f"/live?runs={run_id}")
    expect(page.get_by_role("heading", name="Roofline", exact=True)).to_be_visible()
    for name in ("Samples", "Telemetry", "Log"):
        expect(page.get_by_role("heading", name=name)).to_be_hidden()
    page.get_by_role("link", name="layers", exact=True).click()
    page.wait_for_url(re.compile(f"/layers\\?runs={run_id}"))


def test_a_command_shows_its_log_while_it_runs_and_its_kernels_when_its_trace_has_been_read(visit: Visit, tmp_path: Path) -> None:
    may_end = tmp_path / "may_end"
    run = visit.dashboard.start_profile("sh", "-c", f"echo training; until [ -e {may_end} ]; do sleep 0.05; done")
    page = visit.open(f"/live?runs={run.run_id}")
    card = page.locator(".run-card")
    expect(card.get_by_role("heading", level=1)).to_contain_text("nsys: sh -c 'echo training")
    expect(page.locator(".log")).to_contain_text("training")
    expect(page.get_by_role("heading", name="Telemetry")).to_be_visible()
    for name in ("Samples", "Roofline"):  # nothing that could be in them
        expect(page.get_by_role("heading", name=name)).to_be_hidden()
    may_end.touch()
    expect(page.locator(".log")).to_contain_text("Trace of nsys read: 1 launches of kernels.")
    expect(card.locator(".state")).to_have_text("succeeded")
    page.get_by_role("link", name="kernels", exact=True).click()
    page.wait_for_url(re.compile(f"/kernels\\?runs={run.run_id}"))
    expect(page.locator(".listed .tabulator-row")).to_have_count(1)
