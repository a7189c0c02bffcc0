"""Documents of runs: HTML, PDF, PowerPoint and pictures of the same charts, read back; hostile names and figures break none."""

from __future__ import annotations

import html
import io
import itertools
import re
import zipfile
from pathlib import Path
from typing import Any, Final

import holoviews as hv
import numpy as np
import polars as pl
import pytest
from bokeh.models import TapTool
from matplotlib.figure import Figure
from pptx import Presentation
from pypdf import PdfReader

from kernalyse.services.analyzer.export.report_files import run_frames
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.report import DrawingTask, Report, ReportFormat, Section
from kernalyse.services.ui.charts.elements import elided
from kernalyse.services.ui.charts.layers import Stretch, stacked_bars
from kernalyse.services.ui.charts.models import Bar, bar_chart
from kernalyse.services.ui.charts.printing import draw as draw_element
from kernalyse.services.ui.report import pdf
from kernalyse.services.ui.report.chart_figures import file_stem, picture
from kernalyse.services.ui.report.document import Chart, Document, FigureTable, Key, Width, cell_lines, column_characters
from kernalyse.services.ui.report.powerpoint import write_powerpoint
from kernalyse.services.ui.report.process import draw
from kernalyse.services.ui.report.run_charts import run_charts
from kernalyse.services.ui.report.run_document import comparison_charts
from kernalyse.services.ui.theme import CLOCK_TICKS, DURATION_TICKS, LIGHT, PERCENT_TICKS, RATIO_TICKS, SI_TICKS
from tests.unit.run_results import sweep_results

HOSTILE: Final = ("</script><script>alert(1)</script>", "$_0::operator()$", "=HYPERLINK(1)", "long" * 2500, "\x1b[2Jred\x00", "")
NAN: Final = float("nan")


def rows(table_name: str, *given: dict[str, Any]) -> pl.DataFrame:
    return frame_from_rows(find_table(table_name), [{"run_id": "run-1", **row} for row in given])


@pytest.fixture(scope="module")
def sweep_tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    return {"kernels": rows("kernels"), **sweep_results(tmp_path_factory.mktemp("store")).frames}


@pytest.fixture(scope="module")
def tables(sweep_tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Of a sweep and of a trace at once, with names and figures of every bad kind."""
    kernels = [
        {"kernel_name": name, "launch_count": 3, "duration_sum_ns": 10**index, "share_ratio": 0.1} for index, name in enumerate(HOSTILE)
    ]
    lane = {"track": "kernels", "process_id": 1, "device_index": 0, "stream_index": 7, "start_ns": 2_000, "duration_ns": 500}
    bars = [
        lane | {"start_ns": 2_000 + 500 * index, "busy_ratio": 1.0, "name": name, "row_index": index} for index, name in enumerate(HOSTILE)
    ]
    device = {"process_id": 1, "device_index": 0, "device_name": "H100", "span_ns": 100, "busy_ns": 60, "idle_ns": 40}
    frames = {name: frame for name, frame in sweep_tables.items() if name != "configurations"}  # its heatmap draws no names
    roofline = frames["roofline"]
    bad = [(0.0, 1e9), (-1.0, 1e9), (NAN, 1e9), (1.0, NAN), (float("inf"), 1e9), (1.0, None)]
    spoiled = [
        roofline.head(1).with_columns(
            configuration_index=pl.lit(100 + index, dtype=roofline["configuration_index"].dtype),
            intensity_flop_per_byte=pl.lit(intensity),
            achieved_flop_per_s=pl.lit(rate, dtype=pl.Float64),
            label=pl.lit(HOSTILE[index]),
        )
        for index, (intensity, rate) in enumerate(bad)
    ]
    return {
        **frames,
        "roofline": pl.concat([roofline, *spoiled]),
        "kernels": rows("kernels", *kernels, {"kernel_name": "none", "duration_sum_ns": 0}, {"kernel_name": "unknown"}),
        "layers": rows("layers", {"layer": HOSTILE[0], "duration_sum_ns": 5, "launch_count": 1, "share_ratio": 1.0}, {"layer": None}),
        "timeline": rows("timeline", *bars),
        "gaps": rows("gaps", {"process_id": 1, "device_index": 0, "start_ns": 2_100, "duration_ns": 100, "reason": "sync"}),
        "trace_devices": rows("trace_devices", {"process_id": 1, "device_index": 0, "device_name": HOSTILE[3]}),
        "trace_processes": rows("trace_processes", {"process_id": 1}),
        "breakdown": rows("breakdown", device | {"compute_ns": 60, "communication_ns": 20, "overlap_ns": 20, "memory_only_ns": 10}),
    }


REPORT: Final = Report(
    "Report of a run",
    (
        Section("Run", facts=(("Run", "run-1"), ("Source", HOSTILE[0]), ("Device", "NVIDIA H100"))),
        Section("Notes", sentences=(HOSTILE[3], "Two clocks were told.")),
        Section("Kernels", ("Longest first.",), ("kernel", "time"), (False, True), tuple((name, "1 ms") for name in HOSTILE)),
    ),
)


@pytest.fixture(scope="module")
def documents(tables: dict[str, pl.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> dict[ReportFormat, Path]:
    directory = tmp_path_factory.mktemp("documents")
    for name, frame in tables.items():
        if not frame.is_empty():
            frame.write_ipc(directory / f"{name}.arrow")
    formats = tuple(chosen for chosen in ReportFormat if chosen.is_drawn)
    return dict(zip(formats, draw(DrawingTask(formats, REPORT, "run-1", f"a run {HOSTILE[0]}"), directory), strict=True))


TITLES: Final = ["Roofline", "Kernels by time", "Time by kind of layer", "Timeline", "What the devices did", "Samples"]
LAST: Final = 1 + len(TITLES)


def test_a_run_has_a_chart_for_each_table_that_tells_something(
    tables: dict[str, pl.DataFrame], sweep_tables: dict[str, pl.DataFrame]
) -> None:
    of_sweep = ["Roofline", "Heatmap of flop rate", "Arithmetic intensity", "Flop rate", "Samples"]
    assert [chart.title for chart in run_charts(sweep_tables)] == of_sweep
    charts = {chart.title: chart for chart in run_charts(tables)}
    assert list(charts) == TITLES
    assert "6 without a flop count cannot be placed here." in charts["Roofline"].note
    assert [entry.name for entry in charts["What the devices did"].key] == ["computing", "computing and communicating", "copying", "idle"]
    assert run_charts({}) == []


def test_every_chart_of_a_disturbed_run_says_so(sweep_tables: dict[str, pl.DataFrame]) -> None:
    told = "host 98 % busy"
    tree = {"layer_path": "blocks", "layer": "blocks", "depth": 0, "duration_sum_ns": 100, "launch_count": 1, "efficiency_ratio": 0.5}
    timed = {"model_name": "gpt", "duration_median_ns": 1e6, "duration_max_ns": 2e6, "tokens_per_s": 1e5}
    disturbed = {
        **{name: frame.with_columns(disturbance=pl.lit(told)) for name, frame in sweep_tables.items() if "disturbance" in frame.columns},
        "layer_tree": rows("layer_tree", tree | {"disturbance": told}),
        "layers": rows("layers", tree | {"disturbance": told}),
        "models": rows("models", timed | {"disturbance": told}),
        "history": rows("history", {"series": "s", "label": "saxpy", "value": 1.0, "measured_unix_ns": 1, "disturbance": told}),
    }
    charts = [chart for chart in run_charts({**sweep_tables, **disturbed}) if chart.title != "Telemetry"]  # which tells it by itself
    assert {"Roofline", "Latency of a pass", "Heatmap of flop rate", "Layers", "Samples", "History of saxpy"} <= {c.title for c in charts}
    assert [chart.title for chart in charts if f"{told}." not in chart.note] == []
    assert not any("⚠" in chart.note for chart in run_charts(sweep_tables))


def test_a_model_has_an_icicle_of_each_variant() -> None:
    layer = {"duration_sum_ns": 100, "launch_count": 1, "efficiency_ratio": 0.5}
    tree = [
        {**layer, "variant": variant, "layer_path": path, "parent_path": parent, "layer": path, "depth": depth}
        for variant in ("baseline", "fused")
        for path, parent, depth in (("blocks", None, 0), ("blocks/0", "blocks", 1))
    ]
    charts = run_charts({"layer_tree": rows("layer_tree", *tree)})
    assert [chart.title for chart in charts] == ["Layers, baseline", "Layers, fused"]
    assert [entry.name for entry in charts[0].key] == ["50 to 75 %"]


def test_a_timeline_has_the_rows_where_most_went_on_and_what_is_left_out_is_counted() -> None:
    device, thread = {"track": "kernels", "device_index": 0}, {"track": "ranges", "thread_id": 9}
    lanes = [device | {"stream_index": index, "duration_ns": 100 + index} for index in range(40)]
    lanes += [thread | {"depth": index, "duration_ns": 5_000 - index} for index in range(40)]
    events = [{"process_id": 1, "start_ns": 10**15, "busy_ratio": 1.0, "name": "gemm", "row_index": 0} | lane for lane in lanes]
    gap = {"process_id": 1, "device_index": 0, "start_ns": 10**15 + 200, "duration_ns": 50, "reason": "host_busy"}
    tables = {"timeline": rows("timeline", *events), "gaps": rows("gaps", gap)}
    (chart,) = run_charts({**tables, **{name: rows(name) for name in ("trace_devices", "trace_processes")}})
    titles = [text for _, text in hv.Store.lookup_options("bokeh", chart.element, "plot").kwargs["yticks"]]
    assert titles[:2] == ["GPU 0", "stream 22 · kernels"]  # the streams before it took less time
    assert titles[18:21] == ["stream 39 · kernels", "Thread 9", "depth 1"]
    assert chart.note.endswith("The 28 streams and depths of threads where most went on, of 80.")
    assert [entry.name for entry in chart.key] == ["other", "gap: host busy"]
    axes = draw_element(Figure(figsize=(9, 6)), chart.element)
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 5_000), (29, 0))
    assert {"Thread 9", "depth 9"} <= {label.get_text() for label in axes.get_yticklabels()}


def test_a_run_shows_the_history_of_what_it_measured_where_there_is_one() -> None:
    run = {
        "series": "a",
        "label": HOSTILE[0],
        "metric": "duration_median_ns",
        "value_low": 99.0,
        "value_high": 101.0,
        "git_commit": "0" * 40,
    }
    levels = [(0, 100.0, 98.0, 102.0)] * 20 + [(1, 120.0, 118.0, 122.0)] * 10
    history = [
        {
            **run,
            "value": level,
            "measured_unix_ns": 10**18 + place,
            "level_index": index,
            "level_value": level,
            "level_low": low,
            "level_high": high,
        }
        for place, (index, level, low, high) in enumerate(levels)
    ]
    history[20] |= {"verdict": "REGRESSION", "change_ratio": 1.2, "is_confirmed": True, "reason": "+20.0 % in 10 runs since."}
    young = [{**run, "series": "b", "label": "saxpy", "value": 5.0, "measured_unix_ns": place, "level_index": 0} for place in range(2)]
    charts = run_charts({"history": rows("history", *history, *young)})
    assert [chart.title for chart in charts] == [f"History of {HOSTILE[0]}", "History of saxpy"]
    assert "The last: +20.0 % in 10 runs since. Of what earlier runs have too, these 2 changed most" in charts[0].note
    assert charts[1].note == "Dashed: the mean. Fewer than six runs cannot tell noise from a change."
    axes = draw_element(Figure(figsize=(9, 3)), charts[0].element)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0000000"] * 10  # of thirty runs, every third
    assert not list(hv.render(charts[0].element, backend="bokeh").select({"type": TapTool}))  # a page's click leads to its server
    assert picture(charts[1], "png").startswith(b"\x89PNG")
    assert run_charts({"history": rows("history")}) == []


def test_gaps_that_could_not_be_seen_are_not_asked_for() -> None:
    asked = {"timeline": rows("timeline", {"start_ns": 0, "duration_ns": 1_000_000})}
    asked["gaps"] = rows("gaps", {"start_ns": 0, "duration_ns": 3_999}, {"start_ns": 0, "duration_ns": 4_000})
    frames = run_frames(lambda name: asked.get(name, rows(name)).lazy(), "run-1")
    assert frames["gaps"]["duration_ns"].to_list() == [4_000]
    assert frames["timeline"].height == 1


def test_a_models_passes_have_what_its_page_shows_of_them() -> None:
    names = ("min", "median_low", "median", "median_high", "p95", "p99", "max")
    times = {f"duration_{name}_ns": 100.0 + index for index, name in enumerate(names)}
    variants = ({"variant": "baseline", "memory_bytes": 4096}, {"variant": "fused"})
    passes = [{**times, **variant, "model_name": "gpt"} for variant in variants]
    charts = run_charts({"models": rows("models", *passes)})
    assert [chart.title for chart in charts] == ["Latency of a pass", "Percentiles of a pass", "Device memory"]
    assert [entry.name for entry in charts[1].key] == ["gpt baseline", "gpt fused"]
    axes = draw_element(Figure(figsize=(5, 3)), charts[1].element)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["min", "median", "p95", "p99", "max"]
    memory = draw_element(Figure(figsize=(5, 3)), charts[2].element)
    assert [label.get_text() for label in memory.get_yticklabels()][:3] == ["0 B", "1.00 KiB", "2.00 KiB"]
    assert run_charts({"models": rows("models", {"model_name": "gpt"})}) == []


def test_a_comparison_has_speed_ups_or_changes_and_both_rooflines(sweep_tables: dict[str, pl.DataFrame]) -> None:
    verdict = {"label": "saxpy N=1000", "duration_ratio": 0.5, "duration_ratio_low": 0.4, "duration_ratio_high": 0.6, "verdict": "FASTER"}
    other = sweep_tables["roofline"].with_columns(run_id=pl.lit("run-0"))
    roofline = pl.concat([other, sweep_tables["roofline"]])
    charts = comparison_charts({"comparison": rows("comparison", verdict, {"label": "new"}), "roofline": roofline}, "run-1", "run-0")
    assert [chart.title for chart in charts] == ["Speed-up of each configuration", "Rooflines of both runs"]
    assert [[entry.name for entry in chart.key] for chart in charts] == [["faster"], ["before", "after"]]
    changes = [{"kernel_name": name, "duration_delta_ns": index - 2, "occurrence": "MATCHED"} for index, name in enumerate(HOSTILE)]
    charts = comparison_charts({"kernel_comparison": rows("kernel_comparison", *changes)}, "run-1", "run-0")
    assert [chart.title for chart in charts] == ["Kernels that changed most"]
    assert charts[0].note.startswith("Device time of the second trace less that of the first")


def test_html_is_one_file_that_asks_nobody_for_anything_and_runs_no_name(documents: dict[ReportFormat, Path]) -> None:
    page = documents[ReportFormat.HTML].read_text()
    without_library = page.replace(re.search(r"<script>.*?</script>", page, re.DOTALL).group(), "", 1)  # type: ignore[union-attr]
    assert not re.search(r"(src|href)=.?https?:|@import|url\(", without_library)
    assert HOSTILE[0] not in page
    assert html.escape(HOSTILE[3]) in page  # tables have whole names
    assert [title for title in TITLES if f'data-chart="{title}"' not in page] == []


def test_narrow_charts_stand_side_by_side_on_a_sheet() -> None:
    def chart(title: str, width: Width) -> Chart:
        return Chart(title, hv.Overlay([hv.Curve([1, 2])]), width=width)

    rows = pdf.side_by_side([chart("wide", "wide"), *(chart(name, "half") for name in "abc"), *(chart(name, "third") for name in "de")])
    assert [[one.title for one, _ in row] for row in rows] == [["wide"], ["a", "b"], ["c"], ["d", "e"]]
    for row in rows:
        edges = [edge for _, part in row for edge in (part.left, part.width - part.right)]
        assert edges == sorted(edges)
        assert (edges[0], edges[-1]) == pytest.approx((pdf.A4.left, pdf.A4.width - pdf.A4.right))


def test_pdf_has_the_runs_facts_its_charts_and_its_tables(documents: dict[ReportFormat, Path]) -> None:
    sheets = [page.extract_text() for page in PdfReader(documents[ReportFormat.PDF]).pages]
    assert "NVIDIA H100" in sheets[0]
    places = [next(place for place, text in enumerate(sheets[1:-1], start=1) if f"{title}\n" in text) for title in TITLES]
    assert places == sorted(places)
    assert len(set(places)) < len(TITLES)  # two that are not high share a sheet
    assert "Arithmetic intensity (flop/B)" in sheets[1]
    assert "1 ms" in sheets[-1]
    assert "$_0::operator()$" in sheets[places[1]]  # a dollar begins no formula


def test_powerpoint_has_a_slide_for_each_chart_with_native_words_and_tables(documents: dict[ReportFormat, Path]) -> None:
    slides = list(Presentation(str(documents[ReportFormat.PPTX])).slides)
    assert [slide.shapes.title.text_frame.text for slide in slides[1:LAST]] == TITLES
    for slide in slides[1:LAST]:
        (shown,) = [shape for shape in slide.shapes if shape.shape_type == 13]
        assert shown.image.size[0] > 2000
        assert shown._element.nvPicPr.cNvPr.get("descr").startswith("Chart: ")
    facts, table = [shape.table for slide in slides for shape in slide.shapes if shape.has_table]
    assert [cell.text_frame.text for cell in facts.rows[2].cells] == ["Device", "NVIDIA H100"]
    assert [len(table.rows), len(table.columns)] == [1 + len(HOSTILE), 2]
    assert len(table.cell(4, 0).text_frame.text) < 150


def test_nothing_on_a_slide_reaches_beyond_it_or_lies_on_something_else(tmp_path: Path) -> None:
    long, words = "template<" * 2_000, "many words of a reason " * 40
    headings = ("efficiency ratio", "kernel", "because")
    table = FigureTable("t" * 500, headings, headings[:1], [("1 %", long, words)] * 60, "And 9 more.", ["Longest first."])
    notes = FigureTable("Notes", lead=[words] * 30)
    bars = bar_chart(["a"], [[Bar(1.0)]], "flop/s", LIGHT)
    charts = [Chart("Left", bars, note=words), Chart("Right", bars, note=words), Chart("Wide", bars, "wide", words)]
    write_powerpoint(tmp_path / "a.pptx", Document(long, [("Source", long)] * 30, charts, details=[notes, table]))
    presentation = Presentation(str(tmp_path / "a.pptx"))
    slides = list(presentation.slides)
    assert [slide.shapes.title.text_frame.text for slide in slides[1:3]] == ["Left and right", "Wide"]
    for slide in slides:
        boxes = [(shape.left, shape.top, shape.left + shape.width, shape.top + shape.height) for shape in slide.shapes]
        assert max(right for _, _, right, _ in boxes) <= presentation.slide_width
        assert max(bottom for *_, bottom in boxes) <= presentation.slide_height
        for one, other in itertools.combinations(boxes, 2):
            assert min(one[2], other[2]) <= max(one[0], other[0]) or min(one[3], other[3]) <= max(one[1], other[1])
    rows = next(shape.table for shape in slides[-1].shapes if shape.has_table).rows
    assert 8 < len(rows) < 61
    assert f"{61 - len(rows)} more rows are in the other documents. And 9 more." in slides[-1].shapes[-1].text_frame.text


def test_columns_are_as_wide_as_their_cells_and_headings_give_way_first() -> None:
    table = FigureTable("t", ("efficiency ratio", "kernel", "reason"), rows=[("1.25 %", "k" * 30, "r" * 50)])
    assert column_characters(table, 200) == [16, 30, 50]
    assert column_characters(table, 90) == [10, 30, 50]
    assert column_characters(table, 60) == [10, 25, 25]
    assert cell_lines("a" * 100, 10, 2) == ["a" * 10, "…".join(("", "a" * 9))]


def test_pictures_are_a_zip_of_files_that_their_charts_name(documents: dict[ReportFormat, Path]) -> None:
    for chosen, head in ((ReportFormat.PNG, b"\x89PNG"), (ReportFormat.SVG, b"<?xml")):
        with zipfile.ZipFile(documents[chosen]) as archive:
            assert archive.namelist() == [f"{number:02d}-{file_stem(title)}.{chosen}" for number, title in enumerate(TITLES, start=1)]
            assert all(archive.read(name).startswith(head) for name in archive.namelist())
    assert file_stem("../../etc/<b>") == "etc-b"


def test_matplotlib_draws_what_bokeh_shows() -> None:
    element = bar_chart(["a", "b"], [[Bar(2e9, 1e9, 3e9), None], [Bar(4e9), Bar(1e9)]], "flop/s", LIGHT, ticks=SI_TICKS)
    axes = draw_element(Figure(figsize=(4, 3)), element)
    boxes = [box for collection in axes.collections for box in collection.get_paths() if type(collection).__name__ == "PatchCollection"]
    assert sorted(float(np.asarray(box.vertices)[:, 1].max()) for box in boxes) == [1e9, 2e9, 4e9]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert axes.get_ylabel() == "flop/s"
    assert axes.yaxis.get_major_formatter()(2e9, 0) == "2 G"


def test_figures_at_ticks_read_as_in_the_browser() -> None:
    assert [DURATION_TICKS.text(value) for value in (0, 0.5, 1500, 2e6, 1e10)] == ["0 ns", "0.5 ns", "1.5 µs", "2 ms", "10 s"]
    assert [SI_TICKS.text(value) for value in (0, 12, 1e12)] == ["0", "12", "1 T"]
    assert [PERCENT_TICKS.text(50), RATIO_TICKS.text(1.25), CLOCK_TICKS.text(0)] == ["50 %", "×1.25", "00:00:00"]


def test_long_names_keep_both_ends_and_bars_without_length_are_left_out() -> None:
    name = "void begin" + "x" * 500 + "end(int)"
    stack = [Stretch(0.0, LIGHT.bad, "nothing"), Stretch(5.0, LIGHT.good, "all")]
    bars = stacked_bars([name], [stack], "time", LIGHT, DURATION_TICKS)
    assert len(bars.Rectangles.I) == 1
    assert elided(name).startswith("void begin")
    assert elided(name).endswith("end(int)")
    chart = Chart("t", bars, note=name, key=[Key(name, LIGHT.good)])
    assert picture(chart, "png").startswith(b"\x89PNG")
    assert io.BytesIO(picture(chart, "svg")).read().startswith(b"<?xml")
