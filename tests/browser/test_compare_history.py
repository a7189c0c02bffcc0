"""Two runs beside each other with how their sources differ, and one configuration over many runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from kernalyse.services.analyzer.export.results import results_document
from kernalyse.services.core.model import (
    Axis,
    KernelSelection,
    KernelSource,
    KernelSweep,
    MeasuringOptions,
    PairedComparison,
    Run,
    RunSpec,
    RunState,
    StateChanged,
    TimingMethod,
    Verdict,
)
from kernalyse.services.core.protobuf import encode
from kernalyse.services.ui.theme import short_run_id
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.browser.charts import drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.test_live import eventually
from tests.history_files import history_files
from tests.integration.profiler_stand_in import configuration, measurement
from tests.unit.run_results import results_of

pytestmark = pytest.mark.browser

BEFORE = """__global__ void scaled(const float* a, float* b, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) b[i] = a[i] * 2.0f;
}
"""
AFTER = BEFORE.replace("a[i] * 2.0f", "a[i] + a[i]").replace("{\n", "{ // <script>alert(1)</script>\n", 1)


def measured(visit: Visit, text: str, title: str) -> Run:
    measuring = MeasuringOptions(
        min_duration_ns=50_000_000,
        max_duration_ns=50_000_000,
        timing_method=TimingMethod.SINGLE,  # chosen by itself it may be another for each run, which is asked about before it is compared
        skip_verification=True,
    )
    sweep = KernelSweep(
        (KernelSelection("scaled", KernelSource("scaled.cu", text)),), axes=(Axis("N", (1024, 65_536)),), measuring=measuring
    )
    answer = visit.dashboard.stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=encode(RunSpec(sweep, title=title))))
    run_id = answer.run.run_id
    eventually(lambda: visit.dashboard.run(run_id).state.is_final)
    run = visit.dashboard.run(run_id)
    assert run.state is RunState.SUCCEEDED, run.error
    return run


@pytest.mark.slow
def test_comparison_mode_as_is_and_to_be_with_the_difference_of_their_sources(visit: Visit) -> None:
    before, after = measured(visit, BEFORE, "as is"), measured(visit, AFTER, "to be")
    page = visit.open("/compare")
    # The newest run, and the last one before it of the same kernels.
    expect(page.get_by_label("Baseline (as is)")).to_have_value(re.compile(f"^as is .*{short_run_id(before.run_id)}$"))
    expect(page.get_by_label("Candidate (to be)")).to_have_value(re.compile(f"^to be .*{short_run_id(after.run_id)}$"))
    rows = page.locator(".listed .tabulator-row")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("undecided")
    expect(rows).to_contain_text(["note 1", "note 1"])
    expect(page.locator(".listed .note p").first).to_have_text(re.compile("^Note 1: .*a single process each cannot decide"))
    eventually(lambda: drawn_count(page, "speedups:points") == 2)
    eventually(lambda: drawn_count(page, "compared_roofline:moves") in (0, 2))  # none where no work of the kernel is known
    difference = page.locator(".sources .diff")
    expect(difference.locator("tr.removed")).to_have_count(2)
    expect(difference.locator("tr.added").first).to_contain_text("<script>alert(1)</script>")
    expect(difference.locator("tr.added").nth(1).locator(".number").nth(1)).to_have_text("3")
    page.get_by_role("button", name="Swap").click()
    page.wait_for_url(re.compile(f"baseline={after.run_id}&candidate={before.run_id}"))
    page.get_by_label("Verdict").select_option("slower")
    expect(page.locator(".listed")).to_contain_text("No row matches")


def test_what_blocks_in_turns_say_stands_beside_the_ratio_of_the_medians(visit: Visit, tmp_path: Path) -> None:
    """105 to 30.0 µs is a factor of 3.5; pairs of blocks that took turns say 3.75."""
    in_turns = PairedComparison(1, 0, 20, 1 / 3.75, 1 / 4.0, 1 / 3.5, 0.99, Verdict.FASTER, "-73.33 % of time.", 1)
    results = results_of(
        tmp_path / "store",
        configuration(0, kernel_name="as_is"),
        measurement(0, duration_ns=105_000.0),
        configuration(1, kernel_name="to_be"),
        measurement(1, duration_ns=30_000.0),
        in_turns,
        StateChanged(RunState.SUCCEEDED),
    )
    path = tmp_path / "turns.json"
    path.write_text(results_document(results))
    run_id = visit.dashboard.import_file(path)
    page = visit.open(f"/compare?baseline={run_id}&candidate={run_id}")
    cells = page.locator(".listed .tabulator-row .tabulator-cell:not([tabulator-field=_index])")
    expect(cells.first).to_contain_text("to_be")
    headings = [
        text.rstrip(" ↑↓")
        for text in page.locator(".listed .tabulator-col:not([tabulator-field=_index]) .tabulator-col-title").all_inner_texts()
    ]
    told = dict(zip(headings, cells.all_inner_texts(), strict=True))
    assert (told["Before"], told["After"]) == ("105 µs", "30.0 µs")
    assert (told["Change in turns"], told["Change of these medians"]) == ("-73.33 %", "-71.43 %")
    assert "faster" in told["Verdict in turns"]
    see_that_it_fits(page, 390, 1280)


def test_compare_different_gpus_after_the_difference_has_been_allowed(visit: Visit, tmp_path: Path) -> None:
    (path,) = history_files(tmp_path, [5_000.0], "both_gpus")
    first = visit.dashboard.import_file(path)
    document = json.loads(path.read_text())
    (row,) = document["measurements"]
    row |= {"device_id": "cuda:1", "duration_median_ns": 4_000.0, "driver_version": "560.1"}
    path.write_text(json.dumps(document))
    second = visit.dashboard.import_file(path)
    page = visit.open(f"/compare?baseline={first}&candidate={second}")
    expect(page.get_by_role("alert").filter(has_text="differ in device")).to_be_visible()
    expect(page.get_by_role("button", name="Compare anyway")).to_be_visible()
    expect(page.locator(".differences tr.different", has_text="Driver")).to_contain_text("560.1")
    expect(page.locator(".tiles")).to_be_hidden()
    page.get_by_role("button", name="Compare anyway").click()
    expect(page.locator(".tiles")).to_contain_text("-20.00 %")
    page.wait_for_url(re.compile("allow=device"))
    expect(page.locator(".sources")).to_contain_text("Only sweeps of kernels and models on the project's own kernels have sources")


@pytest.mark.slow
def test_historical_tracking_shows_a_regression_and_leads_to_its_comparison(visit: Visit, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).normal(0, 0.004, 14)
    medians = np.append(np.full(9, 5_000.0), np.full(5, 5_600.0)) * np.exp(noise)
    name = "nightly"
    run_ids = [visit.dashboard.import_file(path) for path in history_files(tmp_path, medians.tolist(), name)]
    page = visit.open(f"/history?kernel={name}&theme=dark")
    row = page.locator(".listed .tabulator-row")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("regression +1")
    expect(row.locator('a[aria-current="true"]')).to_have_count(1)  # the series that the chart shows
    eventually(lambda: drawn_count(page, "history:runs") == 14)
    assert drawn_count(page, "history:bands") == 2
    change = page.locator(".changes li")
    expect(change).to_contain_text("0000000000")
    see_that_it_fits(page, 390, 1280)
    page.get_by_label("Figure").select_option("Byte rate (B/s)")
    page.wait_for_url(re.compile("metric=achieved_bytes_per_s"))
    expect(change).to_contain_text("regression -1")
    change.get_by_role("link", name="Compare").click()
    page.wait_for_url(re.compile(f"/compare\\?.*baseline={run_ids[8]}&candidate={run_ids[9]}"))
    expect(page.locator(".listed .tabulator-row")).to_have_count(1)
    see_that_it_fits(page, 390, 1280)
