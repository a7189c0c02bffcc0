"""kernalyse.services.analyzer.ingest.counter_join and readers.ncu_trace: reports of ncu alone, and beside a trace of the same program."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.analysis.traces.kernels import counter_coverage
from kernalyse.services.analyzer.analysis.traces.timeline import Timeline, timeline_events
from kernalyse.services.analyzer.ingest.counter_join import CONFIGURATION_SOURCE, COUNTERS_SOURCE, with_reports
from kernalyse.services.analyzer.ingest.ranks import RankTrace
from kernalyse.services.analyzer.ingest.ranks import join_traces as joined_ranks
from kernalyse.services.analyzer.ingest.reading import read_with_counters
from kernalyse.services.analyzer.ingest.worker import answer as answered
from kernalyse.services.analyzer.ingest.worker_pool import ReadingResult, ReadingTask
from kernalyse.services.analyzer.queries.registry import DERIVED, FileSource, is_of_traces, resolve_table, trace_frames, trace_inputs
from kernalyse.services.analyzer.readers.base import ReadResult, Selection, TraceFiles
from kernalyse.services.analyzer.readers.ncu.csv_report import read_ncu_report
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, LAUNCH_WORK, TRACE_NAMES
from kernalyse.services.core.errors import InvalidTraceError, LimitReachedError
from tests.examples import examples
from tests.unit.ncu_report import launch, report_text, write_report
from tests.unit.nsys_export import call, kernel, write_export

SHARED = Path(__file__).parents[5] / "shared/data"
real_reports = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data beside the checkout")

WORKED = ["launch_index", "flop", "bytes", "work_source"]


def trace_of(launches: list[tuple[str, int]], process_ids: list[int] | None = None) -> ReadResult:
    """A trace of launches by name and grid; the i-th takes i + 1 nanoseconds."""
    names = list(dict.fromkeys(name for name, _ in launches))
    rows = [
        {
            "launch_index": index,
            "name_index": names.index(name),
            "process_id": 1 if process_ids is None else process_ids[index],
            "start_ns": 100 * index,
            "duration_ns": index + 1,
            **{"grid_x": grid, "grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1},
        }
        for index, (name, grid) in enumerate(launches)
    ]
    frames = {
        "kernel_launches": KERNEL_LAUNCHES.own_rows(rows),
        "trace_names": TRACE_NAMES.own_rows({"name_index": index, "name": name} for index, name in enumerate(names)),
    }
    return ReadResult(frames, notes="A trace.")


def joined(trace: ReadResult, *reports: str) -> ReadResult:
    return with_reports(trace, {f"report{index}.csv": read_ncu_report(text.encode()) for index, text in enumerate(reports)})


def work(tables: ReadResult) -> list[tuple[object, ...]]:
    return tables.frames["launch_work"].select(WORKED).rows()


# ---------------------------------------------------------------- a trace and a report


def test_launches_are_matched_by_name_configuration_and_order_and_the_mean_stands_for_the_rest() -> None:
    trace = trace_of([("saxpy(float *)", 8), ("saxpy(float *)", 16), ("saxpy(float *)", 8), ("other", 8), ("saxpy(float *)", 8)])
    report = report_text(
        [
            launch("saxpy(float*)", grid="(8, 1, 1)", ffma=10, bytes=100),
            launch("saxpy(float*)", grid="(16, 1, 1)", ffma=70, bytes=700),
            launch("saxpy(float*)", grid="(8, 1, 1)", ffma=20, bytes=300),
            launch("elsewhere()", ffma=1),
        ]
    )
    found = joined(trace, report)
    assert work(found) == [
        (0, 20.0, 100.0, COUNTERS_SOURCE),
        (1, 140.0, 700.0, COUNTERS_SOURCE),
        (2, 40.0, 300.0, COUNTERS_SOURCE),
        (4, 30.0, 200.0, CONFIGURATION_SOURCE),  # of 20 and 40 flop, of 100 and 300 bytes
    ]
    assert found.frames["launch_work"].select("dtype", "path").unique().rows() == [("float32", "fma")]
    assert found.frames["launch_work"].schema == {column.name: column.dtype() for column in LAUNCH_WORK.columns[2:]}
    # Kernels 1, 2, 3 and 5 of durations 1 to 5: 11 of 15 nanoseconds.
    assert "4 of 5 kernels (80.0%, 73.3% of their time) have counters: 3 their own" in found.notes
    assert "1 the mean of others" in found.notes
    assert "3 of its 4 launches were found in the trace." in found.notes
    assert "Not in the trace: elsewhere()." in found.notes

    coverage = counter_coverage(found.frames["kernel_launches"].lazy(), found.frames["launch_work"].lazy()).collect()
    assert coverage.rows() == [
        (COUNTERS_SOURCE, 3, pytest.approx(3 / 5), 6, pytest.approx(6 / 15)),
        (CONFIGURATION_SOURCE, 1, pytest.approx(1 / 5), 5, pytest.approx(5 / 15)),
        (None, 1, pytest.approx(1 / 5), 4, pytest.approx(4 / 15)),
    ]


@pytest.mark.parametrize(
    ("traced", "reported"),
    [
        ("void ns::saxpy<float, (int)4>(float *, int)", "void ns::saxpy<float, 4>(float*, int)"),
        ("void ns::saxpy<float, 4>(float *)", "saxpy"),  # ncu --print-kernel-base function
        ("saxpy", "void ns::saxpy<float, 4>(float *)"),  # an export with short names alone
        ("_ZN2ns5saxpyIfLi4EEEvPf", "void ns::saxpy<float, 4>(float *)"),
        ("(anonymous namespace)::saxpy(float *)", "unnamed>::saxpy(float *)"),
    ],
)
def test_names_are_compared_in_the_finest_form_that_both_write(traced: str, reported: str) -> None:
    assert work(joined(trace_of([(traced, 8)]), report_text([launch(reported, ffma=5)]))) == [(0, 10.0, 0.0, COUNTERS_SOURCE)]


def test_instances_of_one_template_are_kept_apart_where_both_tell_them() -> None:
    trace = trace_of([("void f<4>(int)", 8), ("void f<8>(int)", 8), ("void f<2>(int)", 8)])
    found = joined(trace, report_text([launch("void f<8>(int)", ffma=8), launch("void f<4>(int)", ffma=4)]))
    assert work(found) == [(0, 8.0, 0.0, COUNTERS_SOURCE), (1, 16.0, 0.0, COUNTERS_SOURCE)]


def test_another_launch_configuration_is_another_place_unless_one_side_does_not_tell_it() -> None:
    trace, report = trace_of([("f", 8), ("f", 8)]), [launch("f", grid="(9, 1, 1)", ffma=1)]
    with pytest.raises(InvalidTraceError, match=r"report0\.csv: found counters of f; expected"):
        joined(trace, report_text(report))
    assert work(joined(trace, report_text([launch("f", grid="", ffma=1)]))) == [
        (0, 2.0, 0.0, COUNTERS_SOURCE),
        (1, 2.0, 0.0, CONFIGURATION_SOURCE),
    ]


def test_processes_are_paired_as_they_appear() -> None:
    trace = trace_of([("f", 8), ("f", 8), ("f", 8)], process_ids=[500, 400, 500])
    report = report_text([launch("f", process="9", ffma=1), launch("f", process="3", ffma=2)])
    assert work(joined(trace, report)) == [
        (0, 2.0, 0.0, COUNTERS_SOURCE),
        (1, 4.0, 0.0, COUNTERS_SOURCE),
        (2, 3.0, 0.0, CONFIGURATION_SOURCE),
    ]


def test_of_several_reports_the_first_that_knows_a_figure_tells_it() -> None:
    flop_alone = report_text([launch("f", ffma=3)]).replace("dram__bytes.sum", "some__metric.sum")
    bytes_too = report_text([launch("f", ffma=9, bytes=64), launch("g", ffma=1)])
    found = joined(trace_of([("f", 8), ("g", 8)]), flop_alone, bytes_too)
    assert work(found) == [(0, 6.0, 64.0, COUNTERS_SOURCE), (1, 2.0, 0.0, COUNTERS_SOURCE)]
    assert "report0.csv: 1 of 2 kernels" in found.notes
    assert "report1.csv: 2 of 2 kernels" in found.notes


NAMES = ("void a<1>(int)", "void a<2>(int)", "b(float *)")
LAUNCHES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 2)), min_size=1, max_size=12)


@given(LAUNCHES, LAUNCHES)
@examples(60)
def test_joining_is_what_it_says_it_is(traced: list[tuple[str, int]], reported: list[tuple[str, int]]) -> None:
    """The report's i-th launch does 2 (i + 1) flop. By the rule itself, launch by launch."""
    places: dict[tuple[str, int], list[float]] = defaultdict(list)
    for index, place in enumerate(reported):
        places[place].append(2.0 * (index + 1))
    expected = []
    taken: dict[tuple[str, int], int] = defaultdict(int)
    for index, place in enumerate(traced):
        if place in places:
            position, counted = taken[place], places[place]
            taken[place] += 1
            is_own = position < len(counted)
            expected.append((index, counted[position] if is_own else sum(counted) / len(counted), 0.0))
    report = report_text([launch(name, grid=f"({grid}, 1, 1)", ffma=index + 1) for index, (name, grid) in enumerate(reported)])
    if not expected:
        with pytest.raises(InvalidTraceError):
            joined(trace_of(traced), report)
        return
    found = joined(trace_of(traced), report)
    assert [row[:3] for row in work(found)] == [(index, pytest.approx(flop), moved) for index, flop, moved in expected]


# ---------------------------------------------------------------- files


def test_a_report_among_the_files_of_an_nsys_export_counts_its_kernels(tmp_path: Path) -> None:
    export = write_export(tmp_path / "a.sqlite", kernels=[kernel(500, 900, 1), kernel(950, 1000, 2)], calls=[call(1, 2, 1)], gpus=[{}])
    report = write_report(tmp_path / "r.csv", [launch("saxpy(float*)", ffma=50, bytes=640)])
    files = TraceFiles("a.sqlite", export, 0, {"r.csv": report})
    tables = read_with_counters(files)
    assert work(tables) == [(0, 100.0, 640.0, COUNTERS_SOURCE), (1, 100.0, 640.0, CONFIGURATION_SOURCE)]
    assert "r.csv: 2 of 2 kernels" in tables.notes

    chosen = read_with_counters(files, Selection.of(trace_inputs(["counter_coverage"])))
    coverage = answer(chosen, "counter_coverage")
    assert coverage["duration_sum_ns"].to_list() == [400, 50]
    not_asked = read_with_counters(files, Selection.of(trace_inputs(["kernels"])))
    assert "launch_work" not in not_asked.frames


def two_ranks(directory: Path, report: Path, *, is_further_trace: bool) -> ReadingTask:
    """The task that joins two exports, the second with a report, or the report with them."""
    launched: dict[str, Any] = {"kernels": [kernel(500, 900, 1)], "calls": [call(1, 2, 1)], "gpus": [{}]}
    exports = [write_export(directory / f"rank{rank}.sqlite", **launched) for rank in (0, 1)]
    traces = [TraceFiles(path.name, path, 0) for path in exports]
    if is_further_trace:
        traces.append(TraceFiles(report.name, report, 0))
    else:
        traces[1] = replace(traces[1], companions={report.name: report})
    tasks = [ReadingTask(directory / f"rows{number}", (trace,), file_name=trace.file_name) for number, trace in enumerate(traces)]
    for task in tasks:
        assert ReadingResult.of_line(answered(task.line())) == ReadingResult()
    return ReadingTask(directory / "whole", staged=tuple(task.directory for task in tasks), run_id="r", file_name="rank0.sqlite")


def test_a_report_that_comes_with_one_of_several_traces_counts_its_launches(tmp_path: Path) -> None:
    report = write_report(tmp_path / "r.csv", [launch("saxpy(float*)", ffma=50, bytes=640)])
    task = two_ranks(tmp_path, report, is_further_trace=False)
    run = ReadingResult.of_line(answered(task.line())).run
    assert run is not None
    assert "rank1.sqlite: r.csv: 1 of 1 kernels" in run.notes
    stored = pl.concat([pl.read_parquet(path) for path in task.directory.rglob("launch_work*.parquet")])
    assert stored.select("launch_index", "flop", "bytes").rows() == [(1, 100.0, 640.0)]


def test_a_report_as_one_more_trace_of_a_job_is_refused(tmp_path: Path) -> None:
    task = two_ranks(tmp_path, write_report(tmp_path / "r.csv", [launch("saxpy(float*)", ffma=50)]), is_further_trace=True)
    with pytest.raises(InvalidTraceError, match=r"file r\.csv: found a report of ncu among the traces .*--counters REPORT"):
        ReadingResult.of_line(answered(task.line()))


def test_a_report_beside_what_has_no_launches_is_refused(tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    profile.write_text('[{"children": [], "frame": {"name": "ROOT"}, "metrics": {}}, {}]')
    report = write_report(tmp_path / "r.csv", [launch("f", ffma=1)])
    with pytest.raises(InvalidTraceError, match=r"no launches of kernels; expected a trace whose launches r\.csv could count"):
        read_with_counters(TraceFiles("p.json", profile, 0, {"r.csv": report}))


def read(path: Path) -> ReadResult:
    assert select_reader(TraceFiles(path.name, path, 0)).format == "ncu"
    return read_with_counters(TraceFiles(path.name, path, 0))


def answer(tables: ReadResult, name: str) -> pl.DataFrame:
    return resolve_table(find_table(name), FileSource(tables.frames)).collect()


def test_a_report_alone_is_a_trace_of_launches_without_a_start(tmp_path: Path) -> None:
    path = write_report(
        tmp_path / "r.csv",
        [launch("f(int)", ffma=5, bytes=8, duration=1_500), launch("f(int)", grid="(2, 3, 4)", duration=2_500, process="80")],
    )
    tables = read(path)
    launches = tables.frames["kernel_launches"]
    assert launches.select("launch_index", "process_id", "device_index", "stream_index", "duration_ns", "grid_y", "block_x").rows() == [
        (0, 77, 0, 7, 1500, 1, 256),
        (1, 80, 0, 7, 2500, 3, 256),
    ]
    assert work(tables) == [(0, 10.0, 8.0, COUNTERS_SOURCE), (1, 0.0, 0.0, COUNTERS_SOURCE)]
    kernels = answer(tables, "kernels")
    assert kernels.select("kernel_name", "launch_count", "duration_sum_ns", "duration_median_ns").rows() == [("f(int)", 2, 4000, 2000.0)]
    assert answer(tables, "breakdown").is_empty()  # when they ran is not known
    assert answer(tables, "layers").select("layer", "duration_sum_ns").rows() == [(None, 4000)]
    counted = answer(tables, "counted_work")
    assert counted.select("kernel_name", "flop", "dram_bytes", "duration_ns").rows() == [
        ("f(int)", 10.0, 8.0, 1500.0),
        ("f(int)", 0.0, 0.0, 2500.0),
    ]
    assert tables.frames["trace_processes"].select("process_id", "process_name", "host_name", "file_name").rows() == [
        (77, "app", "127.0.0.1", "r.csv"),
        (80, "app", "127.0.0.1", "r.csv"),
    ]
    assert tables.frames["trace_devices"]["compute_capability"].to_list() == ["9.0", "9.0"]


def test_every_answer_about_a_report_says_only_what_it_can_know(tmp_path: Path) -> None:
    """Without starts there are no gaps and no busy time; a figure made from an unknown one would be absurd."""
    rows = [launch("ncclDevKernel_AllReduce(int)", ffma=5, bytes=8, duration=1_500), launch("f", duration=20_000)]
    tables = read(write_report(tmp_path / "r.csv", rows))
    for name in filter(is_of_traces, DERIVED):
        frame = answer(tables, name)
        for column in frame.select(pl.col(pl.Int32, pl.Int64, pl.Float64)).iter_columns():
            assert column.drop_nulls().is_between(0, 1e15).all(), f"{column.name} of {name}"
        if name in ("breakdown", "gaps", "gap_reasons", "collectives"):
            assert frame.is_empty(), name
    trace = trace_frames(tables.frames)
    events = timeline_events(trace).collect()
    assert Timeline.of(events).tile(None, None, 100).is_empty()


def test_launch_statistics_of_both_pages_fill_the_launch(tmp_path: Path) -> None:
    raw = report_text([launch("f")]).splitlines()
    added = ("launch__registers_per_thread", "launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
    raw[1] += "".join(f',"{name}"' for name in added)
    raw[2] += ',"register/thread","byte/block","Kbyte/block"'
    raw[3] += ',"40","1,024","2.05"'
    (tmp_path / "raw.csv").write_text("\n".join(raw))
    details = (
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
        '"Section Name","Metric Name","Metric Unit","Metric Value"\n'
    )
    identity = '"0","77","app","h","f","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","Launch Statistics"'
    shown = (
        ("Registers Per Thread", "register/thread", "40"),
        ("Static Shared Memory Per Block", "byte/block", "1,024"),
        ("Dynamic Shared Memory Per Block", "Kbyte/block", "2.05"),
        ("Duration", "us", "3.50"),
    )
    (tmp_path / "details.csv").write_text(details + "\n".join(f'{identity},"{name}","{unit}","{value}"' for name, unit, value in shown))
    columns = ("registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes", "duration_ns")
    assert read(tmp_path / "raw.csv").frames["kernel_launches"].select(columns).rows() == [(40, 1024, 2050, 1000)]
    assert read(tmp_path / "details.csv").frames["kernel_launches"].select(columns).rows() == [(40, 1024, 2050, 3500)]


def test_what_was_not_counted_is_unknown_and_said(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(report_text([launch("f")]).replace("gpu__time_duration.sum", "some__metric.sum"))
    tables = read(path)
    assert "1 of its 1 launches have no duration" in tables.notes
    assert answer(tables, "kernels").select("launch_count", "duration_sum_ns", "duration_median_ns").rows() == [(1, None, None)]


def test_processes_of_two_hosts_are_two_and_a_repeated_id_is_a_launch_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(report_text([launch("f", host="a"), launch("f", host="b"), launch("f", host="b")], ids=("0", "1", "1")))
    tables = read(path)
    assert tables.frames["kernel_launches"]["process_id"].to_list() == [0, 1, 1]
    assert tables.frames["trace_processes"].select("process_id", "system_process_id", "host_name").rows() == [(0, 77, "a"), (1, 77, "b")]
    assert "Several rows of its page raw have the ID 1" in tables.notes


def test_reports_of_several_ranks_are_one_trace_with_all_their_counters(tmp_path: Path) -> None:
    first = read(write_report(tmp_path / "rank0.csv", [launch("f", ffma=1, duration=10), launch("g", ffma=2, duration=20)]))
    second = read(write_report(tmp_path / "rank1.csv", [launch("g", ffma=3, duration=30)]))
    whole = joined_ranks([RankTrace("rank0.csv", trace_frames(first.frames)), RankTrace("rank1.csv", trace_frames(second.frames))])
    frames = {name: frame.collect() for name, frame in whole.frames.items()}
    tables = ReadResult(frames)
    launches = frames["kernel_launches"].join(frames["trace_names"], on="name_index", maintain_order="left")
    assert launches.select("launch_index", "name", "duration_ns").rows() == [(0, "f", 10), (1, "g", 20), (2, "g", 30)]
    assert launches["process_id"].n_unique() == 2
    assert work(tables) == [(0, 2.0, 0.0, COUNTERS_SOURCE), (1, 4.0, 0.0, COUNTERS_SOURCE), (2, 6.0, 0.0, COUNTERS_SOURCE)]
    counted = answer(tables, "counted_work")
    assert counted.select("launch_index", "kernel_name", "flop").rows() == [(0, "f", 2.0), (1, "g", 4.0), (2, "g", 6.0)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
def test_reports_are_known_by_what_is_in_them_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(("hello from the program\n" * 3 + report_text([launch("f")])).encode(encoding))
    assert read(path).frames["kernel_launches"].height == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"==PROF== Connected to process 1 (app)\n==WARNING== No kernels were profiled.\n",
            r"r\.csv: found no table of launches; it begins",
        ),
        (b'"ID","Process ID","Kernel Name', r"r\.csv: found content that begins"),
        (b"==PROF== \x00\xff\xfe\x00", r"r\.csv: found no table of launches"),
        (b"label,peak_flops,peak_bandwidth\r\ntheoretical,1.0,2.0\r\n", r"r\.csv: found a table of a device's peaks"),
        (b"", r"r\.csv: found nothing in it"),
    ],
)
def test_what_is_no_report_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidTraceError, match=message):
        read_with_counters(TraceFiles("r.csv", path, 0))


def test_damage_costs_the_damaged_rows_and_says_so(tmp_path: Path) -> None:
    text = report_text([launch("f\x00g", ffma=1), launch("f", ffma=2), launch("f", ffma=4)])
    cut = text.encode()[: text.index('"2","77"') + 30]
    path = tmp_path / "r.csv"
    path.write_bytes(cut.replace(b"127.0.0.1", b"\xff\xfehost"))
    tables = read(path)
    assert tables.frames["trace_names"]["name"].to_list() == ["f\x00g", "f"]
    assert tables.frames["kernel_launches"].height == 2


def test_a_table_without_rows_has_no_kernels(tmp_path: Path) -> None:
    path = write_report(tmp_path / "r.csv", [])
    tables = read(path)
    assert "It has no kernels: nothing was profiled." in tables.notes
    for name in ("kernels", "layers", "breakdown", "counted_work", "counter_coverage"):
        assert answer(tables, name).is_empty()


def test_a_report_over_the_limit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernalyse.services.analyzer.readers.ncu.reader.MAX_REPORT_BYTES", 100)
    with pytest.raises(LimitReachedError, match="Profile fewer launches"):
        read(write_report(tmp_path / "r.csv", [launch("f")]))


# ---------------------------------------------------------------- reports of others


@real_reports
@pytest.mark.parametrize(
    ("name", "duration_ns", "moved_bytes", "grid_x"),
    [  # typed off the files: reads and writes of DRAM
        ("saxpy", 292_928, 134_221_568 + 43_631_104, 65536),
        ("gemm_naive", 9_589_248, 54_207_744 + 26_601_216, 64),
    ],
)
def test_real_reports_are_traces(name: str, duration_ns: int, moved_bytes: float, grid_x: int) -> None:
    tables = read(SHARED / f"ncu/rtx5070_{name}.csv")
    (found,) = trace_frames(tables.frames)["kernel_launches"].collect().to_dicts()
    assert (found["duration_ns"], found["grid_x"], found["start_ns"]) == (duration_ns, grid_x, None)
    assert work(tables) == [(0, None, moved_bytes, COUNTERS_SOURCE)]  # its metrics count no flop


@real_reports
def test_a_report_made_from_a_real_trace_covers_the_kernels_it_was_made_from(tmp_path: Path) -> None:
    """The report that ncu would write of the first launch of each kernel and configuration, as its own names and extents say."""
    path = SHARED / "nsys/h100x2_mfu_before.sqlite"
    trace = read_with_counters(TraceFiles(path.name, path, 0))
    launches = trace.frames["kernel_launches"].join(trace.frames["trace_names"], on="name_index").sort("launch_index")
    place = ["name", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")]
    first = launches.filter(pl.col("process_id") == launches["process_id"][0]).unique(place, keep="first", maintain_order=True)
    rows = [
        launch(
            row["name"],
            grid=f"({row['grid_x']}, {row['grid_y']}, {row['grid_z']})",
            block=f"({row['block_x']}, {row['block_y']}, {row['block_z']})",
            ffma=index + 1,
        )
        for index, row in enumerate(first.iter_rows(named=True))
    ]
    report = write_report(tmp_path / "r.csv", rows)
    found = read_with_counters(TraceFiles(path.name, path, 0, {"r.csv": report})).frames["launch_work"]
    expected = launches.join(first.select(place).with_row_index("row"), on=place).select("launch_index", flop=2.0 * (pl.col("row") + 1))
    assert found.select("launch_index", "flop").sort("launch_index").rows() == expected.sort("launch_index").rows()
    assert found.filter(pl.col("work_source") == COUNTERS_SOURCE).height == first.height
    assert len(rows) < found.height <= launches.height
