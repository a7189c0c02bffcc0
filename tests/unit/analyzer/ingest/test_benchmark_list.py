"""Lists of benchmarked kernels in JSON and CSV: what columns say, what is worked out, and damage by line and column."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.ingest.reading import read_with_counters
from kernalyse.services.analyzer.queries.registry import FileSource, resolve_table
from kernalyse.services.analyzer.readers.registry import read_trace, select_reader
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.errors import InvalidTraceError
from tests.examples import examples
from tests.unit.read_file import files_of, read_as, rows_of

GEMMS = [
    {"name": "Kernel A", "M": 1024, "N": 512, "K": 256, "tflops": 100, "batch": 32, "dtype": "f32", "model": "modelX"},
    {"name": "Kernel B", "M": 64, "N": 32, "K": 16, "tflops": 80.5, "batch": 64, "dtype": "f16", "model": "modelY"},
]
CONFIG = {"peak_tops": 200.0, "mem_bw": 1000.0}


def roofline(tables: Any) -> list[dict[str, Any]]:
    return resolve_table(find_table("roofline"), FileSource(tables.frames)).collect().to_dicts()


def test_matrix_products_have_work_by_their_sizes_and_rates_as_stated(tmp_path: Path) -> None:
    tables = read_as("benchmark_list", files_of(tmp_path, GEMMS))
    first, second = rows_of(tables, "measurements")
    assert (first["kernel_name"], first["model_name"], first["batch_size"], first["dtype"]) == ("Kernel A", "modelX", 32, "float32")
    assert first["flop"] == 2.0 * 1024 * 512 * 256
    assert first["bytes"] == 4.0 * (1024 * 256 + 256 * 512 + 1024 * 512)
    assert (second["stated_flop_per_s"], second["bytes"]) == (80.5e12, 2.0 * (64 * 16 + 16 * 32 + 64 * 32))
    assert first["parameters"] == '{"M": 1024, "N": 512, "K": 256}'
    assert (first["duration_mean_ns"], first["duration_median_ns"]) == (None, None)  # a time that nobody stated is not made up
    rows = roofline(tables)
    assert [row["achieved_flop_per_s"] for row in rows] == [100e12, 80.5e12]
    assert rows[0]["intensity_flop_per_byte"] == first["flop"] / first["bytes"]
    assert [(row["model_name"], row["batch_size"]) for row in rows] == [("modelX", 32), ("modelY", 64)]


def test_an_intensity_that_is_stated_places_a_kernel_without_work(tmp_path: Path) -> None:
    content = [{"kernel": "k", "Arithmetic Intensity (FLOP/byte)": 50, "Performance (TFLOP/s)": 20, "dtype": "fp16"}]
    tables = read_as("benchmark_list", files_of(tmp_path, content, {"roofline_config.json": CONFIG}))
    (row,) = roofline(tables)
    assert (row["intensity_flop_per_byte"], row["achieved_flop_per_s"], row["achieved_bytes_per_s"]) == (50.0, 20e12, 4e11)
    # 50 flop/B x 1 TB/s = 50 Tflop/s are attainable.
    assert (row["bound"], row["efficiency_ratio"], row["efficiency_category"]) == ("memory", pytest.approx(0.4), "memory inefficient")


A100: dict[str, Any] = {"device": "NVIDIA A100-SXM4-80GB"}


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "A100 80GB SXM"])
def test_a_list_that_names_a_known_gpu_is_held_against_its_data_sheet(tmp_path: Path, name: str) -> None:
    rows = [{"kernel": "saxpy", "time_us": 100, "flops": 2e6, "bytes": 102e6, "dtype": "f32"}, GEMMS[1]]
    tables = read_with_counters(files_of(tmp_path, [row | {"device": name} for row in rows]))
    saxpy, gemm = roofline(tables)
    assert (saxpy["memory_ceiling_bytes_per_s"], saxpy["compute_ceiling_flop_per_s"]) == (2.039e12, 19.5e12)
    assert (saxpy["bound"], saxpy["ceiling_source"], saxpy["efficiency_ratio"]) == ("memory", "datasheet", pytest.approx(0.5002, abs=1e-4))
    assert gemm["compute_ceiling_flop_per_s"] == 312e12  # of float16 the sheet has tensor cores alone
    assert f"Ceilings of {name}: datasheet of A100 80GB SXM alone." in tables.notes


def test_peaks_that_were_given_come_before_the_data_sheet(tmp_path: Path) -> None:
    content = [GEMMS[0] | A100]
    (row,) = roofline(read_with_counters(files_of(tmp_path, content, {"roofline_config.json": CONFIG})))
    assert (row["compute_ceiling_flop_per_s"], row["memory_ceiling_bytes_per_s"], row["ceiling_source"]) == (200e12, 1e12, "user")


def test_without_a_device_or_with_an_unknown_one_a_note_says_how_to_give_peaks(tmp_path: Path) -> None:
    tables = read_with_counters(files_of(tmp_path, GEMMS))
    assert "No device is named, so nothing has a roof: add a column device" in tables.notes
    assert "peak_tops (10^12 operations/s) and mem_bw (GB/s) in a roofline_config.json beside it" in tables.notes
    tables = read_with_counters(files_of(tmp_path, [GEMMS[0] | {"device": "Unheard Of 9000"}]))
    assert (
        "No data sheet is known of Unheard Of 9000, so nothing has a roof: give its peaks on the Roofline page under Hardware"
        in tables.notes
    )
    timed = read_with_counters(files_of(tmp_path, [{"kernel": "k", "time_us": 1, "device": "Unheard Of 9000"}]))
    assert "data sheet" not in timed.notes  # nothing of it could stand under a roof
    given = read_with_counters(files_of(tmp_path, GEMMS, {"roofline_config.json": CONFIG}))
    assert "so nothing has a roof" not in given.notes


def test_times_in_every_unit_become_nanoseconds(tmp_path: Path) -> None:
    names = ["time_ns", "time_us", "duration_ms", "latency (s)", "mean_microseconds", "median_ms"]
    content = [{"name": name, name: 1.5, "flops": 3e9, "bytes": 1e9} for name in names]
    rows = rows_of(read_as("benchmark_list", files_of(tmp_path, content)), "measurements")
    expected = {"time_ns": 1.5, "time_us": 1500, "duration_ms": 1.5e6, "latency (s)": 1.5e9, "mean_microseconds": 1500, "median_ms": 1.5e6}
    assert {row["kernel_name"]: row["duration_median_ns"] or row["duration_mean_ns"] for row in rows} == expected
    assert [row["kernel_name"] for row in rows if row["duration_median_ns"] is not None] == ["median_ms"]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_csv_says_the_same_as_json(tmp_path: Path, separator: str, mark: str, line_end: str) -> None:
    written = io.StringIO(newline="")
    writer = csv.DictWriter(written, list(GEMMS[0]), delimiter=separator, lineterminator=line_end)
    writer.writeheader()
    writer.writerows(GEMMS)
    from_csv = read_as("benchmark_list", files_of(tmp_path, mark + written.getvalue()))
    from_json = read_as("benchmark_list", files_of(tmp_path, GEMMS))
    for table_name in ("configurations", "measurements"):
        assert from_csv.frames[table_name].equals(from_json.frames[table_name])


def test_quoted_cells_blank_lines_and_decimal_commas_are_read(tmp_path: Path) -> None:
    content = '\ufeffname;"time (ms)";note\n\n"a ""quoted"";\nname";1,5;\n\nb;2.5;"x;y"\n'
    rows = rows_of(read_as("benchmark_list", files_of(tmp_path, content)), "measurements")
    assert [(row["kernel_name"], row["duration_mean_ns"], row["variant"]) for row in rows] == [
        ('a "quoted";\nname', 1.5e6, ""),
        ("b", 2.5e6, "note=x;y"),
    ]


def test_nothing_of_a_row_is_dropped(tmp_path: Path) -> None:
    content = "name,time_ms,tile,layout,tflops,gflops\nk,1.5,16,row,2,2000\n"
    (row,) = rows_of(read_as("benchmark_list", files_of(tmp_path, content)), "measurements")
    assert row["parameters"] == '{"tile": 16, "gflops": 2000}'  # a second rate says nothing that is not said
    assert row["variant"] == "layout=row"
    assert row["stated_flop_per_s"] == 2e12


def test_a_row_without_a_figure_is_a_failure(tmp_path: Path) -> None:
    tables = read_as("benchmark_list", files_of(tmp_path, "kernel,time_us,N\na,,5\nb,3,6\n"))
    assert [(row["label"], row["reason"]) for row in rows_of(tables, "failures")] == [("a N=5", "NOT_TIMED")]
    assert [row["label"] for row in rows_of(tables, "measurements")] == ["b N=6"]


def test_devices_are_those_of_the_rows(tmp_path: Path) -> None:
    content = "kernel,time_us,gpu\na,1,A100\nb,3,H100\n"
    tables = read_as("benchmark_list", files_of(tmp_path, content, {"roofline_config.json": CONFIG}))
    assert tables.device_id is None
    assert {row["device_id"] for row in rows_of(tables, "ceilings")} == {"A100", "H100"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,time_ms\na,fast\n", "line 2: time_ms: found \"fast\"; expected a number over zero"),
        ("name,time_ms\na,1\n\nb,-2\n", "line 4: time_ms: found \"-2\""),
        ("name,time_ms\na,1,7\n", "line 2: found 3 cells; expected 2.*name, time_ms"),
        ("name,time_ms\na\n", "line 2: found 1 cells"),
        ("name,time_ms,name\na,1,b\n", "line 1, column 3: found a second column 'name'"),
        ("name,time_ms,\na,1,b\n", "line 1, column 3: found a column without a name"),
        ("name,time_ms\n,1\n", "line 2: found no name"),
        ("name,time_ms,batch\na,1,many\n", "line 2: batch: found \"many\"; expected a whole number"),
        ('name,time_ms\n"a,1\nb,2\n', "line 2: found unexpected end of data"),
        ('name,time_ms\n"a"b,1\n', "line 2"),
        (b"name,time_ms\nok,1\n\xff\xfe,1\n", "line 3: found byte 0xff"),
        ("name,time_ms\n", "no result in it"),
        ("time_ms,flops\n1,2\n", "line 1: found the columns time_ms, flops; expected a column for the kernel's name"),
        ("name;dtype;M\na;f32;5\n", "line 1: found the columns name, dtype, M; expected a column for its time or rate"),
        ([{"name": "a", "time_ms": 1}, {"name": "b", "time_ms": "soon"}], "item 1: time_ms: found \"soon\""),
        ([{"name": "a", "time_ms": 1}, {"time_ms": 1}], "item 1: found no name"),
        ([{"name": "a", "time_ms": 1}, 5], "item 1: found 5"),
        ([{"name": "a", "time_ms": True}], "item 0: time_ms: found true"),
    ],
)  # fmt: skip
def test_damage_is_named_by_line_and_column(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read_trace(files_of(tmp_path, content))


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,2\n",
        "name\nk\n",
        [],
        "name,time_ms\0\nk,1\n",
    ],
)
def test_other_tables_are_not_taken_for_lists_of_benchmarks(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InvalidTraceError, match="a list of benchmarked kernels"):
        read_trace(files_of(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "reader_format"),
    [
        ('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","k","dram__bytes.sum","byte","5"\n', "ncu"),
        ([{"frame": {"name": "ROOT"}, "metrics": {"time (ns)": 5}}], "proton"),
    ],
)
def test_what_a_reader_knows_better_is_no_list_of_benchmarks(tmp_path: Path, content: Any, reader_format: str) -> None:
    assert select_reader(files_of(tmp_path, content)).format.startswith(reader_format)


cells = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).filter(lambda text: text.strip() == text)


@examples(80)
@given(rows=st.lists(st.tuples(cells, st.floats(1e-6, 1e6)), min_size=1, max_size=5), separator=st.sampled_from(",;\t|"))
def test_what_the_csv_module_writes_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Any], separator: str) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=separator).writerows([("kernel", "time_ns"), *rows])
    tables = read_as("benchmark_list", files_of(tmp_path_factory.mktemp("csv"), written.getvalue()))
    found = [(row["kernel_name"], row["duration_mean_ns"]) for row in rows_of(tables, "measurements")]
    assert found == rows
