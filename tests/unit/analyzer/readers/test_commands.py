"""commands.json: work of each built-in type by hand and by brute force, a user's registry sound and broken, damage by place."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.queries.registry import FileSource, resolve_table
from kernalyse.services.analyzer.readers import operation_list
from kernalyse.services.analyzer.readers.base import ReadResult
from kernalyse.services.analyzer.readers.documents import DTYPE_NAMES, JsonObject
from kernalyse.services.analyzer.readers.operation_costs import OPERATION_TYPES, STATED_WORK_FIELDS, built_in_work
from kernalyse.services.analyzer.readers.operation_list import ANSWERS_FILE_NAME, HELD_MEMBERS, OpRegistry, ask_registry, operations_of
from kernalyse.services.analyzer.readers.registry import read_trace
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.errors import InvalidTraceError
from tests.examples import examples
from tests.unit.read_file import files_of, read_as, rows_of

CONV = {
    "type": "ID_CONV",
    "name": "#1",
    "data_type": "INT8",
    "input_shape": [1, 64, 1, 224, 224],
    "output_channels": 128,
    "kernel_size": [1, 3, 3],
    "stride": [1, 2, 2],
    "padding": [0, 1, 1],
    "time_ns": 850000.0,
}
MUL = {
    "type": "ID_MUL",
    "name": "#2",
    "data_type": "FP32",
    "input_self": [1, 1, 1, 1, 2048],
    "input_other": [1, 1, 1, 1, 2048],
    "time_ns": 2100.0,
}
MM = {"type": "ID_MM", "name": "#3", "data_type": "FP16", "input_mat1": [2, 4, 3], "input_mat2": [3, 5], "time_ns": 10}
ADDMM = MM | {"type": "ID_ADDMM", "name": "#4", "input_input": [5]}
CONFIG = {"peak_tops": 32.0, "mem_bw": 50.0, "mem_thresh": 40, "comp_thresh": 60}


def configurations(directory: Path, *operations: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    return rows_of(read_as("commands", files_of(directory, list(operations), **options)), "configurations")


def test_operations_become_configurations_with_their_work(tmp_path: Path) -> None:
    found = configurations(tmp_path, CONV, MUL, MM, ADDMM)
    conv_output = 128 * 112 * 112  # (224 + 2 - 3) / 2 + 1, rounded down
    assert [(row["flop"], row["bytes"], row["symbol"], row["dtype"]) for row in found] == [
        (2.0 * conv_output * 64 * 9, 64 * 224 * 224 + 128 * 64 * 9 + conv_output, "square", "int8"),
        (2048.0, 3 * 2048 * 4.0, "triangle-up", "float32"),
        (2.0 * 2 * 4 * 5 * 3, (24 + 15 + 40) * 2.0, "circle", "float16"),
        (2.0 * 2 * 4 * 5 * 3, (24 + 15 + 40 + 5) * 2.0, "circle", "float16"),
    ]
    assert [row["label"] for row in found] == ["#1 ID_CONV", "#2 ID_MUL", "#3 ID_MM", "#4 ID_ADDMM"]
    assert found[0]["parameters"] == '{"output_channels": 128}'
    assert "input_shape=1x64x1x224x224" in found[0]["variant"]


def test_times_are_those_of_the_file_and_microseconds_are_converted(tmp_path: Path) -> None:
    in_us = {name: value for name, value in MM.items() if name != "time_ns"} | {"time_us": 2.5}
    tables = read_as("commands", files_of(tmp_path, [CONV, in_us, MM | {"time_ns": None}]))
    assert [row["duration_mean_ns"] for row in rows_of(tables, "measurements")] == [850000.0, 2500.0]
    assert [row["label"] for row in rows_of(tables, "failures")] == ["#3 ID_MM"]
    assert all(row["duration_median_ns"] is None for row in rows_of(tables, "measurements"))  # nobody says that it is one


def test_the_configuration_beside_it_makes_ceilings_and_categories(tmp_path: Path) -> None:
    fast_mul = MUL | {"name": "fast", "time_ns": 3 * 2048 * 4 / 40e9 * 1e9}  # 40 GB/s of 50
    normal_mul = MUL | {"name": "normal", "time_ns": 3 * 2048 * 4 / 25e9 * 1e9}
    tables = read_as("commands", files_of(tmp_path, [CONV, fast_mul, normal_mul], {"roofline_config.json": CONFIG}))
    rows = resolve_table(find_table("roofline"), FileSource(tables.frames)).collect().to_dicts()
    assert [row["efficiency_category"] for row in rows] == ["memory inefficient", "memory bound", "normal"]
    assert rows[1]["efficiency_ratio"] == pytest.approx(0.8)
    assert {(row["ceiling_name"], row["value"], row["source"]) for row in rows_of(tables, "ceilings")} == {
        ("dram", 50e9, "user"),
        ("int8", 32e12, "user"),
        ("float32", 32e12, "user"),
    }
    (thresholds,) = rows_of(tables, "thresholds")
    assert (thresholds["memory_inefficient_ratio"], thresholds["compute_inefficient_ratio"]) == (0.4, 0.6)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peak_tops": 0}, r"roofline_config\.json: peak_tops.*found 0.*over zero"),
        ({"mem_bw": "fast"}, "mem_bw"),
        ({"mem_thresh": 101}, "mem_thresh.*0 to 100"),
        ('{"peak_tops"', r"roofline_config\.json: found JSON that cannot be read"),
        ([], "found a list; expected an object"),
    ],
)
def test_a_damaged_configuration_is_named(tmp_path: Path, config: object, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read_trace(files_of(tmp_path, [CONV], {"roofline_config.json": config}))


def test_without_a_configuration_nothing_is_known_of_the_device(tmp_path: Path) -> None:
    tables = read_as("commands", files_of(tmp_path, [CONV]))
    assert rows_of(tables, "ceilings") == rows_of(tables, "thresholds") == []
    assert "no roofline_config.json" in tables.notes


# ---------------------------------------------------------------- what is not known, and what is damaged


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (CONV | {"kernel_size": [1, 3]}, "operation 1 .*kernel_size.*3 numbers"),
        (CONV | {"stride": [1, 0, 2]}, "stride.*from 1"),
        (CONV | {"input_shape": [1, 64, 1, 2, 2], "padding": 0}, "kernel_size.*fits the padded input"),
        (CONV | {"groups": 3}, "groups.*divisor of the 64"),
        (CONV | {"input_shape": [1, 64, 1, -224, 224]}, "input_shape.*whole numbers"),
        (CONV | {"input_shape": None}, "input_shape.*found null"),
        (MM | {"input_mat2": [4, 5]}, "input_mat2.*3 rows"),
        (MM | {"input_mat1": [3]}, "input_mat1.*2 to 16 extents"),
        (MUL | {"input_other": [3, 7]}, "input_other.*fits 1x1x1x1x2048"),
        (ADDMM | {"input_input": [4]}, r"input_input: found \[4\]; expected a shape that extends to 2x4x5"),
        (CONV | {"input_shape": [2**40] * 16, "kernel_size": 2**39, "stride": 1, "padding": 0}, "input_shape.*a float can hold"),
        (MM | {"data_type": "FP3"}, "data type FP3"),
        (MM | {"data_type": None}, "data type not stated"),
    ],
)
def test_an_operation_that_makes_no_sense_is_a_star_and_the_rest_loads(tmp_path: Path, operation: dict[str, Any], message: str) -> None:
    tables = read_as("commands", files_of(tmp_path, [CONV, operation, MUL]))
    found = rows_of(tables, "configurations")
    assert [row["symbol"] for row in found] == ["square", "star", "triangle-up"]
    assert (found[1]["flop"], found[1]["bytes"]) == (None, None)
    assert len(rows_of(tables, "measurements")) == 3
    (warning,) = [row["line"] for row in rows_of(tables, "log_lines") if row["level"] == "WARNING"]
    assert re.search(message, warning)
    assert warning in tables.notes


def test_an_unknown_type_is_a_star_unless_it_says_its_work(tmp_path: Path) -> None:
    unknown = {"type": "ID_WHAT", "data_type": "INT8", "time_ns": 5}
    tables = read_as("commands", files_of(tmp_path, [unknown, unknown | {"macs": 10, "bytes": 4}]))
    assert [(row["flop"], row["bytes"], row["symbol"]) for row in rows_of(tables, "configurations")] == [
        (None, None, "star"),
        (20.0, 4.0, "diamond"),
    ]
    assert "ID_WHAT (1)" in tables.notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([MM | {"time_ns": -1}], r"operation 0 \(#3, ID_MM\): time_ns.*over zero"),
        ([MM | {"time_ns": "soon"}], "time_ns.*a number"),
        ([MM | {"type": 5}], "item 0: type.*found 5"),
        ([MM, 7], "item 1: found 7"),
        ('[{"type": "ID_MM", "time_ns": 1', "JSON that cannot be read"),
        ('[{"type": "ID_MM", "time_ns": 1e999}]', "time_ns"),
        (b'[{"type": "ID_MM", "time_ns": 1, "name": "\xff"}]', "cannot be read"),
    ],
)
def test_a_damaged_list_is_refused_by_place(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read_trace(files_of(tmp_path, content))


def problems(tables: ReadResult) -> list[str]:
    return [row["line"] for row in rows_of(tables, "log_lines") if row["level"] == "WARNING"]


@pytest.mark.parametrize(("operation", "names"), [(MM, ("input_mat1", "input_mat2")), (CONV, ("stride", "output_channels"))])
def test_a_missing_field_is_told_as_missing_with_those_that_its_type_needs(
    tmp_path: Path, operation: dict[str, Any], names: tuple[str, ...]
) -> None:
    without = {name: value for name, value in operation.items() if name != names[0]}
    tables = read_as("commands", files_of(tmp_path, [operation, without]))
    (problem,) = problems(tables)
    assert f"operation 1 ({operation['name']}, {operation['type']}): {names[0]}" in problem
    assert f"The field {names[0]} is missing." in problem
    assert all(name in problem.partition(" needs ")[2] for name in names)
    assert "damaged" not in problem


def test_numbers_of_four_bits_take_half_a_byte(tmp_path: Path) -> None:
    operations = [MUL | {"data_type": data_type} for data_type in ("INT4", "UINT4", "FP4")]
    tables = read_as("commands", files_of(tmp_path, operations, {"roofline_config.json": CONFIG}))
    assert [(row["dtype"], row["bytes"]) for row in rows_of(tables, "configurations")] == [
        ("int4", 3 * 2048 * 0.5),
        ("uint4", 3 * 2048 * 0.5),
        ("float4", 3 * 2048 * 0.5),
    ]
    rows = resolve_table(find_table("roofline"), FileSource(tables.frames)).collect().to_dicts()
    assert all(row["efficiency_category"] is not None for row in rows)
    assert problems(tables) == []


def test_whatever_has_no_place_is_a_problem_of_the_log_with_its_reason(tmp_path: Path) -> None:
    unknown = {"type": "ID_WHAT", "data_type": "INT8", "time_ns": 5}
    untimed = {name: value for name, value in MUL.items() if name != "time_ns"}
    tables = read_as("commands", files_of(tmp_path, [MUL, untimed, MUL | {"data_type": "INT3"}, unknown, unknown]))
    found = problems(tables)
    assert len(found) == 3
    assert "operation 1 (#2, ID_MUL): neither time_ns nor time_us, so it has no place on the roofline" in found[0]
    assert "data type INT3: the bytes of a number are not known, so it has no place" in found[1]
    assert "int4, uint4, int8" in found[1]
    assert re.search("Type ID_WHAT .2.: neither a formula nor a registry .* no place on the roofline. State macs and bytes", found[2])
    assert all(problem in tables.notes for problem in found)


def test_every_field_of_every_type_is_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operation_lists.md").read_text()
    rows = {cells[1].strip().strip("`"): cells[2] for line in page.splitlines() if len(cells := line.split("|")) > 3}
    for name in HELD_MEMBERS:
        assert f"`{name}`" in page
    for name, known in OPERATION_TYPES.items():
        documented = set(re.findall(r"`(\w+)`", rows[name]))
        assert documented == {*known.required, *known.optional}, name
    assert set(re.findall(r"`(\w+)`", rows["any other"])) == set(STATED_WORK_FIELDS)
    assert all(dtype in page for dtype in DTYPE_NAMES)


# ---------------------------------------------------------------- formulas against brute force


extents = st.integers(1, 4)


@examples(60)
@given(data=st.data())
def test_a_convolution_has_the_multiply_adds_of_its_loops(data: Any) -> None:
    groups = data.draw(st.integers(1, 2))
    n, channels, out_channels = data.draw(extents), groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 2))
    size = data.draw(st.tuples(st.integers(3, 6), st.integers(3, 6)))
    kernel, stride, padding, dilation = (
        data.draw(st.tuples(st.integers(low, high), st.integers(low, high))) for low, high in ((1, 2), (1, 3), (0, 2), (1, 2))
    )
    operation = {
        "type": "ID_CONV",
        "input_shape": [n, channels, *size],
        "output_channels": out_channels,
        "kernel_size": list(kernel),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "groups": groups,
    }
    positions = [
        [place for place in range(-padding[axis], size[axis] + padding[axis], stride[axis])
         if place + dilation[axis] * (kernel[axis] - 1) < size[axis] + padding[axis]]
        for axis in range(2)
    ]  # fmt: skip
    output_count = n * out_channels * len(list(itertools.product(*positions)))
    macs = output_count * (channels // groups) * kernel[0] * kernel[1]
    work = built_in_work(JsonObject("it", operation), 2)
    assert work is not None
    assert work.flop == 2 * macs
    moved = n * channels * size[0] * size[1] + out_channels * (channels // groups) * kernel[0] * kernel[1] + output_count
    assert work.bytes == 2 * moved


@examples(60)
@given(batch=st.lists(extents, max_size=2), m=extents, n=extents, k=extents, is_shared=st.booleans())
def test_a_matrix_product_moves_what_numpy_holds(batch: list[int], m: int, n: int, k: int, is_shared: bool) -> None:
    left, right = np.zeros((*batch, m, k)), np.zeros((k, n) if is_shared else (*batch, k, n))
    product = left @ right
    operation = {"type": "ID_MM", "input_mat1": list(left.shape), "input_mat2": list(right.shape)}
    work = built_in_work(JsonObject("it", operation), 8)
    assert work is not None
    assert work.bytes == left.nbytes + right.nbytes + product.nbytes
    assert work.flop == 2 * k * product.size


# ---------------------------------------------------------------- a user's registry


def registry(directory: Path, source: str) -> Path:
    place = directory / "registry"
    place.mkdir()
    (place / "op_registry.py").write_text(source)
    return place


SOUND = """
import math

def get_custom_metrics(cmd, dt_size):
    ctype = cmd["type"]
    if ctype == "ID_MY_OP":
        cmd["shape"].append(99)
        return math.prod(cmd["shape"][:-1]), 10 * dt_size, "cross"
    elif ctype == "ID_MUL":
        return 7, 8, "x"
    return 0, 0, "star"
"""


def test_a_registry_comes_before_the_formulas_and_leaves_the_rest_to_them(tmp_path: Path) -> None:
    mine = {"type": "ID_MY_OP", "name": "mine", "data_type": "FP16", "shape": [3, 4], "time_ns": 5}
    found = configurations(tmp_path, mine, MUL, MM, registry=registry(tmp_path, SOUND))
    assert [(row["flop"], row["bytes"], row["symbol"]) for row in found] == [
        (24.0, 20.0, "cross"),
        (14.0, 8.0, "x"),
        (240.0, 158.0, "circle"),
    ]
    assert "shape=3x4" in found[0]["variant"]  # what it does to its copy changes nothing here


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("return 1 / 0", "line 3, operation 0 .*ZeroDivisionError"),
        ("return cmd['nothing'], 1, 'x'", "line 3, operation 0 .*KeyError"),
        ("raise SystemExit(3)", "line 3, operation 0 .*SystemExit"),
        ("return -1, 2, 'x'", r"line 1, operation 0 .*found the answer \(-1, 2, 'x'\)"),
        ("return float('nan'), 2, 'x'", "line 1, operation 0 .*nan"),
        ("return 1, 2", r"line 1, operation 0 .*found the answer \(1, 2\)"),
        ("return 1, 2, None", "line 1, operation 0 .*None"),
        ("return 5", "line 1, operation 0 .*found the answer 5"),
        ("import json; return json.loads('{')", "line 3, operation 0 .*JSONDecodeError"),
    ],
)
def test_a_registry_that_fails_is_named_with_file_line_and_operation(tmp_path: Path, line: str, found: str) -> None:
    source = f"def get_custom_metrics(cmd, dt_size):\n    if cmd['type'] == 'ID_MUL':\n        {line}\n"
    tables = read_as("commands", files_of(tmp_path, [MUL, MM], registry=registry(tmp_path, source)))
    assert [row["symbol"] for row in rows_of(tables, "configurations")] == ["star", "circle"]
    (warning,) = [row["line"] for row in rows_of(tables, "log_lines") if row["level"] == "WARNING"]
    assert re.search(rf"op_registry\.py, {found}", warning), warning


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def get_custom_metrics(cmd, dt_size)\n    return 1\n", r"op_registry\.py, line 1: found SyntaxError"),
        ("import nothing_of_that_name\n", r"op_registry\.py, line 1: found ModuleNotFoundError"),
        ("x = 5\n", "no function get_custom_metrics"),
        ("raise SystemExit\n", "line 1: found SystemExit"),
    ],
)
def test_a_registry_that_cannot_be_loaded_leaves_the_formulas(tmp_path: Path, source: str, found: str) -> None:
    tables = read_as("commands", files_of(tmp_path, [MUL, MM], registry=registry(tmp_path, source)))
    assert [row["symbol"] for row in rows_of(tables, "configurations")] == ["triangle-up", "circle"]
    assert re.search(found, tables.notes)


@pytest.mark.parametrize(
    ("line", "found"),
    [("while True: pass", "operation 0 .*found no answer within 1 s; it was ended"), ("os._exit(3)", "operation 0 .*ended with status 3")],
)
def test_a_registry_that_does_not_answer_is_ended_and_leaves_the_formulas(
    tmp_path: Path, line: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"import os\nprint('loaded')\ndef get_custom_metrics(cmd, dt_size):\n    if cmd['type'] == 'ID_MUL':\n        {line}\n"
    loaded, process_ids = OpRegistry.__init__, []

    def then_hurried(self: OpRegistry, directory: Path) -> None:
        loaded(self, directory)
        assert self._process is not None
        process_ids.append(self._process.pid)
        monkeypatch.setattr(operation_list, "ANSWER_LIMIT_S", 1.0)

    monkeypatch.setattr(OpRegistry, "__init__", then_hurried)
    tables = read_as("commands", files_of(tmp_path, [MUL, MM, MUL], registry=registry(tmp_path, source)))
    assert [row["symbol"] for row in rows_of(tables, "configurations")] == ["star", "circle", "triangle-up"]
    (warning,) = [row["line"] for row in rows_of(tables, "log_lines") if row["level"] == "WARNING"]
    assert re.search(rf"op_registry\.py, {found}", warning), warning
    assert not psutil.pid_exists(process_ids[0])


def test_a_directory_without_a_registry_is_said(tmp_path: Path) -> None:
    tables = read_as("commands", files_of(tmp_path, [MM], registry=tmp_path))
    assert re.search("No such file.*op_registry_directory", tables.notes)


def test_answers_that_came_with_the_list_count_and_no_registry_runs_here(tmp_path: Path) -> None:
    """As of a registry of the sender, whose analyzer has one of its own."""
    mine = {"type": "ID_MY_OP", "name": "mine", "data_type": "FP16", "shape": [3, 4], "time_ns": 5}
    operations = [mine, MUL | {"data_type": "INT3"}, MM]
    files = files_of(tmp_path, operations)
    answers = ask_registry(registry(tmp_path, SOUND), operations_of(files)).document()
    here = tmp_path / "here"
    here.mkdir()
    forbidden = registry(here, f"open({str(here / 'ran')!r}, 'w')\n")
    tables = read_as("commands", files_of(tmp_path, operations, {ANSWERS_FILE_NAME: answers}, registry=forbidden))
    assert [(row["flop"], row["bytes"], row["symbol"]) for row in rows_of(tables, "configurations")] == [
        (24.0, 20.0, "cross"),
        (None, None, "star"),
        (240.0, 158.0, "circle"),
    ]
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"problem": "", "answers": [{}]}, "found answers to 1 operations; expected one to each of the 2"),
        ({"problem": "", "answers": [{}, {"flop": -1, "bytes": 1, "symbol": "x"}]}, "flop.*not below zero"),
        ({"problem": "", "answers": [{}, {"flop": 1, "bytes": 1}]}, "The field symbol is missing"),
        ([], "expected an object"),
    ],
)
def test_answers_that_do_not_fit_the_list_are_refused(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read_trace(files_of(tmp_path, [MUL, MM], {ANSWERS_FILE_NAME: document}))


def test_a_list_of_problems_does_not_fill_the_notes(tmp_path: Path) -> None:
    tables = read_as("commands", files_of(tmp_path, [MM | {"data_type": "FP3"}] * 50))
    assert "And 45 more" in tables.notes
    assert len([row for row in rows_of(tables, "log_lines") if row["level"] == "WARNING"]) == 50
