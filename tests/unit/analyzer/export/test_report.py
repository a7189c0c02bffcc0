"""Reports: what they say of a trace and of a sweep, figures with units by hand, and text of others that stays text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kernalyse.services.analyzer.export.report_files import render_text_report, report_format
from kernalyse.services.analyzer.export.report_sections import MAX_ROW_COUNT, TableLookup, build_report, cell, table_section
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.cli.output import number
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.formatting import ceiling_rate
from kernalyse.services.core.model import ImportedTrace, KernelSweep, Run, RunSpec, RunState
from kernalyse.services.core.report import Report, ReportFormat, Section
from kernalyse.services.ui import theme
from tests.unit.run_results import sweep_results

RUN = Run(
    run_id="run-1",
    node_id="",
    spec=RunSpec(ImportedTrace("a.sqlite", "sha256:0", "nsys-sqlite"), title="a trace"),
    state=RunState.SUCCEEDED,
    create_time=datetime(2026, 1, 2, tzinfo=UTC),
    start_time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    notes="1 of 3 kernels has no runtime call.",
)


def tables(**rows: list[dict[str, Any]]) -> TableLookup:
    return lambda name: frame_from_rows(find_table(name), rows.get(name, []))


KERNELS = [
    {"kernel_name": "gemm", "launch_count": 4, "duration_sum_ns": 6_000_000, "share_ratio": 0.75, "duration_min_ns": 1_000_000,
     "duration_median_ns": 1.5e6, "duration_max_ns": 2_000_000},
    {"kernel_name": "relu<float>", "launch_count": 1000, "duration_sum_ns": 2_000_000, "share_ratio": 0.25, "duration_min_ns": 999,
     "duration_median_ns": 2000.0, "duration_max_ns": 3000},
]  # fmt: skip
TRACE = tables(
    kernels=KERNELS,
    layers=[{"layer": None, "call_count": 0, "launch_count": 3, "duration_sum_ns": 500, "share_ratio": 0.5}],
    trace_devices=[{"device_index": 0, "device_name": "H100"}, {"device_index": 1, "device_name": "H100"}, {"device_index": 2}],
    breakdown=[{"device_index": 0, "device_name": "H100", "process_id": 1, "span_ns": 10_000, "busy_ns": 7500, "idle_ns": 2500}],
)


def section(report: Report, title: str) -> Section:
    return next(section for section in report.sections if section.title == title)


def test_a_trace_has_devices_kernels_and_layers_with_units() -> None:
    report = build_report(RUN, TRACE)
    assert [section.title for section in report.sections] == ["Run", "Devices", "Kernels by device time", "Layers by device time", "Notes"]
    kernels = section(report, "Kernels by device time")
    assert dict(zip(kernels.headings, kernels.rows[0], strict=True)) == {
        "kernel": "gemm", "launches": "4", "time": "6 ms", "share": "75 %", "mean": "1.5 ms", "shortest": "1 ms", "median": "1.5 ms",
        "longest": "2 ms",
    }  # fmt: skip
    assert dict(zip(kernels.headings, kernels.rows[1], strict=True))["launches"] == "1,000"
    devices = section(report, "Devices")
    row = dict(zip(devices.headings, devices.rows[0], strict=True))
    assert (row["busy"], row["idle"], row.get("communicating")) == ("7.5 µs", "2.5 µs", None)  # unknown of every device: no column
    assert section(report, "Layers by device time").rows[0][0] == "(outside of every one)"
    facts = {"Source": "imported from a.sqlite, read as nsys-sqlite", "Ended": "unknown", "Device": "2 × H100, 1 without a name"}
    assert dict(section(report, "Run").facts).items() >= facts.items()
    assert section(report, "Notes").sentences == ("1 of 3 kernels has no runtime call.",)


def test_a_sweep_has_its_outcome_best_roofline_ceilings_and_failures(tmp_path: Path) -> None:
    frames = sweep_results(tmp_path).frames
    run = replace(RUN, node_id="node-1", hostname="gpu-7", spec=RunSpec(KernelSweep(())), notes="")
    report = build_report(run, lambda name: frames.get(name, find_table(name).empty()))
    assert ("Source", "measured on node gpu-7") in section(report, "Run").facts
    assert section(report, "Outcome").sentences[0] == "2 configurations measured, 1 not."
    failed = section(report, "Not measured")
    assert failed.rows == ((frames["failures"]["label"][0], "COMPILE_FAILED", "line 3: expected ;"),)
    ceilings = section(report, "Ceilings")
    assert ("cuda:0", "dram", "copy", "4 TB/s", "measured") in [row[:5] for row in ceilings.rows]
    roofline = section(report, "Roofline")
    times = {row[0]: dict(zip(roofline.headings, row, strict=True))["time"] for row in roofline.rows}
    assert set(times.values()) == {"5 µs", "5.25 µs"}
    assert report.sections[0].title == "Run"
    assert "Notes" not in [section.title for section in report.sections]


def test_the_rest_of_a_long_table_is_counted_and_told_where() -> None:
    many = [KERNELS[0] | {"kernel_name": f"k{index}"} for index in range(MAX_ROW_COUNT + 3)]
    kernels = section(build_report(RUN, tables(kernels=many)), "Kernels by device time")
    assert len(kernels.rows) == MAX_ROW_COUNT
    assert kernels.footnotes == ("And 3 more: kernalyse show run-1 kernels.",)


def test_an_empty_run_still_says_what_it_is() -> None:
    report = build_report(replace(RUN, notes=""), tables())
    assert [section.title for section in report.sections] == ["Run"]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("duration_ns", 1_234_000, "1.234 ms"),
        ("share_ratio", 0.5, "50 %"),
        ("achieved_flop_per_s", 2e12, "2 Tflop/s"),
        ("achieved_bytes_per_s", 3.5e9, "3.5 GB/s"),
        ("intensity_flop_per_byte", 0.25, "0.25 flop/B"),
        ("moved_bytes", 2048, "2 KiB"),
        ("sm_clock_hz", 1_980_000_000, "1.98 GHz"),
        ("launch_count", 12345, "12,345"),
        ("is_real", True, "yes"),
        ("anything", None, "unknown"),
    ],
)
def test_figures_have_the_unit_of_their_column(column: str, value: object, expected: str) -> None:
    assert cell(column, value) == expected


def test_plain_text_is_aligned() -> None:
    report = build_report(RUN, TRACE)
    lines = render_text_report(report, ReportFormat.TEXT).splitlines()
    assert lines[:2] == ["Report of a trace", "=================="[: len("Report of a trace")]]
    heading = next(line for line in lines if line.startswith("kernel "))
    gemm = next(line for line in lines if line.startswith("gemm"))
    assert heading.index("launches") + len("launches") == gemm.index("4") + 1  # figures end under the end of their heading
    assert all(line == line.rstrip() for line in lines)


# ---------------------------------------------------------------- text of others


def markdown_cells(text: str) -> list[list[str]]:
    """Text of the cells of a document's tables, as a parser of Markdown reads them."""
    rows: list[list[str]] = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for position, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        if token.type in ("th_open", "td_open"):
            children = tokens[position + 1].children or []
            assert {child.type for child in children} <= {"text"}, "markup"
            rows[-1].append("".join(child.content for child in children))
    return rows


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=3))
def test_markdown_keeps_any_name_as_it_is(names: list[str]) -> None:
    given_rows = tuple((f"x{name}x", "1") for name in names)
    report = Report("t", (Section("s", headings=("kernel", "count"), is_numeric=(False, True), rows=given_rows),))
    found = markdown_cells(render_text_report(report, ReportFormat.MARKDOWN))
    assert found[0] == ["kernel", "count"]
    for (name, _), row in zip(given_rows, found[1:], strict=True):
        plain = " ".join(name.split())
        assert [len(row[0]), row[1]] == [len(plain), "1"]
        assert all(right in (left, "\N{REPLACEMENT CHARACTER}") for left, right in zip(plain, row[0], strict=True))


@pytest.mark.parametrize(
    "sentence", ["# no heading", "- no item", "1. no item", "2) none", "+ none", "a & b &lt; c", "<b>none</b>", "~~x~~"]
)
def test_a_sentence_of_others_is_no_markup(sentence: str) -> None:
    written = render_text_report(Report("t", (Section("s", sentences=(sentence,)),)), ReportFormat.MARKDOWN)
    paragraph = MarkdownIt("commonmark").enable("strikethrough").parse(written)[-2]
    assert [child.content for child in paragraph.children or []] == [sentence]


def test_no_name_steers_a_terminal_or_breaks_a_line() -> None:
    kernels = tables(kernels=[KERNELS[0] | {"kernel_name": "\x1b[2Jevil\nname\x00"}])
    text = render_text_report(build_report(replace(RUN, spec=replace(RUN.spec, title="\x1b[31mred")), kernels), ReportFormat.TEXT)
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "evil name" in text


def test_a_sentence_is_whole_and_one_that_rows_share_is_said_once_below_them() -> None:
    why = "No kernel ran in 34.34 of 298.7 ms; 2.951 ms of that went to copies and fills alone, and nobody knows of the rest."
    frame = pl.DataFrame(
        {"subject": ["a", "b", "c"], "lost_ns": [1, 2, 3], "flop": [None] * 3, "reason": [why, "unknown to all", "unknown to all"]}
    )
    made = table_section("Look", frame, {"what": "subject", "saved": "lost_ns", "flop": "flop", "why": "reason"})
    assert made is not None
    assert made.headings == ("what", "saved", "why")
    assert [row[-1] for row in made.rows] == [why, "note 1", "note 1"]
    assert made.footnotes == ("Note 1: unknown to all",)
    for chosen in (ReportFormat.TEXT, ReportFormat.MARKDOWN):
        assert why in render_text_report(Report("r", (made,)), chosen)


@pytest.mark.parametrize(("ceiling_name", "expected"), [("int8", "600 Top/s"), ("float16", "600 Tflop/s")])
def test_rates_of_integers_are_of_operations(ceiling_name: str, expected: str) -> None:
    assert ceiling_rate(6e14, "flop_per_s", ceiling_name) == expected
    assert cell("achieved_flop_per_s", 6e14, ceiling_name) == expected
    assert number("achieved_flop_per_s", 6e14, ceiling_name) == expected
    assert theme.flop_rate(6e14, ceiling_name) == expected


def test_long_names_keep_both_ends() -> None:
    name = "void begin" + "x" * 500 + "end(int)"
    text = render_text_report(build_report(RUN, tables(kernels=[KERNELS[0] | {"kernel_name": name}])), ReportFormat.TEXT)
    (line,) = [line for line in text.splitlines() if line.startswith("void begin")]
    assert "…" in line
    assert "end(int)" in line


def test_formats_that_are_none_are_refused_by_name() -> None:
    assert [report_format(name).is_drawn for name in ("text", "markdown", "html", "pdf", "pptx", "png", "svg")] == [False] * 2 + [True] * 5
    with pytest.raises(InvalidRequestError, match="found 'doc'"):
        report_format("doc")


def test_tables_are_read_by_name_alone() -> None:
    asked: list[str] = []

    def table_of(name: str) -> pl.DataFrame:
        asked.append(name)
        return find_table(name).empty()

    build_report(RUN, table_of)
    assert len(asked) == len(set(asked))  # each is worked out once
