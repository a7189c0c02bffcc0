"""`kernalyse model`, perf-comparison and the seed's modules as a user runs them, on real kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import helper

from tests.command import Done, kernalyse
from tests.onnx_files import save_model

SMALL = ("--batch-size", "1", "--seq-len", "8", "--backend", "opencl", "--max-time", "0.2")


def succeeded(*arguments: str | Path) -> Done:
    done = kernalyse(*arguments)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_a_model_is_timed_shown_and_compared(server: tuple[str, ...], tmp_path: Path) -> None:
    unknown = kernalyse("model", "gpt-pico", *server)
    assert (unknown.returncode, "gpt-nano" in unknown.stderr) == (1, True)
    done = succeeded("model", "nano", "--variant", "baseline", "--variant", "fused", "--vocab-size", "64", *SMALL, *server)
    for text in ("gpt-nano", "blocks.*.mlp.fc", "baseline → fused", "passed", "fused against baseline"):
        assert text in done.stdout
    shown = json.loads(succeeded("show", "last", "models", "layers", "layer_variants", "--format", "json", *server).stdout)
    assert {(row["model_name"], row["variant"], row["layer_count"]) for row in shown["models"]} == {
        ("gpt-nano", "baseline", 3),
        ("gpt-nano", "fused", 3),
    }
    assert all(row["efficiency_ratio"] > 0 for row in shown["layers"])
    assert sum(row["share_ratio"] for row in shown["layers"]) == pytest.approx(2)

    compared = succeeded("perf-comparison", "--as-is", "last@baseline", "--to-be", "last@fused", "-o", tmp_path, *server)
    document = json.loads((tmp_path / "comparison_data.json").read_text())
    assert document["comparisons"]["gpt_nano"]["verdict"] in ("FASTER", "SLOWER", "SAME", "UNDECIDED")
    assert "processes" not in document["comparisons"]["gpt_nano"]["reason"]  # blocks that took turns are what it stands on
    assert "gpt_nano: to_be has" in compared.stdout

    of_all_six = document | {"comparisons": dict.fromkeys(("gpt_micro", "gpt_mini"), document["comparisons"]["gpt_nano"])}
    (tmp_path / "comparison_data.json").write_text(json.dumps(of_all_six))
    again = succeeded("perf-comparison", "--model", "nano", "--benchmark", "-o", tmp_path, *SMALL, *server)
    (kept,) = tmp_path.glob("comparison_data-*.json")
    assert f"kept {kept}: comparison_data.json as it was, which has other models (--data {kept} draws it)" in again.stdout
    assert json.loads(kept.read_text()) == of_all_six

    dashboard = succeeded("perf-dashboard", "--run-profiling", "--model", "gpt_nano", "-o", tmp_path, *SMALL, *server)
    assert f"wrote {tmp_path / 'performance_dashboard.html'}" in dashboard.stdout
    profile = json.loads((tmp_path / "profiling_data.json").read_text())
    assert profile["metadata"]["backend"] == "opencl"
    assert profile["benchmarks"]["gpt_nano"]["timing"]["mean"] > 0
    assert profile["benchmarks"]["gpt_nano"]["bytes"] > 0
    assert profile["benchmarks"]["gpt_nano"]["memory_ceiling_gb_per_s"] > 0
    assert "Of what memory can: gpt_nano " in (tmp_path / "performance_dashboard.html").read_text()
    (tmp_path / "performance_dashboard.html").unlink()
    succeeded("perf-dashboard", "--data", tmp_path / "profiling_data.json", "-o", tmp_path)
    assert (tmp_path / "performance_dashboard.html").exists()
    imported = succeeded("import", tmp_path / "profiling_data.json", *server)
    assert "gpt_nano" in imported.stdout + succeeded("show", "last", "models", *server).stdout


@pytest.mark.slow
def test_a_model_of_a_file_is_sent_to_the_node_and_timed(server: tuple[str, ...], tmp_path: Path) -> None:
    path = save_model(tmp_path / "own.onnx", helper.make_node("Relu", ["x"], ["y"]), inputs={"x": [1, 4]}, outputs={"y": [1, 4]})
    done = succeeded("model", path, "--batch-size", "1", "--seq-len", "8", "--max-time", "0.2", *server)
    assert "own.onnx" in done.stdout
    (row,) = json.loads(succeeded("show", "last", "models", "--format", "json", *server).stdout)["models"]
    assert (row["model_name"], row["batch_size"], row["duration_median_ns"] > 0) == ("own.onnx", 1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model", "nowhere.onnx"), "nowhere.onnx: found no such file"),
        (("model", "gpt-nano", "--bundle", "."), "model gpt-nano, which nodes have"),
        (("perf-dashboard",), "found neither --run-profiling nor --data"),
        (("perf-comparison", "--benchmark"), "--model NAME or --compare-all"),
        (("perf-comparison", "--as-is", "x"), "found --as-is; expected both --as-is and --to-be"),
        (("perf-comparison", "--model", "nano", "--compare-all"), "found both --model and --compare-all"),
        (("model", __file__), "found a file of another kind; expected a file FILE.onnx"),
        (("perf-dashboard", "--data", "/nowhere.json"), "No such file"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(arguments: tuple[str, ...], message: str) -> None:
    done = kernalyse(*arguments)
    assert done.returncode != 0
    assert message in done.stderr
