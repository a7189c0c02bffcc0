"""Judgements of device checks: against equal devices, and against a device's own earlier checks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.fleet import fleet, slow_outliers
from kernalyse.services.analyzer.tables.derived import HISTORY_ROWS
from kernalyse.services.core.device_health import COPY, FINE, MULTIPLY_ADD, NOT_JUDGED, SLOWER
from tests.benchmarks.fleet_check import try_fleets

DAY_NS = 24 * 3600 * 1_000_000_000


def check(device: int, rate: float, *, day: int = 0, name: str = COPY, **further: Any) -> dict[str, Any]:
    """A row of table history_rows: a check of a device that took 1 ms at rate 1."""
    duration_ns = 1e6 / rate
    return {
        "run_id": f"{device}-{day}",
        "kernel_name": name,
        "node_id": f"node{device}",
        "device_id": "cuda:0",
        "device_name": "H100",
        "measured_unix_ns": day * DAY_NS,
        "duration_median_ns": duration_ns,
        "duration_median_low_ns": duration_ns * 0.999,
        "duration_median_high_ns": duration_ns * 1.001,
        **further,
    }


def judged(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    frame = HISTORY_ROWS.conform(pl.DataFrame(rows).lazy())
    return {(row["node_id"], row["check"]): row for row in fleet(frame).collect().to_dicts()}


SOUND = [1.0, 1.002, 0.998, 1.001, 0.999, 1.003, 0.997, 1.0, 1.001]


def test_a_device_that_copies_slower_than_its_equals_is_named_with_its_interval_and_its_clock() -> None:
    rows = [check(place, rate, memory_clock_hz=3_201_000_000) for place, rate in enumerate(SOUND)]
    rows.append(check(9, 0.94, memory_clock_hz=2_619_000_000))
    found = judged(rows)
    slow = found["node9", "copy"]
    assert slow["verdict"] == SLOWER
    assert slow["baseline"] == "9 equal devices"
    assert slow["rate_ratio"] == pytest.approx(0.94, abs=1e-3)
    assert 0.93 < slow["rate_ratio_low"] < slow["rate_ratio"] < slow["rate_ratio_high"] < 0.95
    assert slow["reason"] == "memory clock lower, 2619 instead of 3201 MHz"
    assert {row["verdict"] for place, row in found.items() if place[0] != "node9"} == {FINE}


def test_two_slow_devices_do_not_hide_each_other() -> None:
    found = judged([check(place, rate) for place, rate in enumerate([*SOUND, 0.95, 0.94])])
    assert [place for (place, _), row in found.items() if row["verdict"] == SLOWER] == ["node10", "node9"]


def test_less_than_one_percent_is_no_finding() -> None:
    found = judged([check(place, 1 + 1e-5 * place) for place in range(12)] + [check(12, 0.993)])
    assert {row["verdict"] for row in found.values()} == {FINE}


def test_compute_is_compared_with_the_devices_own_earlier_checks_not_with_others() -> None:
    """Sound devices differ by 8 % among each other; one of them has lost 3 % since."""
    generator = np.random.default_rng(3)
    rows = [
        check(place, rate * math.exp(generator.normal(0, 0.002)), day=day, name=MULTIPLY_ADD)
        for place, rate in enumerate([1.0, 0.92, 1.03, 0.97, 1.05, 0.95])
        for day in range(6)
    ]
    rows += [check(place, rate, day=6, name=MULTIPLY_ADD) for place, rate in enumerate([1.0, 0.92, 1.03 * 0.97, 0.97, 1.05, 0.95])]
    found = judged(rows)
    assert [place for (place, _), row in found.items() if row["verdict"] == SLOWER] == ["node2"]
    slow = found["node2", "multiply-adds"]
    assert slow["baseline"] == "6 earlier checks of its own"
    assert slow["rate_ratio"] == pytest.approx(0.97, abs=5e-3)
    assert slow["run_id"] == "2-6"


def test_a_first_check_of_a_few_devices_is_not_judged_and_says_why() -> None:
    found = judged([check(place, rate) for place, rate in enumerate([1.0, 0.5])])
    assert {(row["verdict"], row["baseline"]) for row in found.values()} == {
        (NOT_JUDGED, "0 earlier checks of its own, too few to judge by")
    }
    assert {row["rate_ratio"] for row in found.values()} == {None}


def test_devices_of_other_names_and_of_long_ago_are_not_compared_with() -> None:
    rows = [check(place, rate, day=100) for place, rate in enumerate(SOUND)]
    rows += [check(20, 0.5, day=100, device_name="L4"), check(21, 0.5, day=60)]
    found = judged(rows)
    assert found["node20", "copy"]["verdict"] == NOT_JUDGED
    assert ("node21", "copy") not in found
    assert found["node0", "copy"]["verdict"] == FINE


def test_rows_of_other_kernels_are_no_checks_and_no_check_is_an_empty_table() -> None:
    assert judged([check(0, 1.0, name="saxpy")]) == {}


def test_the_outlier_test_keeps_its_level() -> None:
    """Of 4,000 samples of normal values, about 5 % have an outlier at level 5 %; 3.9 to 6.1 % is three standard errors."""
    generator = np.random.default_rng(5)
    found = sum(bool(slow_outliers(100 * generator.normal(0, 1.0, 32), 0.05).any()) for _ in range(4_000))
    assert 0.039 <= found / 4_000 <= 0.061


@pytest.mark.slow
def test_slow_devices_of_a_fleet_are_found_and_sound_ones_are_not_named() -> None:
    """The goals are 95 and 5 of 100; 200 fleets leave three standard errors of 1.5 and 1.2."""
    planted, sound = try_fleets(200, 0.005, 0.03), try_fleets(200, 0.005, 0.0)
    assert planted.found_count >= 181
    assert sound.false_count <= 17
