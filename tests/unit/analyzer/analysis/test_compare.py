"""Two runs compared, by hand: what belongs together, what is refused, what is decided, and how it is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand, Difference, compare_runs, join_runs, parse_differences
from kernalyse.services.analyzer.tables.derived import COMPARISON
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS, SAMPLES
from kernalyse.services.cli.compare_output import comparison_rendering, slower_rows, summary_lines
from kernalyse.services.cli.options import ReadableFormat
from kernalyse.services.cli.output import Rendering, as_json, as_markdown, print_rendering
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Device, DeviceKind
from tests.integration.profiler_stand_in import H200

CPU = Device("opencl:intel:0", "A CPU", DeviceKind.CPU, ())


def measured(index: int, median_ns: float = 1_000.0, *, n: int = 8, process: int = 0, **values: Any) -> dict[str, Any]:
    row = {"configuration_index": index, "kernel_name": "k", "label": f"k N={n}", "parameters": json.dumps({"N": n}), "macros": "{}"}
    row |= {"block": "32x1x1", "dtype": "float32", "variant": "", "cache_mode": "HOT", "process_index": process}
    row |= {"device_id": CPU.device_id, "backend": "OPENCL", "timing_method": "SINGLE", "is_blocked": False, "seed": 0}
    row |= {
        "input_distribution": "uniform",
        "clocks": "as it is",
        "verification_state": "PASSED",
        "duration_median_ns": median_ns,
        "event_index": index,
    }
    return row | values


def side(
    run_id: str, rows: Sequence[dict[str, Any]], *, clock_hz: int | None = None, has_samples: bool = True, **values: Any
) -> ComparisonOperand:
    """Each measurement with 40 samples that spread by 1 % around its median."""
    random = np.random.default_rng(len(run_id) + len(rows))
    samples = [
        {"configuration_index": row["configuration_index"], "duration_ns": duration_ns, "is_discarded": False, "sm_clock_hz": clock_hz}
        for row in rows
        for duration_ns in row["duration_median_ns"] * random.lognormal(0.0, 0.01, 40)
    ]
    frames = (
        frame_from_rows(MEASUREMENTS, [row | {"run_id": run_id} for row in rows]),
        frame_from_rows(SAMPLES, samples if has_samples else []),
    )
    return ComparisonOperand(run_id, *frames, **({"node_id": "node-1", "devices": {CPU.device_id: CPU}} | values))


def by_processes(medians_ns: Sequence[float], **values: Any) -> list[dict[str, Any]]:
    said = {"variant": "process=1", "label": "k N=8 process=1"} | values
    return [measured(index, median_ns, process=index) | said for index, median_ns in enumerate(medians_ns)]


def rows_of(baseline: ComparisonOperand, candidate: ComparisonOperand, *allowed: Difference) -> list[dict[str, Any]]:
    found = compare_runs(baseline, candidate, frozenset(allowed))
    assert found.schema == pl.Schema(COMPARISON.schema)
    return found.rows(named=True)


FAST = (1_000.0, 1_010.0, 990.0, 1_005.0, 995.0)
SLOW = tuple(1.1 * median_ns for median_ns in FAST)


# ---------------------------------------------------------------- what belongs together


def test_configurations_match_by_kernel_parameters_type_block_macros_and_form() -> None:
    before = [
        measured(0),
        measured(1, n=16),
        measured(2, block="64x1x1"),
        measured(3, macros='{"TILE": 4}'),
        measured(4, dtype="float64"),
        measured(5, variant="T=F32"),
        measured(6, kernel_name="gone", label="gone N=8"),
    ]
    after = [row | {"configuration_index": 10 - row["configuration_index"]} for row in before[:-1]] + [measured(11, n=32)]
    rows = rows_of(side("a", before), side("b", after))
    assert [(row["baseline_configuration_index"], row["configuration_index"]) for row in rows if row["occurrence"] == "MATCHED"] == [
        (5, 5), (4, 6), (3, 7), (2, 8), (1, 9), (0, 10),
    ]  # fmt: skip
    assert [(row["occurrence"], row["label"], row["verdict"]) for row in rows[6:]] == [("NEW", "k N=32", None), ("GONE", "gone N=8", None)]
    assert {(row["run_id"], row["baseline_run_id"]) for row in rows} == {("b", "a")}


def test_the_order_of_parameters_and_words_that_only_some_runs_have_do_not_matter() -> None:
    before = measured(0, parameters='{"N": 8, "M": 4}', variant="block=32")
    after = measured(0, parameters='{"M": 4, "N": 8}', variant="hot process=1")
    assert [row["occurrence"] for row in rows_of(side("a", [before]), side("b", [after]))] == ["MATCHED"]


def whole_pass(index: int, median_ns: float = 1_000.0, *, batch_size: int = 4, **values: Any) -> dict[str, Any]:
    inputs = {"batch_size": batch_size, "parameter_count": 100 + index}
    said = {"kernel_name": "a.onnx", "label": "a.onnx batch_size=4", "category": "model", "parameters": json.dumps(inputs)}
    return measured(index, median_ns) | said | values


def test_two_versions_of_a_model_are_held_against_each_other_as_whole_passes() -> None:
    before = side("a", [whole_pass(0), measured(1, layer_path="fc")])
    after = side("b", [whole_pass(3, 500.0, kernel_name="b.onnx", label="b.onnx batch_size=4", variant="fused"), measured(4)])
    versions, layer, gone = rows_of(before, after)
    assert (versions["label"], versions["occurrence"]) == ("b.onnx batch_size=4 against a.onnx", "MATCHED")
    assert versions["duration_ratio"] == pytest.approx(0.5, rel=0.01)
    assert (layer["occurrence"], gone["occurrence"]) == ("NEW", "GONE")
    for other in ([whole_pass(0, batch_size=8)], [whole_pass(0), whole_pass(1)], [measured(0)]):
        assert "MATCHED" not in [row["occurrence"] for row in rows_of(side("a", other), side("b", [whole_pass(3)]))]


# ---------------------------------------------------------------- what is decided


def test_a_process_a_side_is_undecided_and_five_decide() -> None:
    (single,) = rows_of(side("a", [measured(0)]), side("b", [measured(0, 2_000.0)]))
    assert (single["verdict"], single["process_count"], single["baseline_process_count"]) == ("UNDECIDED", 1, 1)
    assert single["duration_ratio"] == pytest.approx(2.0, rel=0.01)
    assert "a single process each cannot decide" in single["reason"]
    (slower,) = rows_of(side("a", by_processes(FAST)), side("b", by_processes(SLOW)))
    assert (slower["verdict"], slower["label"], slower["process_count"], slower["baseline_process_count"]) == ("SLOWER", "k N=8", 5, 5)
    assert slower["duration_ratio_low"] < slower["duration_ratio"] == pytest.approx(1.1, rel=0.01)
    assert slower["duration_ratio_high"] > slower["duration_ratio"]
    assert (slower["duration_median_ns"], slower["baseline_duration_median_ns"]) == (pytest.approx(1_100.0), 1_000.0)
    (faster,) = rows_of(side("a", by_processes(SLOW)), side("b", by_processes(FAST)))
    assert faster["verdict"] == "FASTER"
    steady = [1_000.0 + index for index in range(5)]
    (same,) = rows_of(side("a", by_processes(steady)), side("b", by_processes(steady)))
    assert same["verdict"] == "SAME"


def test_runs_that_repeat_each_other_are_processes_of_one_side() -> None:
    def runs(name: str, medians_ns: Sequence[float]) -> ComparisonOperand:
        measurements = ([measured(0, median_ns), measured(1, 500.0, n=16)] for median_ns in medians_ns)
        return join_runs([side(f"{name}{index}", rows) for index, rows in enumerate(measurements)])

    slower, equal = rows_of(runs("a", FAST), runs("b", SLOW))
    assert (slower["run_id"], slower["baseline_run_id"]) == ("b0,b1,b2,b3,b4", "a0,a1,a2,a3,a4")
    assert (slower["label"], slower["verdict"], slower["process_count"], slower["baseline_process_count"]) == ("k N=8", "SLOWER", 5, 5)
    assert slower["duration_ratio"] == pytest.approx(1.1, rel=0.01)
    assert (equal["label"], equal["verdict"], equal["duration_median_ns"]) == ("k N=16", "SAME", 500.0)
    of_processes = join_runs([side("c", by_processes(SLOW[:3])), side("d", []), side("e", by_processes(SLOW[3:]))])
    (row,) = rows_of(side("a", by_processes(FAST)), of_processes)
    assert (row["verdict"], row["process_count"]) == ("SLOWER", 5)


def test_a_run_and_its_copy_are_not_two_processes() -> None:
    first, again, later = (side(name, [measured(0, measured_unix_ns=moment)]) for name, moment in (("a", 1), ("a.json", 1), ("b", 2)))
    with pytest.raises(InvalidRequestError, match=r"runs b,a,a.json: found one measurement of k N=8 more than once"):
        join_runs([later, first, again])
    assert join_runs([first, later]).run_ids == ("a", "b")


def test_a_side_of_runs_from_two_nodes_differs_from_one_of_a_single_node() -> None:
    mixed = join_runs([side("b", [measured(0)]), side("c", [measured(0)], node_id="node-2")])
    with pytest.raises(InvalidRequestError, match="node_id node-1 and node-1/node-2"):
        compare_runs(side("a", [measured(0)]), mixed)


def test_one_process_that_measured_five_times_is_one_process() -> None:
    again = [measured(index, median_ns) for index, median_ns in enumerate(SLOW)]
    (row,) = rows_of(side("a", by_processes(FAST)), side("b", again))
    assert (row["verdict"], row["process_count"]) == ("UNDECIDED", 1)


def test_a_difference_that_the_clock_made_is_undecided() -> None:
    before = side("a", by_processes(FAST), clock_hz=1_100_000_000)
    after = side("b", by_processes(SLOW), clock_hz=1_000_000_000)
    (row,) = rows_of(before, after)
    assert (row["verdict"], row["cycle_ratio"]) == ("UNDECIDED", pytest.approx(1.0, rel=0.01))
    (agreeing,) = rows_of(before, side("b", by_processes(SLOW), clock_hz=1_100_000_000))
    assert (agreeing["verdict"], agreeing["cycle_ratio"]) == ("SLOWER", pytest.approx(1.1, rel=0.01))


def test_wrong_results_are_never_judged() -> None:
    wrong = side("b", by_processes([median_ns / 2 for median_ns in FAST], verification_state="FAILED"))
    (row,) = rows_of(side("a", by_processes(FAST)), wrong)
    assert (row["verdict"], "results of the second run are wrong" in row["reason"]) == ("UNDECIDED", True)


def test_medians_stand_for_samples_that_another_tool_has_not_kept() -> None:
    (row,) = rows_of(side("a", by_processes(FAST), has_samples=False), side("b", by_processes(SLOW), has_samples=False))
    assert row["verdict"] == "SLOWER"


def test_discarded_samples_do_not_count() -> None:
    run = side("b", by_processes(FAST))
    disturbed = run.samples.with_columns(duration_ns=pl.col("duration_ns") * 3, is_discarded=pl.lit(True))
    (row,) = rows_of(side("a", by_processes(FAST)), replace(run, samples=pl.concat([run.samples, disturbed])))
    assert row["duration_ratio"] == pytest.approx(1.0, abs=0.01)


def test_a_difference_of_one_percent_counts_on_a_gpu_and_not_on_a_cpu() -> None:
    steady = [1_000.0 + index / 10 for index in range(5)]
    more = [1.01 * median_ns for median_ns in steady]

    def verdict(device: Device) -> str:
        before, after = (
            side(run_id, by_processes(medians_ns, device_id=device.device_id), devices={device.device_id: device})
            for run_id, medians_ns in (("a", steady), ("b", more))
        )
        return str(rows_of(before, after)[0]["verdict"])

    assert (verdict(H200), verdict(CPU)) == ("SLOWER", "SAME")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("difference", "values", "said"),
    [
        (Difference.DEVICE, {"device_id": "opencl:pocl:0"}, "another device (device_id opencl:intel:0 and opencl:pocl:0"),
        (Difference.METHOD, {"timing_method": "BATCHED"}, "another method (timing_method SINGLE and BATCHED)"),
        (Difference.METHOD, {"backend": "NVCC"}, "another method (backend OPENCL and NVCC)"),
        (Difference.METHOD, {"clocks": "SM locked to 1980 MHz"}, "another method (clocks as it is and SM locked to 1980 MHz)"),
        (Difference.CACHE, {"cache_mode": "COLD"}, "another cache (cache_mode HOT and COLD)"),
        (Difference.INPUTS, {"seed": 1}, "other inputs (seed 0 and 1)"),
        (Difference.INPUTS, {"input_distribution": "zeros"}, "other inputs (input_distribution uniform and zeros)"),
    ],
)
def test_what_differs_is_refused_by_name_unless_it_is_allowed(difference: Difference, values: dict[str, Any], said: str) -> None:
    before, after = side("a", by_processes(FAST)), side("b", by_processes(SLOW, **values))
    with pytest.raises(InvalidRequestError) as refused:
        compare_runs(before, after)
    assert said in refused.value.message
    assert f"--allow {difference}" in refused.value.message
    (row,) = rows_of(before, after, difference)
    assert (row["verdict"], row["allowed_differences"]) == ("SLOWER", difference.value)
    with pytest.raises(InvalidRequestError):
        compare_runs(before, after, frozenset(Difference) - {difference})


def test_a_device_is_told_by_its_uuid_where_it_has_one_and_by_its_node_where_not() -> None:
    known = measured(0, device_uuid="GPU-1")
    assert rows_of(side("a", [known]), side("b", [known], node_id="node-2"))
    with pytest.raises(InvalidRequestError, match="GPU-1 and GPU-2"):
        compare_runs(side("a", [known]), side("b", [measured(0, device_uuid="GPU-2")]))
    with pytest.raises(InvalidRequestError, match="node_id node-1 and node-2"):
        compare_runs(side("a", [measured(0)]), side("b", [measured(0)], node_id="node-2"))
    with pytest.raises(InvalidRequestError, match="device_name A CPU and Another"):
        compare_runs(side("a", [measured(0)]), side("b", [measured(0)], devices={CPU.device_id: replace(CPU, name="Another")}))
    assert rows_of(side("a", [measured(0)]), side("b", [measured(0)], node_id=None, devices={}))  # unknown is not different


def test_why_clocks_are_as_they_are_is_no_difference_and_unknown_clocks_are_none() -> None:
    refused, unknown = measured(0, clocks="as it is: no permission to lock clocks"), measured(0, clocks=None)
    assert rows_of(side("a", [measured(0)]), side("b", [refused]))
    assert rows_of(side("a", [unknown]), side("b", [measured(0, clocks="SM locked to its base")]))


def test_both_cache_modes_beside_one_is_no_difference() -> None:
    rows = rows_of(side("a", [measured(0), measured(1, cache_mode="COLD")]), side("b", [measured(0, cache_mode="COLD")]))
    assert [(row["occurrence"], row["cache_mode"]) for row in rows] == [("MATCHED", "COLD"), ("GONE", "HOT")]


def test_differences_of_what_only_one_run_has_are_none() -> None:
    assert len(rows_of(side("a", [measured(0)]), side("b", [measured(0, n=16, seed=7)]))) == 2


def test_an_unknown_difference_is_answered_with_those_there_are() -> None:
    assert parse_differences(("cache", "device")) == {Difference.CACHE, Difference.DEVICE}
    with pytest.raises(InvalidRequestError, match="device, method, cache, inputs"):
        parse_differences(("weather",))


# ---------------------------------------------------------------- how it is said


def comparison() -> pl.DataFrame:
    before = side("a", [*by_processes(FAST), measured(7, n=16), measured(8, n=32, label="k|old")])
    return compare_runs(before, side("b", [*by_processes(SLOW), measured(7, n=16), measured(9, n=64)]))


def test_the_summary_counts_says_what_undecided_means_and_what_is_too_slow() -> None:
    lines = list(summary_lines(comparison(), 0.02))
    assert lines == [
        "2 compared: 1 slower, 1 undecided.",
        "1 only in the second run.",
        "1 only in the first run.",
        "Undecided says neither that it is the same nor that it is not.",
        "Slower by more than 2 %: k N=8.",
    ]
    assert list(summary_lines(comparison(), 0.2))[-1] == "Slower by more than 20 %: none that is known to be."
    assert (slower_rows(comparison(), 0.02).height, slower_rows(comparison(), 0.2).height) == (1, 0)
    nothing = compare_runs(side("a", [measured(0)]), side("b", [measured(0, n=16)]))
    assert next(summary_lines(nothing, 0.02)) == "No configuration is in both runs: nothing was compared."


def test_markdown_has_the_words_and_a_row_for_each_configuration() -> None:
    text = as_markdown(comparison_rendering(comparison(), None))
    assert text.startswith("- 2 compared: 1 slower, 1 undecided.\n")
    table = text[text.index("| configuration") :].splitlines()
    assert len(table) == 2 + 4
    assert all(line.replace("\\|", "").count("|") == 10 for line in table)
    assert "k\\|old" in table[-1]
    assert "| slower |" in table[2]


def test_a_reason_that_several_share_is_said_once_below_the_table() -> None:
    rows = compare_runs(side("a", [measured(0), measured(1, n=16)]), side("b", [measured(0), measured(1, n=16), measured(2, n=32)]))
    rendering = comparison_rendering(rows, None)
    (note,) = rendering.tables[0].notes
    assert note.startswith("Note 1: Medians of one kernel differ")
    table = as_markdown(rendering).splitlines()
    assert [line.endswith("| note 1 |") for line in table[-5:-2]] == [True, True, False]
    assert table[-1] == note
    assert comparison_rendering(comparison(), None).tables[0].notes == ()


def test_json_has_every_column_and_says_whether_something_is_slower() -> None:
    document = json.loads(as_json(comparison_rendering(comparison(), 0.02)))
    assert (document["schema"], document["is_slower"], len(document["comparison"])) == ("kernalyse-comparison/1", True, 4)
    assert set(document["comparison"][0]) == set(COMPARISON.column_names)
    assert json.loads(as_json(comparison_rendering(comparison(), None)))["is_slower"] is False


def test_the_table_for_the_terminal_has_a_row_for_each_configuration_and_the_words_below(capsys: pytest.CaptureFixture[str]) -> None:
    rendering = comparison_rendering(comparison(), None)
    print_rendering(rendering, ReadableFormat.TABLE)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert len(lines) == 2 + 4 + len(rendering.summary)
    assert (lines[-len(rendering.summary) :], printed.err) == (list(rendering.summary), "")


@pytest.mark.parametrize(("output_format", "written"), [(ReadableFormat.JSON, as_json), (ReadableFormat.MARKDOWN, as_markdown)])
def test_the_words_do_not_disturb_what_programs_read(
    output_format: ReadableFormat, written: Callable[[Rendering], str], capsys: pytest.CaptureFixture[str]
) -> None:
    rendering = comparison_rendering(comparison(), None)
    print_rendering(rendering, output_format)
    assert capsys.readouterr() == (written(rendering), "\n".join(rendering.summary) + "\n")
