"""What PyTorch's profiler and Nsight Compute wrote on an H200, as the analyzer reads it. tests/data/h200/README.md says what it is."""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.counters import counted_work
from kernalyse.services.analyzer.analysis.traces.work import launch_work
from kernalyse.services.analyzer.ingest.counter_join import with_reports
from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, trace_frames
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader
from kernalyse.services.analyzer.readers.ncu.csv_report import read_ncu_report
from kernalyse.services.analyzer.readers.ncu.run_counters import counter_report
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, COUNTER_REPORTS
from kernalyse.services.core.model import CountersStored, KernelSelection, KernelSweep, RunEvent
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.workloads.sweeps.launches import plan_launch
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep

DATA = Path(__file__).parents[1] / "data" / "h200"
STEP_COUNT, REPLAY_COUNT = 2, 3
KERNELS_A_STEP = 125
SEQUENCE_LENGTH, WIDTH, VOCABULARY_SIZE, LAYER_COUNT = 256, 512, 8192, 3
TOKEN_COUNT = 8 * SEQUENCE_LENGTH
MAX_FLOP_DEVIATION = 0.02
PRODUCTS = "^nvjet_"  # cuBLAS's own name of its kernels
COUNTED_KERNELS = ("vector_add", "saxpy", "stream_copy", "stream_scale", "stream_add", "stream_triad", "matmul_naive", "matmul_tiled")
PAST_CACHES_BYTES = 128e6  # of less, most of what is written stays in the last-level cache of 60 MB


def read(name: str) -> ReadResult:
    return KinetoReader().read(TraceFiles("trace.json.gz", DATA / name, arrived_unix_ns=0))


@pytest.fixture(scope="module")
def eager() -> ReadResult:
    return read("training_step.json.gz")


@pytest.fixture(scope="module")
def replayed() -> ReadResult:
    return read("training_step_graph.json.gz")


@pytest.fixture(scope="module")
def counted(eager: ReadResult) -> ReadResult:
    report = read_ncu_report(gzip.decompress((DATA / "training_step_counters.csv.gz").read_bytes()))
    return with_reports(eager, {"report.csv": report})


def work_by_operators(tables: ReadResult) -> pl.DataFrame:
    """By the shapes of the operators that launched the kernels."""
    frames = {name: tables.frames[name].lazy() for name in ("kernel_launches", "ranges", "trace_names")}
    return launch_work(frames["kernel_launches"], frames["ranges"], frames["trace_names"])


def launches(tables: ReadResult) -> pl.DataFrame:
    """With the names of kernels and of their ranges."""
    frames = tables.frames
    names = frames["trace_names"].select("name_index", "name")
    ranges = frames["ranges"].select("range_index", "name_index").join(names, on="name_index").select("range_index", layer="name")
    return frames["kernel_launches"].join(names, on="name_index").join(ranges, on="range_index", how="left").sort("launch_index")


def test_every_module_of_the_model_has_its_kernels(eager: ReadResult) -> None:
    found = TRACE_DERIVED["layers"].compute(trace_frames(eager.frames), DEFAULT_QUERY).collect()
    layers = set(found["layer"])
    for index in range(LAYER_COUNT):
        parts = ("ln1", "attn", "attn.qkv", "attn.proj", "ln2", "mlp.0", "mlp.1", "mlp.2")
        assert {f"nn.Module: blocks.{index}.{part}" for part in parts} <= layers
    assert {"nn.Module: embed", "nn.Module: ln_f", "nn.Module: logits", "Optimizer.step#AdamW.step"} <= layers
    assert eager.frames["kernel_launches"].height == STEP_COUNT * KERNELS_A_STEP
    (device,) = eager.frames["trace_devices"].iter_rows(named=True)
    assert (device["device_name"], device["compute_capability"], device["sm_count"]) == ("NVIDIA H200", "9.0", 132)


def test_every_kernel_of_the_step_has_a_category(eager: ReadResult) -> None:
    found = TRACE_DERIVED["kernels"].compute(trace_frames(eager.frames), DEFAULT_QUERY).collect()
    assert found.filter(pl.col("category").is_null())["kernel_name"].to_list() == []
    of_names = {
        "GammaBetaBackward": "normalization",
        "compute_dot_do_o": "attention",
        "_sdpa_sm90_flash_bprop": "attention",
        "nvjet_": "matmul",
    }
    for part, category in of_names.items():
        assert set(found.filter(pl.col("kernel_name").str.contains(part, literal=True))["category"]) == {category}


def test_replays_of_a_graph_keep_the_layers_of_the_captured_step(replayed: ReadResult) -> None:
    """Each replay has the kernels of an eager step in the same layers."""
    found = launches(replayed)
    of_graph = found.filter(layer_source="graph")
    replays = [Counter(group["layer"]) for _, group in of_graph.group_by("api_call_index", maintain_order=True)]
    assert [sum(replay.values()) for replay in replays] == [KERNELS_A_STEP] * REPLAY_COUNT
    modules = [{layer: count for layer, count in replay.items() if "nn.Module" in layer} for replay in replays]
    step = found.filter(
        pl.col("layer_source").is_in(["module", "forward"]) & (pl.col("launch_start_ns") < of_graph["launch_start_ns"].min())
    )
    eager_count = step.height // sum(modules[0].values())
    assert modules == [{layer: count // eager_count for layer, count in Counter(step["layer"]).items()}] * REPLAY_COUNT
    assert "375 kernels of CUDA graphs are counted for the range in which they were captured" in replayed.notes


def test_a_replay_does_the_work_of_a_step(replayed: ReadResult) -> None:
    """Of the products of one layer: the same flop in each replay as in each eager step."""
    work = work_by_operators(replayed).select("launch_index", "flop")
    found = launches(replayed).join(work, on="launch_index").filter(layer="nn.Module: logits")
    of_graph = found.filter(layer_source="graph").group_by("api_call_index").agg(pl.col("flop").sum())["flop"]
    eager = found.filter(pl.col("layer_source") != "graph")["flop"].sum()
    assert of_graph.to_list() == pytest.approx([eager / REPLAY_COUNT] * REPLAY_COUNT)  # as many eager steps as replays


def test_gradients_of_embeddings_have_work_beside_the_zeros_that_they_are_added_to(eager: ReadResult, counted: ReadResult) -> None:
    """Their additions are those that the device counted."""
    found = launches(eager).join(work_by_operators(eager), on="launch_index").filter(pl.col("name").str.contains("embedding_backward"))
    row_counts = [SEQUENCE_LENGTH, TOKEN_COUNT] * STEP_COUNT  # of positions and of tokens
    assert found["bytes"].to_list() == [3 * 2 * count * WIDTH + 8 * count for count in row_counts]
    by_counters = counted.frames["launch_work"].join(found.select("launch_index"), on="launch_index", how="semi").sort("launch_index")
    assert found["flop"].to_list() == by_counters["flop"].to_list() == [count * WIDTH for count in row_counts]


def test_every_launch_of_the_report_is_found_in_the_trace(counted: ReadResult) -> None:
    """ncu leaves out inline namespaces, writes parameters by the names of a template's arguments, and spells lambdas in its own way."""
    assert "report.csv: 250 of 250 kernels (100.0%, 100.0% of their time) have counters: 125 their own" in counted.notes
    assert "report.csv: 125 of its 125 launches were found in the trace." in counted.notes
    assert "Not in the trace" not in counted.notes


def test_products_do_the_flop_of_their_formula_by_counters_too(eager: ReadResult, counted: ReadResult) -> None:
    """By shapes 2 x rows x columns x depth; beside it what the tensor cores counted, and the units that added the bias."""
    by_shapes = work_by_operators(eager).select("launch_index", flop_by_shapes="flop")
    work = counted.frames["launch_work"].select("launch_index", "flop", "dtype", "path")
    products = (
        launches(counted).filter(pl.col("name").str.contains(PRODUCTS)).join(by_shapes, on="launch_index").join(work, on="launch_index")
    )
    assert products.height == STEP_COUNT * 3 * (4 * LAYER_COUNT + 1)  # forward, and two gradients of each
    assert set(products["dtype"]) == {"bfloat16"}
    assert set(products["path"]) == {"tensor"}
    assert products.filter((pl.col("flop") / pl.col("flop_by_shapes") - 1).abs() > MAX_FLOP_DEVIATION).is_empty()
    assert products["flop_by_shapes"].max() == 2 * TOKEN_COUNT * WIDTH * VOCABULARY_SIZE


def test_kernels_of_the_catalog_do_by_counters_what_their_formulas_say() -> None:
    """Exactly the flop of float32; and all bytes that they read, with those of the written ones that leave the caches."""
    plan = plan_sweep(KernelSweep(tuple(map(KernelSelection, COUNTED_KERNELS))), load_catalog(), sys.maxsize)
    configurations = [plan_launch(planned).configuration for planned in plan.configurations()]
    indexes = tuple(one.configuration_index for one in configurations)
    stored = CountersStored("counters.csv", indexes, "all", "none", tuple(one.kernel_name for one in configurations))
    read = counter_report(RunEvent(9, "j", "r", 0, stored), stored, gzip.decompress((DATA / "catalog_counters.csv.gz").read_bytes()))
    assert not any("belong to no configuration" in note for note in read.notes)
    rows = [{"run_id": "r", "event_index": 1, "configuration_index": one.configuration_index} for one in configurations]
    reports = frame_from_rows(COUNTER_REPORTS, [{"run_id": "r", "event_index": 9, "artifact_name": stored.artifact_name}])
    work = counted_work(read.rows.lazy(), reports.lazy(), frame_from_rows(CONFIGURATIONS, rows).lazy()).collect()
    found = work.sort("configuration_index").rows(named=True)
    assert len(found) == len(configurations)
    for configuration, row in zip(configurations, found, strict=True):
        assert row["float32_fma_flop"] == configuration.flop, configuration.label
        assert row["dtype"] == ("float32" if configuration.flop else None)
        assert configuration.bytes is not None
        if configuration.bytes >= PAST_CACHES_BYTES:
            assert 0.5 <= row["dram_bytes"] / configuration.bytes <= 1.01, configuration.label
