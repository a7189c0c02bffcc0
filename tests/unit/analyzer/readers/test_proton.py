"""kernalyse.services.analyzer.readers.proton: trees of sums as kernels and layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.queries.registry import TRACE_DERIVED, QueryParameters, trace_frames
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.proton import ProtonReader
from kernalyse.services.analyzer.readers.registry import HEAD_BYTES, select_reader
from kernalyse.services.core.errors import InvalidTraceError
from tests.examples import examples

SHARED = Path(__file__).parents[5] / "shared/data/proton"
real_profiles = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/proton beside the checkout")

H100 = {"CUDA": {"0": {"arch": "90", "bus_width": 5120, "clock_rate": 1980000, "memory_clock_rate": 2619000, "num_sms": 132}}}


def node(name: str, *children: dict[str, Any], **metrics: Any) -> dict[str, Any]:
    return {"children": list(children), "frame": {"name": name, "type": "function"}, "metrics": metrics}


def kernel(name: str, time_ns: float, count: float = 1, **others: Any) -> dict[str, Any]:
    return node(name, **{"count": count, "device_id": "0", "device_type": "CUDA", "time (ns)": time_ns, **others})


def profile(*nodes: dict[str, Any]) -> list[Any]:
    return [node("ROOT", *nodes, **{"count": 0, "time (ns)": 0}), H100]


def read(directory: Path, document: Any) -> ReadResult:
    path = directory / "p.hatchet"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    files = TraceFiles(path.name, path, 0)
    assert select_reader(files).format == "proton"
    return ProtonReader().read(files)


def answer(tables: ReadResult, name: str, depth: int | None = None) -> pl.DataFrame:
    return TRACE_DERIVED[name].compute(trace_frames(tables.frames), QueryParameters(depth)).collect()


def layers(tables: ReadResult, depth: int | None = None) -> list[tuple[Any, ...]]:
    return answer(tables, "layers", depth).select("layer", "launch_count", "duration_sum_ns", "source").rows()


NESTED = profile(
    node("model", node("attention", kernel("gemm", 300, 3), kernel("softmax", 100, 2)), node("mlp", kernel("gemm", 500, 5))),
    kernel("memset", 60, 6),
)


def test_kernels_are_sums_without_single_launches(tmp_path: Path) -> None:
    tables = read(tmp_path, NESTED)
    columns = ("kernel_name", "launch_count", "duration_sum_ns", "share_ratio")
    assert answer(tables, "kernels").select(columns).rows() == [
        ("gemm", 8, 800, pytest.approx(800 / 960)),
        ("softmax", 2, 100, pytest.approx(100 / 960)),
        ("memset", 6, 60, pytest.approx(60 / 960)),
    ]
    single = answer(tables, "kernels").select("duration_min_ns", "duration_median_ns", "duration_max_ns")
    assert single.null_count().row(0) == (3, 3, 3)
    assert "kernel_launches" not in tables.frames
    assert answer(tables, "breakdown").is_empty()
    assert "16 launches in 4 sums and 3 scopes" in tables.notes


def test_scopes_are_layers_at_any_depth(tmp_path: Path) -> None:
    tables = read(tmp_path, NESTED)
    assert layers(tables) == [("mlp", 5, 500, "scope"), ("attention", 5, 400, "scope"), ("copy kernels", 6, 60, "guessed")]
    assert layers(tables, 0) == [("model", 10, 900, "scope"), ("copy kernels", 6, 60, "guessed")]
    assert layers(tables, 9) == layers(tables)
    assert answer(tables, "layers")["call_count"].to_list() == [None] * 3


def test_devices_have_what_their_clocks_and_widths_come_to(tmp_path: Path) -> None:
    (device,) = read(tmp_path, NESTED).frames["trace_devices"].to_dicts()
    # An H100 SXM: 2 x 2619 MHz x 5120 bits, 3352 GB/s.
    assert (device["compute_capability"], device["sm_count"], device["clock_hz"]) == ("9.0", 132, 1_980_000_000)
    assert device["memory_bandwidth_bytes_per_s"] == 3_352_320_000_000
    amd = [node("ROOT", kernel("k", 5, device_type="HIP")), {"HIP": {"0": {"arch": "gfx90a", "num_sms": 104}}}]
    (device,) = read(tmp_path, amd).frames["trace_devices"].to_dicts()
    assert (device["device_name"], device["compute_capability"], device["sm_count"]) == ("gfx90a", None, 104)
    assert device["memory_bandwidth_bytes_per_s"] is None


def work(tables: ReadResult) -> list[tuple[Any, ...]]:
    totals = tables.frames["kernel_totals"].join(tables.frames["trace_names"], on="name_index", maintain_order="left")
    return totals.select("name", "flop", "bytes", "dtype").rows()


def test_work_of_a_kernel_stands_on_it_or_on_the_scope_of_its_launch(tmp_path: Path) -> None:
    tables = read(tmp_path, profile(kernel("a", 10, flops16=64, bytes=8), node("matmul", kernel("b", 30), flops8=5e9, bytes=7)))
    assert work(tables) == [("a", 64.0, 8.0, "float16"), ("b", 5e9, 7.0, "float8")]
    both = profile(node("scope", kernel("a", 10, flops16=64, flops32=6), flops=1))
    assert work(read(tmp_path, both)) == [("a", 71.0, None, None)]  # of several widths


def test_work_of_a_scope_goes_by_time_to_kernels_that_nothing_nearer_states_any_for(tmp_path: Path) -> None:
    inner = node("inner", kernel("c", 100), flops=40)
    tables = read(tmp_path, profile(node("outer", kernel("a", 30), kernel("b", 10), kernel("own", 100, flops=7), inner, flops=400)))
    assert work(tables) == [("a", 300.0, None, None), ("b", 100.0, None, None), ("own", 7.0, None, None), ("c", 40.0, None, None)]
    only_stated = profile(node("outer", kernel("own", 100, flops=7), flops=3))
    assert work(read(tmp_path, only_stated)) == [("own", 10.0, None, None)]  # Proton adds them up
    timeless = profile(node("outer", kernel("a", 0, 2), kernel("b", 0, 2), flops=3))
    assert work(read(tmp_path, timeless)) == [("a", 1.5, None, None), ("b", 1.5, None, None)]


def test_rates_of_a_layer_are_over_the_time_whose_work_is_known(tmp_path: Path) -> None:
    tables = read(tmp_path, profile(node("mlp", kernel("known", 400, flops16=8000, bytes=1000), node("x", kernel("unknown", 100)))))
    (row,) = answer(tables, "layers", 0).to_dicts()
    assert (row["layer"], row["duration_sum_ns"], row["flop"], row["bytes"]) == ("mlp", 500, 8000.0, 1000.0)
    assert row["achieved_flop_per_s"] == pytest.approx(20e9)  # 8000 flop in 400 ns
    assert row["achieved_bytes_per_s"] == pytest.approx(2.5e9)
    assert (row["intensity_flop_per_byte"], row["work_source"], row["worked_share_ratio"]) == (8.0, "recorded", pytest.approx(0.8))


def test_kernels_stand_under_the_roof_of_their_device(tmp_path: Path) -> None:
    tables = read(tmp_path, profile(node("mlp", kernel("gemm", 400, 4, bytes=670_464)), kernel("bare", 9)))
    (point,) = answer(tables, "roofline").to_dicts()
    # 670464 bytes in 400 ns over 3352.32 GB/s: half of what the memory can.
    assert (point["label"], point["launch_count"], point["work_source"]) == ("gemm", 4, "recorded")
    assert (point["efficiency_ratio"], point["bound"]) == (pytest.approx(0.5), "memory")
    assert point["share_ratio"] == pytest.approx(400 / 409)
    (layer,) = answer(tables, "layer_roofline").to_dicts()
    assert (layer["layer"], layer["efficiency_ratio"]) == ("mlp", pytest.approx(0.5))
    first = answer(tables, "opportunities").to_dicts()[0]
    assert (first["lost_ns"], first["efficiency_ratio"]) == (pytest.approx(200.0), pytest.approx(0.5))


TREES = st.recursive(
    st.tuples(st.integers(0, 10**6), st.integers(1, 9), st.none() | st.integers(1, 10**9)).map(
        lambda leaf: kernel("k", leaf[0], leaf[1], **({} if leaf[2] is None else {"flops": leaf[2]}))
    ),
    lambda inner: st.tuples(st.lists(inner, min_size=1, max_size=3), st.none() | st.integers(1, 10**9)).map(
        lambda scope: node("s", *scope[0], **({} if scope[1] is None else {"flops": scope[1]}))
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.lists(TREES, min_size=1, max_size=3))
@examples(60)
def test_sums_over_the_tree_are_those_of_its_nodes(tmp_path_factory: pytest.TempPathFactory, trees: list[dict[str, Any]]) -> None:
    def total(nodes: list[dict[str, Any]], name: str) -> int:
        return sum(part["metrics"].get(name, 0) + total(part["children"], name) for part in nodes)

    tables = read(tmp_path_factory.mktemp("p"), profile(*trees))
    kernels = answer(tables, "kernels")
    assert kernels["duration_sum_ns"].sum() == total(trees, "time (ns)")
    assert kernels["launch_count"].sum() == total(trees, "count")
    assert tables.frames["kernel_totals"]["flop"].sum() == pytest.approx(total(trees, "flops"))
    for depth in (None, 0, 1):
        assert answer(tables, "layers", depth)["duration_sum_ns"].sum() == total(trees, "time (ns)")


def test_what_no_table_holds_is_said(tmp_path: Path) -> None:
    tables = read(tmp_path, profile(node("scope", kernel("k", 5), **{"cpu_time (ns)": 7}), node("idle", flops=3)))
    assert "cpu_time (ns) of 1 nodes" in tables.notes
    assert "Flop or bytes of 1 scopes without a kernel are left out." in tables.notes
    assert "It has no kernels" in read(tmp_path, profile()).notes
    assert answer(read(tmp_path, profile()), "kernels").is_empty()


def test_both_spellings_of_the_metrics_are_read(tmp_path: Path) -> None:
    old = node("k", **{"Count": 4, "DeviceId": "1", "DeviceType": "CUDA", "Time (ns)": 80.0})
    (row,) = read(tmp_path, profile(old)).frames["kernel_totals"].to_dicts()
    assert (row["launch_count"], row["duration_sum_ns"], row["device_index"]) == (4, 80, 1)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('[{"children": [{"frame"', r"p\.hatchet: found JSON that cannot be read"),
        ('[{"frame": {"name": "ROOT"}, "children": [5]}]', r"tree 0: children: found \[5\]; expected a list of objects"),
        ('[{"children": [{"frame": {}}], "frame": {"name": "ROOT"}}]', r"children\[0\]: frame: name: found nothing; expected text"),
        ('[{"children": [], "frame": {"name": "R"}}, 7]', r"element 1: found something else than an object"),
        (profile(kernel("k", -5)), r"time \(ns\): found -5; expected a number from 0 on"),
        (profile(kernel("k", 1e300)), r"time \(ns\): found 1e\+300"),
        (profile(kernel("k", 5, device_id="one")), r'device_id: found "one"; expected the number of a device'),
        (profile(node("k", **{"time (ns)": 5})), r"count: found nothing; expected how often"),
        (profile(kernel("k", 5, flops="many")), r'flops: found "many"'),
        (profile(kernel("k", 5, 2**70)), r"count: found"),
    ],
)
def test_a_damaged_profile_is_refused_by_its_place(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read(tmp_path, document)


def test_strange_text_is_kept_and_depth_is_bounded(tmp_path: Path) -> None:
    tables = read(tmp_path, profile(kernel("a\x00b", 1), kernel("\ud800half", 2)))
    assert answer(tables, "kernels")["kernel_name"].to_list() == ["\N{REPLACEMENT CHARACTER}half", "a\x00b"]
    deep = '[{"children": [' + '{"frame": {"name": "n"}, "children": [' * 100_000
    with pytest.raises(InvalidTraceError, match="JSON that cannot be read"):
        read(tmp_path, deep)
    invalid = tmp_path / "p.json"
    invalid.write_bytes(b'[{"children": [], "frame": {"name": "\xff"}}]')
    with pytest.raises(InvalidTraceError, match="utf-8"):
        ProtonReader().read(TraceFiles("p.json", invalid, 0))


def test_only_proton_is_taken_for_it() -> None:
    assert not ProtonReader().matches(b'[{"name": "x", "ph": "X"}]')
    assert not ProtonReader().matches(b'{"children": [], "frame": {}}')
    assert ProtonReader().matches(b'\n [\n {"metrics": {}, "frame": {}}')


@real_profiles
@pytest.mark.parametrize(
    ("name", "figures"),
    [  # typed off the files
        ("cuda.json", {"foo0": (10, 204800, 1e11), "foo1": (1, 204800, 1e10), "foo2": (1, 204800, 1e11)}),
        ("example.json", {"foo0": (1, 204800, 1e11), "foo1": (1, 204800, 1e10)}),
        ("triton.json", {"cuda_kernel": (1, 4064, None), "triton_kernel": (1, 1664, None)}),
        (
            "leaf_nodes.json",
            {
                "kernel_1_2_2": (402, 78190414, None),
                "kernel_1_3_1": (502, 24125138, 1534939103232.0),
                "kernel_2_2_2": (120, 23174888, None),
                "kernel_2_3_1": (149, 1040322, 4999610368.0),
                "kernel_3_2_2": (480, 93036508, None),
                "kernel_3_2_1": (599, 6306402, 67834478592.0),
            },
        ),
    ],
)
def test_real_profiles_say_what_stands_in_them(name: str, figures: dict[str, tuple[Any, ...]]) -> None:
    path = SHARED / name
    with path.open("rb") as file:
        assert ProtonReader().matches(file.read(HEAD_BYTES))
    tables = ProtonReader().read(TraceFiles(name, path, 0))
    totals = tables.frames["kernel_totals"].join(tables.frames["trace_names"], on="name_index")
    assert {row[0]: row[1:] for row in totals.select("name", "launch_count", "duration_sum_ns", "flop").rows()} == figures
