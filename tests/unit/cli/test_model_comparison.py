"""AS-IS and TO-BE of runs, of variants of one run, of files and of traces: ratios, verdicts and layers by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand, join_runs
from kernalyse.services.analyzer.queries.registry import resolve_table
from kernalyse.services.analyzer.queries.run_tables import StoreSource
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.cli import model_documents
from kernalyse.services.cli.compare import TraceOperand
from kernalyse.services.cli.model_documents import compare_named
from kernalyse.services.cli.options import Server
from kernalyse.services.core.errors import UsageError
from kernalyse.services.core.model import PairedComparison, RunSpec, Verdict
from tests.integration.profiler_stand_in import ProfilerStandIn, started
from tests.model_events import MODEL, model_events
from tests.unit.compat.test_model_dashboards import PROFILE, written

PAIR = PairedComparison(9, 8, 20, 0.35, 0.34, 0.36, 0.35, Verdict.FASTER, "-65 % of time.", 14)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ComparisonOperand:
    """Both variants, which took turns."""
    store = Store(tmp_path_factory.mktemp("store"))
    node = ProfilerStandIn("unix:none")
    node.runs["m"] = replace(node.add_run("m"), spec=RunSpec(MODEL))
    node.journal("m", *started(), *model_events(), PAIR)
    store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()))
    names = ("measurements", "samples", "paired_comparisons")
    measurements, samples, pairs = (resolve_table(find_table(name), StoreSource(store, ["m"])).collect() for name in names)
    store.close()
    return ComparisonOperand("m", measurements, samples, paired_comparisons=pairs)


def compared(
    monkeypatch: pytest.MonkeyPatch, sides: dict[str, ComparisonOperand | TraceOperand], as_is: str, to_be: str
) -> dict[str, object]:
    """What comes of two names of sides that are there already."""
    monkeypatch.setattr(model_documents, "load_operands", lambda names, _server, _depth: [sides[name] for name in names])
    comparisons: dict[str, object] = compare_named(as_is, to_be, Server())["comparisons"]
    return comparisons


def test_variants_of_one_run_are_judged_by_their_turns(monkeypatch: pytest.MonkeyPatch, run: ComparisonOperand) -> None:
    ((name, entry),) = compared(monkeypatch, {"m": run}, "m@baseline", "m@fused").items()
    assert isinstance(entry, dict)
    assert (name, entry["verdict"], entry["reason"]) == ("gpt_nano", "FASTER", "-65 % of time.")
    assert [entry[key] for key in ("speedup", "speedup_low", "speedup_high")] == pytest.approx([1 / 0.35, 1 / 0.36, 1 / 0.34])
    assert (entry["as_is"]["median_ms"], entry["to_be"]["median_ms"]) == (0.02, 0.007)
    layers = {row["layer"]: (row["as_is_ms"], row["to_be_ms"]) for row in entry["layers"]}
    assert layers["blocks.*.attn.qkv"] == (pytest.approx(0.007), pytest.approx(0.002))
    assert layers["blocks.*.mlp.gelu"] == (pytest.approx(0.002), None)


def test_two_runs_match_variant_by_variant_and_one_process_decides_nothing(monkeypatch: pytest.MonkeyPatch, run: ComparisonOperand) -> None:
    other = replace(run, run_id="n")
    entries = compared(monkeypatch, {"m": run, "n": other}, "m", "n")
    assert list(entries) == ["gpt_nano baseline", "gpt_nano fused"]
    for entry in entries.values():
        assert isinstance(entry, dict)
        assert (entry["speedup"], entry["verdict"]) == (1.0, "UNDECIDED")


def test_runs_that_repeat_each_other_decide(monkeypatch: pytest.MonkeyPatch, run: ComparisonOperand) -> None:
    def repeated(name: str, factor: float) -> ComparisonOperand:
        def drifted(index: int) -> ComparisonOperand:
            times = pl.col("^duration_.*ns$") * factor * (1 + index / 1_000)
            measurements = run.measurements.with_columns(times, pl.col("measured_unix_ns") + index)
            return ComparisonOperand(f"{name}{index}", measurements, run.samples.with_columns(times))

        return join_runs([drifted(index) for index in range(5)])

    entries = compared(monkeypatch, {"m": repeated("m", 1.0), "n": repeated("n", 1.5)}, "m@fused", "n@fused")
    ((name, entry),) = entries.items()
    assert isinstance(entry, dict)
    assert (name, entry["verdict"], entry["speedup"]) == ("gpt_nano", "SLOWER", pytest.approx(1 / 1.5))
    assert entry["as_is"]["median_ms"] == pytest.approx(0.007 * 1.002)  # the third of five
    layers = {row["layer"]: (row["as_is_ms"], row["to_be_ms"]) for row in entry["layers"]}
    assert layers["blocks.*.attn.qkv"] == pytest.approx((0.002 * 1.002, 0.003 * 1.002))


def test_one_model_a_side_is_compared_whatever_its_name(monkeypatch: pytest.MonkeyPatch, run: ComparisonOperand) -> None:
    renamed = run.measurements.with_columns(kernel_name=pl.lit("other.onnx"), model_name=pl.lit("other.onnx"))
    entries = compared(monkeypatch, {"m": run, "n": ComparisonOperand("n", renamed, run.samples)}, "m@fused", "n@fused")
    assert list(entries) == ["other.onnx"]


def test_a_file_is_a_side_like_a_run(tmp_path: Path) -> None:
    slower = json.loads(json.dumps(PROFILE))
    slower["benchmarks"]["gpt_nano"]["timing"] = {name: 2 * value for name, value in slower["benchmarks"]["gpt_nano"]["timing"].items()}
    files = [str(written(tmp_path, name, content)) for name, content in (("a.json", slower), ("b.json", PROFILE))]
    entry = compare_named(files[0], files[1], Server())["comparisons"]["gpt_nano"]
    assert entry["speedup"] == pytest.approx(2.0)
    assert [row["layer"] for row in entry["layers"]] == ["embed", "blocks.*.attn.qkv"]


def test_traces_are_compared_by_their_device_time(monkeypatch: pytest.MonkeyPatch, run: ComparisonOperand) -> None:
    def trace(name: str, *times_ns: int) -> TraceOperand:
        layers = pl.DataFrame({"layer": ["a", "b", None][: len(times_ns)], "duration_sum_ns": times_ns})
        return TraceOperand(name, {"kernels": pl.DataFrame({"duration_sum_ns": times_ns}), "layers": layers})

    sides: dict[str, ComparisonOperand | TraceOperand] = {
        "t": trace("t", 4_000_000, 1_000_000, 1_000_000),
        "u": trace("u", 2_000_000, 1_000_000),
        "m": run,
    }
    entry = compared(monkeypatch, sides, "t", "u")["whole trace"]
    assert isinstance(entry, dict)
    assert (entry["speedup"], entry["as_is"], entry["to_be"]) == (2.0, {"mean_ms": 6.0}, {"mean_ms": 3.0})
    assert entry["layers"] == [{"layer": "a", "as_is_ms": 4.0, "to_be_ms": 2.0}, {"layer": "b", "as_is_ms": 1.0, "to_be_ms": 1.0}]
    assert "verdict" not in entry
    with pytest.raises(UsageError, match="two traces, or two runs"):
        compared(monkeypatch, sides, "t", "m")


def test_models_that_only_one_side_has_are_nothing_to_compare(monkeypatch: pytest.MonkeyPatch, run: ComparisonOperand) -> None:
    other = replace(run, run_id="n", measurements=run.measurements.with_columns(batch_size=pl.lit(8)))
    with pytest.raises(UsageError, match="no model of the same batch"):
        compared(monkeypatch, {"m": run, "n": other}, "m", "n")
