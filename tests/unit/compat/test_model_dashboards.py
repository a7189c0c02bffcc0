"""profiling_data.json, comparison_data.json and their pages: what is written is read back, and drawn without a server."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import visualize_comparison
import visualize_performance

from kernalyse.services.analyzer.queries.registry import FileSource, resolve_table
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.compat.model_dashboards.dashboards import Dashboard
from kernalyse.services.compat.model_dashboards.document import benchmark_entry, implementation_entry, layer_entry, timing_entry
from kernalyse.services.core.errors import InvalidRequestError, InvalidTraceError
from tests.unit.read_file import files_of, read_as

MODEL: dict[str, Any] = {
    "model_name": "gpt-nano",
    "variant": "fused",
    "batch_size": 4,
    "sequence_length": 64,
    "layer_count": 3,
    "head_count": 3,
    "width": 48,
    "vocabulary_size": 1024,
    "duration_mean_ns": 1.32e6,
    "duration_standard_deviation_ns": 0.11e6,
    "duration_min_ns": 1.24e6,
    "duration_max_ns": 1.75e6,
    "duration_median_ns": 1.28e6,
    "duration_p95_ns": 1.63e6,
    "duration_p99_ns": 1.74e6,
    "tokens_per_s": 256 / 1.32e-3,
    "sample_count": 100,
    "memory_bytes": 2_000_000,
    "bytes": 6.6e6,
    "efficiency_ratio": 0.25,
}
ROOF = {"memory_level": "dram", "memory_ceiling_bytes_per_s": 20e9}
LAYERS = [
    {"layer": path, "duration_sum_ns": time_ns, "share_ratio": 0.5, "launch_count": 1, "flop": 1e6, "bytes": 1e4, "efficiency_ratio": ratio}
    | {"bound": "compute"}
    for path, time_ns, ratio in (("embed", 1e5, 0.1), ("blocks.0.attn.qkv", 3e5, 0.2), ("blocks.1.attn.qkv", 1e5, 0.6))
]
PROFILE: dict[str, Any] = {
    "metadata": {"gpu_name": "A <device>", "batch_size": 4},
    "benchmarks": {"gpt_nano": benchmark_entry(MODEL, [layer_entry(layer) for layer in LAYERS], ROOF)},
}
COMPARISON: dict[str, Any] = {
    "metadata": {"as_is": "baseline", "to_be": "fused"},
    "comparisons": {
        "gpt_nano": {
            "batch_size": 4,
            "seq_len": 64,
            "baseline": implementation_entry(MODEL | {"duration_mean_ns": 3e6}),
            "fused": implementation_entry(MODEL),
            "speedup": 2.3,
            "speedup_low": 2.2,
            "speedup_high": 2.4,
            "verdict": "FASTER",
            "reason": "-56.5 % of time.",
            "layers": [{"layer": "embed", "as_is_ms": 0.2, "to_be_ms": None}],
        }
    },
}


def written(directory: Path, name: str, content: object) -> Path:
    path = directory / name
    path.write_text(json.dumps(content))
    return path


def test_a_profile_comes_back_as_a_run_of_a_model(tmp_path: Path) -> None:
    dashboard = visualize_performance.PerformanceDashboard(tmp_path)
    assert dashboard.load_data(written(tmp_path, "in.json", PROFILE)) == PROFILE == dashboard.data
    read = read_as("model_profiles", files_of(tmp_path, dashboard.save_data().read_text()))

    def table(name: str) -> list[dict[str, Any]]:
        return resolve_table(find_table(name), FileSource(read.frames)).collect().to_dicts()

    (model,) = table("models")
    assert (model["model_name"], model["variant"], model["memory_bytes"]) == ("gpt_nano", "fused", 2_000_000)
    assert [model[name] for name in ("batch_size", "sequence_length", "layer_count", "head_count", "width")] == [4, 64, 3, 3, 48]
    assert timing_entry(model) == pytest.approx(timing_entry(MODEL))
    assert model["tokens_per_s"] == pytest.approx(256 / 1.28e-3)  # of the median, which every rate of the table is of
    layers = {row["layer"]: row for row in table("layers")}
    assert layers["blocks.0.attn.qkv"]["duration_sum_ns"] == 3e5
    assert layers["embed"]["achieved_flop_per_s"] == pytest.approx(1e6 / 1e-4)


def test_layers_of_several_models_of_a_profile_are_not_mixed(tmp_path: Path) -> None:
    entry = benchmark_entry(MODEL, [layer_entry(layer) for layer in LAYERS])
    layers = [layer | {"time": 2 * layer["time"]} for layer in entry["layers"]]
    models = {"gpt_nano": entry, "gpt-1.5b": entry | {"layers": layers}}
    read = read_as("model_profiles", files_of(tmp_path, PROFILE | {"benchmarks": models}))

    def rows(name: str, *columns: str) -> dict[str, tuple[Any, ...]]:
        found = resolve_table(find_table(name), FileSource(read.frames)).collect().select(columns).rows()
        return {key: tuple(figures) for key, *figures in found}

    assert rows("models", "model_name", "launch_count", "launches_duration_sum_ns") == {"gpt_nano": (3, 5e5), "gpt-1.5b": (3, 10e5)}
    tree = rows("layer_tree", "layer_path", "depth", "launch_count", "duration_sum_ns")
    assert (tree["gpt_nano"], tree["gpt-1_5b"]) == ((0, 3, 500_000), (0, 3, 1_000_000))
    assert rows("layers", "layer", "duration_sum_ns")["gpt_nano.embed"] == (100_000,)


def test_a_comparison_comes_back_with_both_sides(tmp_path: Path) -> None:
    tables = read_as("model_profiles", files_of(tmp_path, COMPARISON))
    models = resolve_table(find_table("models"), FileSource(tables.frames)).collect()
    assert models.select("model_name", "variant", "duration_mean_ns").rows() == [
        ("gpt_nano", "baseline", pytest.approx(3e6)),
        ("gpt_nano", "fused", pytest.approx(1.32e6)),
    ]


def cells(page: str) -> list[str]:
    """Of the page's table, its headings first."""
    return [html.unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", page)]


@pytest.mark.slow
def test_rates_are_of_the_latency_beside_them_and_a_speed_up_of_something_else_says_of_what(tmp_path: Path) -> None:
    performance = visualize_performance.PerformanceDashboard(tmp_path)
    stated = {**PROFILE["benchmarks"]["gpt_nano"], "throughput_tokens_per_sec": 12_345.0}
    performance.data = PROFILE | {"benchmarks": {"gpt_nano": stated}}
    found = cells(performance.generate_dashboard().read_text())
    assert found[:6] == ["model", "mean ± sd", "median", "p95", "p99", "tokens/s of mean"]
    assert found[9:14] == ["1.32 ms ± 110 µs", "1.28 ms", "1.63 ms", "1.74 ms", "194 k"]  # 4 x 64 tokens in 1.32 ms

    comparison = visualize_comparison.ComparisonDashboard(tmp_path)
    entry = COMPARISON["comparisons"]["gpt_nano"]
    for basis, expected in (({"speedup_basis": "in turns"}, "×2.3 in turns"), ({}, "×2.3 as stated")):
        comparison.data = COMPARISON | {"comparisons": {"gpt_nano": entry | basis}}
        found = cells(comparison.generate_dashboard().read_text())
        assert found[:7] == ["model", "AS-IS", "AS-IS mean", "TO-BE", "TO-BE mean", "ratio of means", "speed-up"]
        assert found[12:17] == ["3.00 ms ± 110 µs", "fused", "1.32 ms ± 110 µs", "×2.27", expected]


def test_what_was_measured_on_a_busy_host_is_marked_in_page_and_file(tmp_path: Path) -> None:
    busy = MODEL | {"disturbance": "host 98 % busy"}
    profile = PROFILE | {"benchmarks": {"gpt_nano": benchmark_entry(busy, []), "gpt_micro": benchmark_entry(MODEL, [])}}
    sides = {"baseline": implementation_entry(busy), "fused": implementation_entry(MODEL)}
    comparison = COMPARISON | {"comparisons": {"gpt_nano": COMPARISON["comparisons"]["gpt_nano"] | sides}}
    for dashboard, data, chart_count in (
        (visualize_performance.PerformanceDashboard(tmp_path), profile, 8),
        (visualize_comparison.ComparisonDashboard(tmp_path), comparison, 3),
    ):
        dashboard.data = data
        text = dashboard.generate_dashboard().read_text()
        assert text.count("⚠ 1 of 2 disturbed: host 98 % busy.") == chart_count + 2  # as a fact, and below the table
        assert text.count("110 µs ⚠") == 1  # beside the latency
        assert json.loads(dashboard.save_data().read_text()) == data
        read = read_as("model_profiles", files_of(tmp_path, dashboard.save_data().read_text()))
        models = resolve_table(find_table("models"), FileSource(read.frames)).collect()
        assert models["disturbance"].to_list().count(busy["disturbance"]) == 1


def test_pages_hold_every_chart_and_ask_nobody(tmp_path: Path) -> None:
    performance = visualize_performance.PerformanceDashboard(tmp_path)
    performance.data = PROFILE
    text = performance.generate_dashboard().read_text()
    assert text.count("data-chart=") == 9
    assert "A &lt;device&gt;" in text
    assert "Fastest: gpt_nano" in text
    comparison = visualize_comparison.ComparisonDashboard(tmp_path)
    comparison.data = COMPARISON
    page = comparison.generate_dashboard().read_text()
    assert page.count("data-chart=") == 3
    assert "×2.3" in page
    assert "faster" in page
    assert comparison.summary_lines() == ["gpt_nano: fused has ×2.3 the speed of baseline, faster: -56.5 % of time."]
    for content in (text, page):
        assert "<script src" not in content
        assert '<link rel="stylesheet"' not in content


@pytest.mark.slow
def test_bandwidth_in_use_is_drawn_for_every_configuration_whose_bytes_are_known(tmp_path: Path) -> None:
    entry = PROFILE["benchmarks"]["gpt_nano"]
    assert (entry["bytes"], entry["memory_level"], entry["memory_ceiling_gb_per_s"]) == (6.6e6, "dram", 20.0)
    without = {name: value for name, value in entry.items() if name not in ("bytes", "memory_level", "memory_ceiling_gb_per_s")}
    dashboard = visualize_performance.PerformanceDashboard(tmp_path)
    dashboard.data = PROFILE | {"benchmarks": {"gpt_nano": entry, "gpt_micro": entry | {"bytes": 13.2e6}, "of_elsewhere": without}}
    text = dashboard.generate_dashboard().read_text()
    assert "Memory bandwidth in use" in text
    assert "over the mean. Of what memory can: gpt_nano 25.0 %, gpt_micro 50.0 %." in text  # 6.6 MB in 1.32 ms are 5 GB/s
    assert "gpt_micro: 10.0 GB/s, 50.0 % of the 20.0 GB/s that dram can" in text
    dashboard.data = PROFILE | {"benchmarks": {"of_elsewhere": without}}
    assert "Memory bandwidth" not in dashboard.generate_dashboard().read_text()


@pytest.mark.parametrize("module", [visualize_performance.PerformanceDashboard, visualize_comparison.ComparisonDashboard])
def test_a_file_with_models_that_the_new_one_lacks_is_kept(tmp_path: Path, module: type[Dashboard]) -> None:
    dashboard, member = module(tmp_path), module.entries_member
    content = PROFILE if member == "benchmarks" else COMPARISON
    (entry,) = content[member].values()
    whole = content | {member: {f"gpt_{name}": entry for name in ("nano", "micro", "mini")}}
    dashboard.data = whole
    path = dashboard.save_data()
    dashboard.save_data()  # all of them again
    assert list(tmp_path.glob("*.json")) == [path]
    dashboard.data = content | {member: {"gpt_nano": entry}}
    assert dashboard.save_data() == path
    assert dashboard.kept_file is not None
    assert re.fullmatch(rf"{path.stem}-\d{{8}}-\d{{6}}\.json", dashboard.kept_file.name)
    assert (json.loads(dashboard.kept_file.read_text()), json.loads(path.read_text())) == (whole, dashboard.data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSON that cannot be read"),
        ({"benchmarks": {}}, "no benchmarks"),
        ([1], "no benchmarks"),
        ({"benchmarks": {"m": {"timing": {"mean": 0}}}}, "model m: .*mean time over zero"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InvalidTraceError, match=message):
        visualize_performance.PerformanceDashboard().load_data(path)


def test_a_page_needs_data_and_a_comparison_two_sides(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="load_data"):
        visualize_performance.PerformanceDashboard(tmp_path).generate_dashboard()
    comparison = visualize_comparison.ComparisonDashboard(tmp_path)
    comparison.data = {"comparisons": {"m": {"only": {"mean_ms": 1.0}}}}
    with pytest.raises(InvalidRequestError, match="one implementation"):
        comparison.generate_dashboard()
