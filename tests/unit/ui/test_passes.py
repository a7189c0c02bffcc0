"""Charts of whole passes (seed 003): which bars, lines and points models of one or several runs have, and what they say."""

from __future__ import annotations

import polars as pl
import pytest

from kernalyse.services.analyzer.tables.derived import MODELS
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.models import BAR_WIDTH, PERCENTILES, bar_columns, line_columns, passes_of, scatter_columns, top_of
from kernalyse.services.ui.theme import LIGHT

NANO = {
    "model_name": "gpt-nano",
    "variant": "baseline",
    "batch_size": 4,
    "sequence_length": 64,
    "layer_count": 3,
    "head_count": 3,
    "width": 48,
    "sample_count": 100,
    "duration_mean_ns": 1.32e6,
    "duration_standard_deviation_ns": 0.11e6,
    "duration_min_ns": 1.24e6,
    "duration_median_ns": 1.28e6,
    "duration_p95_ns": 1.63e6,
    "duration_p99_ns": 1.74e6,
    "duration_max_ns": 1.75e6,
    "tokens_per_s": 193_731.0,
    "memory_bytes": 2**20,
}
FIRST, SECOND = "20260101-000000-aaaa", "20260102-000000-bbbb"
TITLES = {FIRST: "before", SECOND: "after"}


def rows(*further: dict[str, object]) -> pl.DataFrame:
    made = [NANO | row for row in further]
    return MODELS.own_rows(made).with_columns(run_id=pl.Series([row.get("run_id", FIRST) for row in further], dtype=pl.String))


def test_runs_stand_beside_each_other_under_the_names_of_their_models() -> None:
    found = passes_of(rows({"run_id": SECOND, "duration_mean_ns": 0.9e6}, {}, {"variant": "fused"}), TITLES)
    assert (found.names, found.run_ids) == (("gpt-nano baseline", "gpt-nano fused"), (FIRST, SECOND))
    boxes, whiskers = bar_columns(found.latency(), LIGHT)
    assert boxes["top"].tolist() == [1.32e6, 1.32e6, 0.9e6]
    assert boxes["color"].tolist() == [LIGHT.series[0], LIGHT.series[0], LIGHT.series[1]]
    assert boxes["left"][2] == pytest.approx(0.0)  # the second half of the first name's place
    assert boxes["right"][0] - boxes["left"][0] < BAR_WIDTH / 2
    assert (len(whiskers["y0"]), whiskers["y0"][0], whiskers["y1"][0]) == (9, pytest.approx(1.21e6), pytest.approx(1.43e6))
    assert boxes["text"][2] == "gpt-nano baseline (bbbb): 900 µs ± 110 µs, 100 passes"


def test_percentiles_throughput_and_memory_are_those_of_the_passes() -> None:
    found = passes_of(rows({}), TITLES)
    _, dots = line_columns(tuple(PERCENTILES), found.percentiles(), LIGHT, theme.duration)
    assert dots["y"].tolist() == [1.24e6, 1.28e6, 1.63e6, 1.74e6, 1.75e6]
    assert dots["text"][3] == "gpt-nano baseline, p99: 1.74 ms"
    points, names = scatter_columns(found.throughput_of_layers(), LIGHT)
    assert (points["x"].tolist(), points["y"].tolist()) == ([48.0], [193_731 / 3])
    assert names["name"].tolist() == ["gpt-nano baseline"]
    (memory,) = found.figures("memory_bytes", theme.memory)
    assert memory[0] is not None
    assert (memory[0].value, memory[0].text) == (2**20, "gpt-nano baseline: 1.00 MiB")


def test_sizes_tell_passes_of_one_model_apart_and_what_is_not_known_is_left_out() -> None:
    unknown = {name: None for name in NANO if name.startswith("duration") or name in ("tokens_per_s", "layer_count", "memory_bytes")}
    found = passes_of(rows({}, {"batch_size": 8, **unknown}), TITLES)
    assert found.names == ("gpt-nano baseline 4 × 64", "gpt-nano baseline 8 × 64")
    (latency,) = found.latency()
    assert (latency[0] is None, latency[1]) == (False, None)
    assert len(found.throughput_of_layers()) == 1
    strokes, dots = line_columns(tuple(PERCENTILES), found.percentiles(), LIGHT, theme.duration)
    assert (len(strokes["x0"]), len(dots["x"])) == (4, 5)
    going_on = passes_of(rows({"duration_standard_deviation_ns": None, "sample_count": 2}), TITLES).latency()[0][0]
    assert going_on is not None
    assert (going_on.low, going_on.text) == (None, "gpt-nano baseline: 1.32 ms so far, 2 passes")
    nothing = passes_of(rows(), TITLES)
    assert (nothing.names, nothing.latency(), top_of(0.0)) == ((), [], 1.0)
