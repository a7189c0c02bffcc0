"""Charts of a node's last hour: lines, holes, axes, and how lines are told apart."""

from __future__ import annotations

import numpy as np

from kernalyse.services.core.model import Telemetry
from kernalyse.services.ui.charts.node_telemetry import (
    HOUR_MS,
    LAYERS,
    METRICS,
    line_columns,
    metric_chart,
    no_line,
    series_of,
    time_range,
    value_range,
)
from kernalyse.services.ui.theme import LIGHT

S = 1_000_000_000
BY_NAME = {metric.name: metric for metric in METRICS}


def readings(*times_s: int) -> list[Telemetry]:
    return [Telemetry(time_s * S, utilization_ratio=0.25, memory_used_bytes=3 * 2**30, power_watts=None) for time_s in times_s]


def test_a_line_has_a_hole_where_the_node_was_away() -> None:
    line = line_columns(readings(0, 1, 100, 101), BY_NAME["utilization"], "host")
    assert line["time"].tolist() == [0, 1000, 1000, 100_000, 101_000]
    assert np.isnan(line["value"]).tolist() == [False, False, True, False, False]
    assert line["text"][0] == "host 25.0 %"


def test_figures_have_their_units_and_unknown_ones_no_line() -> None:
    memory = line_columns(readings(0), BY_NAME["memory"])
    assert (memory["value"][0], memory["text"][0]) == (3.0, "3.00 GiB")
    assert not len(line_columns(readings(0, 1), BY_NAME["power"])["time"])


def test_axes() -> None:
    line = line_columns(readings(0, 7200), BY_NAME["memory"])
    assert time_range([line, no_line()]) == (7200 * 1000 - HOUR_MS, 7200 * 1000)
    low, high = value_range([line], BY_NAME["memory"])
    assert low == 0
    assert 3 < high < 3.5
    assert value_range([], BY_NAME["power"]) == (0, 1)


def test_lines_differ_by_colour_and_dash_and_the_host_comes_first() -> None:
    series = series_of(["cuda:1", None, "cuda:0"], LIGHT)
    assert [one.title for one in series] == ["host", "cuda:0", "cuda:1"]
    assert len({(one.color, one.dash) for one in series_of([f"cuda:{n}" for n in range(20)], LIGHT)}) == len(LAYERS)
    chart = metric_chart(BY_NAME["memory"], [line_columns(readings(0, 1), BY_NAME["memory"])], series, LIGHT)
    assert len(chart) == len(LAYERS)
