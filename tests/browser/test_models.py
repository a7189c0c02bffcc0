"""A model's run on the pages while it goes on, and the dashboards of files, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from visualize_comparison import ComparisonDashboard
from visualize_performance import PerformanceDashboard

from kernalyse.services.compat.model_dashboards.document import timing_entry
from kernalyse.services.core.model import MeasuringOptions, ModelRun, Run, RunSpec, RunState
from kernalyse.services.core.protobuf import decode, encode
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.browser.charts import SOURCE, drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.dashboard import Dashboard
from tests.browser.test_live import eventually
from tests.unit.compat.test_model_dashboards import COMPARISON, MODEL, PROFILE

pytestmark = pytest.mark.browser


def start_model(dashboard: Dashboard, seconds: float) -> Run:
    measuring = MeasuringOptions(min_duration_ns=int(seconds * 1e9), max_duration_ns=int(seconds * 1e9), target_half_width_ratio=1e-6)
    work = ModelRun("gpt-nano", ("baseline", "fused"), batch_size=1, sequence_length=16, vocabulary_size=64, measuring=measuring)
    answer = dashboard.stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=encode(RunSpec(work))))
    return decode(answer.run, Run)


@pytest.mark.slow
def test_what_no_pass_tells_has_no_chart_and_one_pass_has_its_name(visit: Visit, tmp_path: Path) -> None:
    """As of a model that takes no tokens."""
    timed = {"config": {}, "timing": timing_entry(MODEL)}
    run_id = visit.dashboard.import_file(tmp_path / "bare.json", {"metadata": {}, "benchmarks": {"resnet": timed}})
    page = visit.open(f"/layers?runs={run_id}")
    eventually(lambda: drawn_count(page, "latency:boxes") == 1)
    expect(page.get_by_role("heading", name="Latency of a pass")).to_be_visible()
    for title in ("Throughput", "Efficiency: throughput for each layer", "Architecture: layers", "Memory"):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_hidden()
    eventually(lambda: "resnet" in tick_names(page, "latency:boxes"))


def tick_names(page: Page, layer: str) -> str:
    """What stands below the chart that has the layer."""
    names: str = page.evaluate(
        f"""(layer) => {{
          const source = ({SOURCE})(layer)
          const models = Bokeh.documents.flatMap((document) => document.roots().flatMap((root) => [...root.references()]))
          const figure = models.find((model) => model.type === "Figure" && model.renderers.some((one) => one.data_source === source))
          return [...figure.below[0].major_label_overrides.values()].join()
        }}""",
        layer,
    )
    return names


@pytest.mark.slow
def test_layers_of_both_variants_appear_while_the_model_runs(visit: Visit) -> None:
    run = start_model(visit.dashboard, seconds=60)
    try:
        page = visit.open(f"/layers?runs={run.run_id}")
        expect(page.get_by_label("Table", exact=True)).to_have_value("variants side by side")
        row = page.locator(".listed .tabulator-row").filter(has_text="blocks.0.mlp.fc")
        expect(row).to_contain_text("baseline")
        expect(row).to_contain_text(re.compile("faster|slower|same|undecided"))
        kinds = page.locator(".card").filter(has=page.get_by_role("heading", name="Time by kind of layer"))
        expect(kinds).to_contain_text("fused")
        eventually(lambda: drawn_count(page, "layers:bars") >= 8)
        eventually(lambda: drawn_count(page, "icicle:boxes") >= 5)
        eventually(lambda: drawn_count(page, "layer_count:boxes") == 2)  # both variants' architecture is known at once
        assert visit.dashboard.run(run.run_id).state is RunState.RUNNING
        page.get_by_label("Table", exact=True).select_option("layers")
        page.wait_for_url(re.compile("table=layers"))
        expect(page.locator(".listed .tabulator-row").filter(has_text="annotation").first).to_be_visible()
        see_that_it_fits(page, 390)
        live = visit.open(f"/live?runs={run.run_id}")
        expect(live.locator(".run-name")).to_contain_text("gpt-nano baseline and fused")
        eventually(lambda: drawn_count(live, "samples:samples") + drawn_count(live, "samples:finished") > 0)  # it may be over by now
    finally:
        visit.dashboard.cancel(run.run_id)
        eventually(lambda: visit.dashboard.run(run.run_id).state.is_final)


@pytest.mark.slow
def test_two_models_are_compared_with_the_sources_of_their_kernels(visit: Visit) -> None:
    runs = [start_model(visit.dashboard, seconds=0.1) for _ in range(2)]
    eventually(lambda: all(visit.dashboard.run(run.run_id).state is RunState.SUCCEEDED for run in runs))
    page = visit.open(f"/compare?baseline={runs[0].run_id}&candidate={runs[1].run_id}")
    sources = page.locator(".card").filter(has=page.get_by_role("heading", name="Sources"))
    for file_name in ("matmul.cu", "operations.cu", "attention.cu"):
        expect(sources).to_contain_text(file_name)

    both = visit.open(f"/compare?baseline={runs[0].run_id}&candidate={runs[0].run_id}")  # the variants of one run
    expect(both.locator(".listed .tabulator-row")).to_have_count(1)
    both.get_by_label("Rows", exact=True).select_option("layers")
    row = both.locator(".listed .tabulator-row").filter(has_text="blocks.0.mlp.fc")
    expect(row).to_contain_text(re.compile("faster|slower|same|undecided"))
    eventually(lambda: drawn_count(both, "speedups:points") >= 5)
    expect(both.locator(".card").filter(has=both.get_by_role("heading", name="Sources"))).to_contain_text("Both sides are of one run")
    see_that_it_fits(both, 390)


@pytest.mark.slow
def test_dashboards_draw_every_chart_without_a_server(browser: Browser, tmp_path: Path) -> None:
    performance, comparison = PerformanceDashboard(tmp_path), ComparisonDashboard(tmp_path)
    performance.data, comparison.data = PROFILE, COMPARISON
    context = browser.new_context(offline=True)
    complaints: list[str] = []
    requests: list[str] = []
    for path in (performance.generate_dashboard(), comparison.generate_dashboard()):
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        expect(page.locator("[data-chart] .bk-Figure")).to_have_count(page.locator("[data-chart]").count())
        see_that_it_fits(page, 1280, 390)
    context.close()
    assert (complaints, len(requests)) == ([], 2)  # the files themselves
