"""kernalyse.services.analyzer.readers.ncu.csv_report: what ncu prints, and everything that is printed around it."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.readers.ncu.csv_report import COUNTER_SCHEMA, LAUNCH_SCHEMA, NcuReport, read_ncu_report
from kernalyse.services.core.errors import InvalidRequestError, KernalyseError
from tests.examples import examples

SHARED = Path(__file__).parents[5] / "shared/data/ncu"
real_reports = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/ncu beside the checkout")

LAUNCH = ("0", "77", "app", "127.0.0.1", "saxpy(int, float, const float *, float *)", "1", "7", "(256, 1, 1)", "(4, 2, 1)", "0", "9.0")
COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC")
DETAILS = (*COLUMNS, "Section Name", "Metric Name", "Metric Unit", "Metric Value")


def row(*cells: str) -> str:
    quoted = ('"' + cell.replace('"', '""') + '"' for cell in cells)
    return ",".join(quoted)


def detail(name: str, value: str, unit: str = "", *, section: str = "S", launch: str = "0") -> str:
    return row(launch, *LAUNCH[1:], section, name, unit, value)


def read(*lines: str) -> NcuReport:
    return read_ncu_report("\n".join(lines).encode())


def details(*pairs: tuple[str, str]) -> NcuReport:
    return read(row(*DETAILS), *(detail(name, value) for name, value in pairs))


def numbers(report: NcuReport) -> dict[str, float | None]:
    return dict(report.counters.select("metric_name", "value").iter_rows())


RAW = (
    row(*COLUMNS, "gpu__time_duration.sum", "dram__bytes.sum", "launch__func_cache_config"),
    row(*[""] * len(COLUMNS), "ns", "Mbyte", ""),
    row(*LAUNCH, "1,234.500000", "12.500000", "CachePreferNone"),
    row("1", *LAUNCH[1:4], "void scale<float, 4>(T1 *)", *LAUNCH[5:], "2,000.000000", "", "n/a"),
)


# ---------------------------------------------------------------- reports of others


@real_reports
@pytest.mark.parametrize(
    ("name", "kernel_name", "grid", "read_bytes", "written_bytes", "duration_ns", "occupancy_percent"),
    [  # typed off the files; read bytes of saxpy: 2 arrays of 65536 * 256 floats and 3840 bytes more
        (
            "saxpy",
            "unnamed>::saxpy_kernel(float, const float *, float *, int)",
            "65536x1x1",
            2 * 4 * 2**24 + 3840,
            43_631_104,
            292_928,
            83.82,
        ),
        (
            "gemm_naive",
            "unnamed>::gemm_naive_kernel(const float *, const float *, float *, int, int, int)",
            "64x64x1",
            54_207_744,
            26_601_216,
            9_589_248,
            66.61,
        ),
        (
            "gemm_tiled",
            "void unnamed>::gemm_tiled_kernel<32>(const float *, const float *, float *, int, int, int)",
            "64x64x1",
            53_261_312,
            3_377_920,
            10_195_552,
            66.65,
        ),
    ],
)
def test_real_reports_are_read_whole(
    name: str, kernel_name: str, grid: str, read_bytes: int, written_bytes: int, duration_ns: int, occupancy_percent: float
) -> None:
    report = read_ncu_report((SHARED / f"rtx5070_{name}.csv").read_bytes())
    (launch,) = report.launches.rows(named=True)
    assert (launch["kernel_name"], launch["grid"], launch["compute_capability"]) == (kernel_name, grid, "12.0")
    assert report.notes == ()
    assert report.counters.height == 12
    assert set(report.counters["section_name"]) == {"Command line profiler metrics"}
    found = numbers(report)
    assert found["dram__bytes_op_read.sum"] == read_bytes
    assert found["dram__bytes_op_write.sum"] == written_bytes
    assert found["gpu__time_duration.sum"] == duration_ns
    assert found["sm__warps_active.avg.pct_of_peak_sustained_active"] == occupancy_percent
    assert found["smsp__thread_inst_executed_per_inst_executed.ratio"] == 32
    # A thread of a GEMM stores once: one request for each warp's 32.
    blocks = 65_536 * 256 if name == "saxpy" else 64 * 64 * 32 * 32
    assert found["l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"] == blocks / 32


@real_reports
def test_a_csv_of_something_else_is_refused_with_its_beginning() -> None:
    with pytest.raises(InvalidRequestError, match=r"label,peak_flops,peak_bandwidth.*ncu --csv --page raw"):
        read_ncu_report((SHARED / "rtx5070_peaks.csv").read_bytes())


# ---------------------------------------------------------------- pages


def test_page_raw_takes_units_from_its_second_line_and_skips_what_a_launch_lacks() -> None:
    report = read(*RAW)
    assert report.launches["kernel_name"].to_list() == [LAUNCH[4], "void scale<float, 4>(T1 *)"]
    assert report.launches.row(0, named=True)["block"] == "256x1x1"
    assert report.counters.rows() == [
        (0, None, "gpu__time_duration.sum", "ns", 1234.5, None),
        (0, None, "dram__bytes.sum", "Mbyte", 12.5, None),
        (0, None, "launch__func_cache_config", None, None, "CachePreferNone"),
        (1, None, "gpu__time_duration.sum", "ns", 2000.0, None),
        (1, None, "launch__func_cache_config", None, None, "n/a"),
    ]
    assert report.notes == ()


def test_page_details_keeps_sections_apart_and_rules_under_their_columns() -> None:
    rules = (*DETAILS, "Rule Name", "Rule Description")
    report = read(
        row(*rules),
        row(*LAUNCH, "GPU Speed Of Light Throughput", "Duration", "us", "1.50", "", ""),
        row(*LAUNCH, "Occupancy", "Duration", "us", "1.50", "", ""),
        row(*LAUNCH, "Occupancy", "", "", "", "Bound", 'The kernel is "bound", by memory.'),
        row(*LAUNCH, "Occupancy", "", "", "", "Bound", 'The kernel is "bound", by memory.'),
    )
    assert report.launches.height == 1
    assert report.counters.rows() == [
        (0, "GPU Speed Of Light Throughput", "Duration", "us", 1.5, None),
        (0, "Occupancy", "Duration", "us", 1.5, None),
        (0, "Occupancy", "Rule Name", None, None, "Bound"),
        (0, "Occupancy", "Rule Description", None, None, 'The kernel is "bound", by memory.'),
    ]


def test_several_tables_in_one_file_are_launches_of_one_report() -> None:
    report = read(*RAW, "==PROF== Connected to process 78", row(*DETAILS), detail("dram__bytes.sum", "7.5", "byte"))
    assert report.launches["launch_index"].to_list() == [0, 1, 2]
    assert report.counters.row(-1) == (2, "S", "dram__bytes.sum", "byte", 7.5, None)


def test_peaks_are_kept_as_any_metric() -> None:
    report = details(("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", "16,896"), ("gpu__new_metric.max_rate", "3.25"))
    assert numbers(report) == {
        "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": 16896.0,
        "gpu__new_metric.max_rate": 3.25,
    }


# ---------------------------------------------------------------- what stands around the table


def test_marks_progress_and_output_of_the_program_are_passed_over() -> None:
    report = read_ncu_report(
        "\r\n".join(
            (
                "\ufeff==PROF== Connected to process 77 (app)",
                'the program says "hello", "world"',
                "\ufeff" + RAW[0],
                RAW[1],
                "step 1 of 2",
                "no line break here: " + RAW[2],
                RAW[3] + "trailing words",
                '==PROF== Profiling "saxpy": 0%....50%....100% - 12 passes',
                "",
            )
        ).encode()
    )
    assert report.counters.equals(read(*RAW).counters)
    assert report.notes == ()


def test_utf_16_as_power_shell_writes_it() -> None:
    text = "\n".join(RAW)
    for encoding in ("utf-16", "utf-16-be"):
        data = text.encode(encoding) if encoding == "utf-16" else b"\xfe\xff" + text.encode(encoding)
        assert read_ncu_report(data).counters.equals(read(*RAW).counters)


def test_warnings_of_ncu_and_rows_cut_short_are_told() -> None:
    report = read("==WARNING== Note: Running with unmodified GPU clocks.", *RAW[:3], RAW[3][:80])
    assert report.launches.height == 1
    assert report.notes == (
        "ncu says: 'Note: Running with unmodified GPU clocks.'.",
        f"Line 5 is not a complete row of the table: {RAW[3][:80]!r}.",
    )


def test_a_cell_may_go_on_over_lines_and_an_unclosed_one_costs_its_row_alone() -> None:
    report = read(row(*DETAILS), detail("text", "first\nsecond"), detail("cut", "no end")[:-1], detail("a", "1.5"), detail("b", "2.5"))
    assert report.counters.select("metric_name", "value", "text").rows() == [
        ("text", None, "first\nsecond"),
        ("a", 1.5, None),
        ("b", 2.5, None),
    ]
    assert len(report.notes) == 1


def test_a_table_written_again_without_quotes_is_read() -> None:
    lines = ["ID,Process ID,Kernel Name,CC,dram__bytes.sum", ",,,,byte", '0,77,"saxpy(int, float)",9.0,"1,048,576"', "1,77,copy,9.0,512"]
    report = read(*lines)
    assert report.launches["kernel_name"].to_list() == ["saxpy(int, float)", "copy"]
    assert report.counters["value"].to_list() == [1048576.0, 512.0]
    assert set(report.counters["unit"]) == {"byte"}


@pytest.mark.parametrize(
    "data", [b"", b"==WARNING== No kernels were profiled.\n", b'"Metric Name","Metric Value"\n"a","1"\n', b"\xff\xfe\x00"]
)
def test_what_holds_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="no table of launches"):
        read_ncu_report(data)


def test_a_table_without_rows_is_an_empty_report_that_says_so() -> None:
    report = read(RAW[0], RAW[1])
    assert (report.launches.height, report.counters.height) == (0, 0)
    assert report.launches.schema == pl.Schema(LAUNCH_SCHEMA)
    assert report.counters.schema == pl.Schema(COUNTER_SCHEMA)
    assert report.notes == ("Its table has no metric of any launch.",)


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("evidence", "cell", "value"),
    [
        ("1.5", "1,234", 1234.0),
        ("1.5", "1,234,567.25", 1234567.25),
        ("1.5", "12,34,567", 1234567.0),  # India's groups
        ("1,5", "1.234", 1234.0),
        ("1,5", "27.595.520", 27595520.0),
        ("1,5", "1.234,567", 1234.567),
        ("65,77", "27 595 520", 27595520.0),  # French
        ("65,77", "27\u202f595\u202f520", 27595520.0),
        ("1.5", "27'595'520.5", 27595520.5),  # Swiss
        ("", "1.234", 1.234),  # no evidence: ncu's default
        ("", "1,234", 1234.0),
        ("", "0.125", 0.125),
        ("", "-3", -3.0),
        ("", "1.5e+06", 1.5e6),
        ("", "0x1F", 31.0),
        ("", "(!) 12.5", 12.5),
        ("", "5.25 (1; 2; 3)", 5.25),
    ],
)
def test_numbers_of_any_locale(evidence: str, cell: str, value: float) -> None:
    report = details(("evidence", evidence), ("metric", cell))
    assert numbers(report)["metric"] == value


@pytest.mark.parametrize("cell", ["n/a", "nan", "inf", "(!) n/a", "1.2.3", "65,77", "12 parsecs", "0x", "1e999", "", "Device 0"])
def test_what_is_no_number_stays_text(cell: str) -> None:
    report = details(("evidence", "1,234,567.5"), ("metric", cell))
    assert report.counters.row(1)[4:] == (None, cell or None)


def test_annotated_numbers_keep_their_text_too() -> None:
    assert details(("metric", "5.25 (1; 2; 3)")).counters.row(0)[4:] == (5.25, "5.25 (1; 2; 3)")


def test_two_styles_of_numbers_in_one_report_are_told() -> None:
    report = details(("a", "1.25"), ("b", "2.25"), ("c", "3,5"))
    assert numbers(report) == {"a": 1.25, "b": 2.25, "c": None}
    assert "written in two ways" in report.notes[0]


# ---------------------------------------------------------------- anything at all


VALID = [
    row(*DETAILS),
    *(detail(f"metric_{place}", f"{place}.5", "byte", launch=str(place // 5), section=f"section {place % 3}") for place in range(30)),
]
RAW_VALID = [*RAW[:2], *(row(str(place), *LAUNCH[1:], f"{place}.5", f"{place}.25", "text") for place in range(10))]
junk_lines = st.text(st.characters(exclude_characters='"\n\r', exclude_categories=["Cs"]), max_size=40)


@given(data=st.data())
@examples(300)
def test_whatever_happens_to_a_report_it_is_read_or_refused(data: st.DataObject) -> None:
    text = "\n".join(data.draw(st.sampled_from((VALID, RAW_VALID))))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(text)))
        kind = data.draw(st.sampled_from(("cut", "insert", "drop", "double", "swap")))
        length = data.draw(st.integers(0, 60))
        inserted = data.draw(st.text(st.sampled_from('",\n\r\\0123456789.()!=PROF abc\ufeff\x00'), max_size=20))
        match kind:
            case "cut":
                text = text[:place]
            case "insert":
                text = text[:place] + inserted + text[place:]
            case "drop":
                text = text[:place] + text[place + length :]
            case "double":
                text = text[: place + length] + text[place:]
            case _:
                text = text[:place] + text[place:][::-1]
    try:
        report = read_ncu_report(text.encode())
    except KernalyseError:
        return
    assert report.counters.schema == pl.Schema(COUNTER_SCHEMA)
    assert set(report.counters["launch_index"]) <= set(report.launches["launch_index"])


@given(st.binary(max_size=400))
@examples(200)
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    for candidate in (data, "\n".join(VALID[:3]).encode() + data):
        with suppress(KernalyseError):
            read_ncu_report(candidate)


@given(st.lists(st.tuples(st.integers(0, 31), junk_lines), max_size=10), st.sampled_from((VALID, RAW_VALID)))
@examples(200)
def test_lines_in_between_cost_no_row(junk: list[tuple[int, str]], lines: list[str]) -> None:
    mixed = list(lines)
    for place, text in junk:
        mixed.insert(min(place, len(mixed)), text)
    assert read(*mixed).counters.equals(read(*lines).counters)


@given(st.integers(0, 2**32))
@examples(200)
def test_a_damaged_line_costs_no_other_row(seed: int) -> None:
    """One line is cut somewhere; those before and after it are all there."""
    draw = random.Random(seed)
    damaged = draw.randrange(1, len(VALID))
    cut = VALID[damaged][: draw.randrange(len(VALID[damaged]))]
    found = set(read(*VALID[:damaged], cut, *VALID[damaged + 1 :]).counters["metric_name"])
    assert found >= {f"metric_{place}" for place in range(30)} - {f"metric_{damaged - 1}"}


def test_a_report_of_10_000_rows_takes_a_second_at_most() -> None:
    """Also where nothing fits: the search for the beginning of a row must not take the square of a line's length."""
    lines = [row(*COLUMNS, *(f"metric_{place}.sum" for place in range(100)))]
    lines += [row(str(launch), *LAUNCH[1:], *(f"{place},{launch % 900 + 100}.5" for place in range(1, 101))) for launch in range(100)]
    report = read(*lines, '"' * 20_000, '"a",' * 5_000)
    assert report.counters.height == 10_000
    assert report.counters["value"][-1] == 100_199.5
