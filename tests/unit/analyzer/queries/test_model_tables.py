"""Layers, variants and passes of a model's run, by hand: from a real store, while it goes on and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.models import BASELINE_BLOCKS, BLOCKS, with_verdicts
from kernalyse.services.analyzer.queries.registry import QueryParameters, resolve_table
from kernalyse.services.analyzer.queries.run_tables import StoreSource
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.cli.model import layer_lines
from kernalyse.services.compat.model_dashboards.document import layer_entry
from kernalyse.services.core.ml_models import layers_note
from kernalyse.services.core.model import (
    Ceiling,
    CeilingsMeasured,
    EventPayload,
    KernelResources,
    Measurement,
    ModelRun,
    RunSpec,
    RunState,
    SampleBatch,
    StateChanged,
)
from kernalyse.services.ui.report.run_charts import layer_charts
from tests.integration.profiler_stand_in import ProfilerStandIn, started
from tests.model_events import MODEL, announced, durations_ns, model_events

CEILINGS = CeilingsMeasured(
    (
        Ceiling("cuda:0", "float32", "flop_per_s", 4e12, "fma", "user"),
        Ceiling("cuda:0", "dram", "bytes_per_s", 1e12, "copy", "user"),
    )
)
Tables = Callable[..., pl.DataFrame]


@pytest.fixture
def tables_of(tmp_path: Path) -> Iterator[Callable[..., Tables]]:
    store = Store(tmp_path)
    node = ProfilerStandIn("unix:none")
    node.runs["m"] = replace(node.add_run("m"), spec=RunSpec(MODEL))

    def journalled(*payloads: EventPayload) -> Tables:
        node.journal("m", *started(), CEILINGS, *payloads)
        store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()))
        if isinstance(payloads[-1], StateChanged):
            store.compact("m")

        def table(name: str, depth: int | None = None) -> pl.DataFrame:
            return resolve_table(find_table(name), StoreSource(store, ["m"]), QueryParameters(depth)).collect()

        return table

    yield journalled
    store.close()


@pytest.mark.parametrize("is_over", [False, True])
def test_layers_add_up_per_variant_and_stand_under_the_roof(tables_of: Callable[..., Tables], is_over: bool) -> None:
    table = tables_of(*model_events(), *([StateChanged(RunState.SUCCEEDED)] if is_over else []))
    layers = table("layers")
    by_key = {(row["variant"], row["layer"]): row for row in layers.to_dicts()}
    qkv = by_key["baseline", "blocks.0.attn.qkv"]
    assert (qkv["duration_sum_ns"], qkv["launch_count"], qkv["call_count"], qkv["flop"]) == (7_000, 2, 1, 6.01e6)
    assert qkv["share_ratio"] == pytest.approx(7 / 18)
    assert (qkv["source"], qkv["work_source"], qkv["worked_share_ratio"]) == ("annotation", "formula", 1.0)
    assert qkv["achieved_flop_per_s"] == pytest.approx(6.01e6 / 7e-6)
    assert qkv["attainable_flop_per_s"] == pytest.approx(4e12)  # 15 flop/B is over the ridge of 4
    assert (qkv["bound"], qkv["efficiency_ratio"]) == ("compute", pytest.approx(6.01e6 / 7e-6 / 4e12))
    assert by_key["fused", "embed"]["bound"] == "memory"
    assert by_key["fused", "embed"]["efficiency_ratio"] == pytest.approx(4e3 / 1e-6 / 1e12)
    assert layers["layer"][0] == "blocks.0.mlp.fc"  # longest first
    whole = table("layers", depth=0).filter(variant="baseline")
    assert dict(whole.select("layer", "call_count").iter_rows()) == {"blocks": 3, "embed": 1}
    assert "gpt-nano" not in table("kernels")["kernel_name"].to_list()
    assert set(table("layer_roofline")["label"]) >= {"embed baseline", "embed fused"}
    assert set(table("roofline")["layer_path"].drop_nulls()) == set(layers["layer"])


def test_the_tree_of_a_model_has_every_layer_with_all_inside_of_it(tables_of: Callable[..., Tables]) -> None:
    table = tables_of(*model_events())
    tree = {row["layer_path"]: row for row in table("layer_tree").filter(variant="baseline").to_dicts()}
    assert list(tree) == [
        "blocks",
        "blocks.0",
        "blocks.0.mlp",
        "blocks.0.mlp.fc",
        "blocks.0.attn",
        "blocks.0.attn.qkv",
        "blocks.0.mlp.gelu",
        "embed",
    ]
    mlp = tree["blocks.0.mlp"]
    assert (mlp["parent_path"], mlp["layer"], mlp["depth"], mlp["launch_count"], mlp["call_count"]) == ("blocks.0", "mlp", 2, 2, 2)
    assert (mlp["duration_sum_ns"], mlp["own_duration_sum_ns"], mlp["flop"], mlp["category"]) == (10_000, 0, 8.1e6, "matmul")
    assert (mlp["share_ratio"], mlp["efficiency_ratio"]) == (pytest.approx(10 / 18), pytest.approx(8.1e6 / 10e-6 / 4e12))
    assert tree["embed"]["order_index"] < tree["blocks"]["order_index"]  # as they start, though listed by time
    kernels = table("layer_kernels").filter(variant="baseline")
    matmul, gelu, add = kernels.filter(layer_path="blocks.0").to_dicts()
    assert (matmul["kernel_name"], matmul["launch_count"], matmul["own_launch_count"], matmul["flop"]) == ("matmul_naive", 2, 0, 14e6)
    assert (add["share_ratio"], gelu["duration_sum_ns"]) == (pytest.approx(1 / 17), 2_000)
    assert kernels.filter(kernel_name="add_bias", own_launch_count=1)["layer_path"].to_list() == ["blocks.0.attn.qkv"]


def test_layers_have_the_medians_so_far_before_anything_is_measured(tables_of: Callable[..., Tables]) -> None:
    table = tables_of(*model_events(measured_count=2))
    fused = table("layers").filter(variant="fused", layer="blocks.0.attn.qkv")
    assert (fused["duration_sum_ns"].item(), fused["efficiency_ratio"].is_not_null().item()) == (2_000, True)
    passes = table("models").sort("variant")
    assert passes["duration_median_ns"].to_list() == [20_000.0, 7_000.0]
    assert passes["sample_count"].to_list() == [3, 3]


def test_a_model_has_a_row_as_soon_as_it_is_announced(tables_of: Callable[..., Tables]) -> None:
    table = tables_of(*announced())
    rows = table("models").to_dicts()
    assert [(row["model_name"], row["variant"], row["width"], row["duration_median_ns"]) for row in rows] == [
        ("gpt-nano", "baseline", 48, None),
        ("gpt-nano", "fused", 48, None),
    ]
    assert table("layers").is_empty()


def test_memory_is_that_of_the_pass_and_of_the_largest_launch(tables_of: Callable[..., Tables]) -> None:
    events = [
        replace(
            event,
            device_memory_bytes=1_000 * (event.configuration_index + 1),
            resources=None if event.configuration_index else KernelResources(register_count=32),  # rows of one commit differ in columns
        )
        if isinstance(event, Measurement)
        else event
        for event in model_events()
    ]
    table = tables_of(*events)
    assert table("models")["memory_bytes"].to_list() == [9_000, 10_000]
    (qkv,) = table("layers").filter(variant="baseline", layer="blocks.0.attn.qkv").to_dicts()
    assert qkv["memory_bytes"] == 3_000
    assert table("measurements")["register_count"].to_list() == [32, *[None] * 9]
    assert layer_entry(qkv)["peak_memory_mb"] == 0.003


def test_models_tell_latency_throughput_and_shape(tables_of: Callable[..., Tables]) -> None:
    table = tables_of(*model_events())
    baseline, fused = table("models").to_dicts()
    assert (baseline["model_name"], baseline["variant"], fused["variant"]) == ("gpt-nano", "baseline", "fused")
    assert [baseline[name] for name in ("batch_size", "sequence_length", "layer_count", "head_count", "width")] == [4, 64, 3, 3, 48]
    assert baseline["tokens_per_s"] == pytest.approx(4 * 64 / 20_000e-9)  # of the median, as the flop rate beside it
    assert baseline["achieved_flop_per_s"] == pytest.approx(baseline["flop"] / (baseline["duration_median_ns"] * 1e-9))
    assert (baseline["launch_count"], baseline["launches_duration_sum_ns"]) == (5, 18_000)
    best = table("best").to_dicts()
    assert [(row["kernel_name"], row["label"].split()[-1], row["candidate_count"]) for row in best] == [("gpt-nano", "fused", 2)]


def test_layers_stand_beside_the_pass_that_their_sum_is_not(tables_of: Callable[..., Tables]) -> None:
    table = tables_of(*model_events())
    for name in ("layers", "layer_tree"):
        passes = dict(table(name).select("variant", "pass_duration_median_ns").unique().iter_rows())
        assert passes == {"baseline": 20_000.0, "fused": 7_000.0}
    (chart,) = (chart for chart in layer_charts({"layer_tree": table("layer_tree").filter(variant="baseline")}))
    note = "Layers are timed one by one, in passes of their own: 18 µs together, ×0.9 of the 20 µs that a complete pass takes without it."
    assert f"{note} Shares are of their sum, not of the pass." in chart.note


def test_what_layers_were_timed_with_is_said_in_the_terminal(tables_of: Callable[..., Tables]) -> None:
    table = tables_of(*model_events())
    lines = layer_lines(table("models"), ModelRun("gpt_nano"))
    assert lines[0].startswith("baseline: Layers are timed with events around each launch, in passes of their own: 18 µs together, ×0.9 of")
    lines = layer_lines(table("models"), ModelRun("bert-tiny"))
    assert lines[0].startswith("baseline: Layers are timed under ONNX Runtime's profile, in passes of their own: 18 µs together, ×0.9 of")
    assert layers_note(None, 448_000.0, 234_000.0) == (
        "Layers are timed one by one, in passes of their own: 448 µs together, ×1.91 of the 234 µs that a complete pass takes without it. "
        "Shares are of their sum, not of the pass."
    )
    assert layers_note(None, 448_000.0, None) == layers_note(None, None, 234_000.0) == ""


def test_variants_side_by_side_say_what_became_of_each_layer(tables_of: Callable[..., Tables]) -> None:
    table = tables_of(*model_events())
    rows = {row["layer"]: row for row in table("layer_variants").to_dicts()}
    assert rows["blocks.0.mlp.fc"]["duration_ratio"] == pytest.approx(3 / 8)
    assert (rows["blocks.0.mlp.gelu"]["occurrence"], rows["blocks.0.mlp.gelu"]["duration_delta_ns"]) == ("GONE", -2_000)
    assert {(row["variant"], row["baseline_variant"]) for row in rows.values()} == {("fused", "baseline")}
    (mlp,) = table("layer_variants", depth=2).filter(layer="blocks.0.mlp").to_dicts()
    assert (mlp["baseline_duration_sum_ns"], mlp["duration_sum_ns"], mlp["occurrence"]) == (10_000, 3_000, "MATCHED")


@pytest.mark.parametrize("batch_count", [24, 6])
def test_batches_that_took_turns_decide_which_layers_became_faster(tables_of: Callable[..., Tables], batch_count: int) -> None:
    launches = [configuration for configuration in announced() if configuration.layer_path]
    batches = [
        SampleBatch(
            configuration.configuration_index,
            2 * number,
            (duration_ns * drift, duration_ns * drift + 7),
            1_000 * number + (configuration.variant == "fused"),
        )
        for number in range(batch_count)
        for drift in [1 + 0.1 * (number % 3)]  # the machine is slower for a while: both sides are
        for configuration, duration_ns in zip(launches, durations_ns(), strict=False)
    ]
    table = tables_of(*announced(), *batches)
    rows = {row["layer"]: row for row in table("layer_variants").to_dicts()}
    qkv, embed, gone = (rows[name] for name in ("blocks.0.attn.qkv", "embed", "blocks.0.mlp.gelu"))
    assert qkv["paired_ratio"] == pytest.approx(2 / 7, rel=0.01)
    assert qkv["paired_ratio_low"] <= qkv["paired_ratio"] <= qkv["paired_ratio_high"]
    assert (qkv["verdict"], embed["verdict"], gone["verdict"]) == (
        ("FASTER", "SAME", None) if batch_count == 24 else ("UNDECIDED", "UNDECIDED", None)
    )
    assert ("x" in qkv["reason"] or "%" in qkv["reason"]) if batch_count == 24 else "6 pairs of blocks are too few" in qkv["reason"]
    (mlp,) = table("layer_variants", depth=2).filter(layer="blocks.0.mlp").to_dicts()
    assert mlp["paired_ratio"] == pytest.approx(3 / 10, rel=0.01)


@pytest.mark.parametrize(("judged_ns", "verdict"), [(90, "FASTER"), (110, "UNDECIDED")])
def test_a_verdict_that_the_medians_go_against_is_none(judged_ns: int, verdict: str) -> None:
    """Where something else ran for most of the passes of one side, the fastest of each batch may still be faster."""
    pairs = pl.DataFrame(
        {BLOCKS: [[50.0] * 24], BASELINE_BLOCKS: [[100.0] * 24], "is_gpu": [False]}
        | {"duration_sum_ns": [judged_ns], "baseline_duration_sum_ns": [100]}
    )
    (row,) = with_verdicts(pairs).to_dicts()
    assert (row["verdict"], row["paired_ratio"]) == (verdict, 0.5)
    assert ("the opposite" in row["reason"]) == (verdict == "UNDECIDED")


def test_opportunities_rank_what_each_variant_loses(tables_of: Callable[..., Tables]) -> None:
    table = tables_of(*model_events())
    rows = table("opportunities")
    assert set(rows.select("subject_kind", "variant").unique().iter_rows()) == {
        (kind, variant) for kind in ("kernel", "layer") for variant in ("baseline", "fused")
    }
    kernel = rows.filter(subject_kind="kernel", variant="baseline").row(0, named=True)
    assert (kernel["subject"], kernel["launch_count"], kernel["duration_sum_ns"]) == ("matmul_naive", 2, 14_000)
    assert kernel["lost_ns"] == pytest.approx(14_000 - 14e6 / 4e12 * 1e9)
    shares = rows.filter(subject_kind="layer", variant="fused")["share_ratio"]
    assert shares.sum() == pytest.approx(1)
