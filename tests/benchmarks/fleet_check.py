"""How often `kernalyse fleet check` finds a slow device, and how often it names a sound one, over made-up checks of stand-in devices.

python -m tests.benchmarks.fleet_check [--fleets 1000]

Rates are normal around their device's own: the spread between devices and the noise of a check within one are printed. Compute differs by
more between devices, and is compared with five earlier checks of each.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from kernalyse.services.analyzer.analysis.fleet import fleet
from kernalyse.services.analyzer.tables.derived import HISTORY_ROWS
from kernalyse.services.core.device_health import CHECK_NAMES, CHECK_TITLES, COPY, POWER_LIMITED, SLOWER

DEVICE_COUNT: Final = 32
BLOCK_COUNT: Final = 10
EARLIER_COUNT: Final = 5
COMPUTE_SPREAD: Final = 0.03  # between devices
NOISE_RATIO: Final = 0.003  # of a block within a device
CHECK_NOISE_RATIO: Final = 0.001  # from one check of a device to the next
INTERVAL_RANKS: Final = (1, 8)  # of ten sorted blocks: the interval of their median


@dataclass(frozen=True, slots=True)
class Fleets:
    """How many fleets had what.

    found_count: the slow device was named in its measurement. false_count: any other device or measurement was named.
    """

    found_count: int
    false_count: int


def made_up_checks(generator: np.random.Generator, spread: float, slow_ratio: float) -> pl.DataFrame:
    """Return rows of table history_rows of one fleet; its first device copies slower by slow_ratio."""
    check_count = EARLIER_COUNT + 1
    rows = []
    for name in CHECK_NAMES:
        between = COMPUTE_SPREAD if name in POWER_LIMITED else spread
        device = generator.normal(0.0, between, DEVICE_COUNT)
        if name == COPY:
            device[0] = generator.normal(0.0, between) - slow_ratio
        own = device[:, None] + generator.normal(0.0, CHECK_NOISE_RATIO, (DEVICE_COUNT, check_count))
        blocks = np.sort(own[..., None] + generator.normal(0.0, NOISE_RATIO, (DEVICE_COUNT, check_count, BLOCK_COUNT)), axis=-1)
        durations_ns = 1e6 * np.exp(-blocks)
        for place in range(DEVICE_COUNT):
            for check in range(check_count):
                low, high = (durations_ns[place, check, BLOCK_COUNT - 1 - rank] for rank in INTERVAL_RANKS)
                rows.append((f"{place}-{check}", name, f"node{place}", check, np.median(durations_ns[place, check]), low, high))
    columns = ["run_id", "kernel_name", "node_id", "measured_unix_ns", "duration_median_ns"]
    frame = pl.DataFrame(rows, [*columns, "duration_median_low_ns", "duration_median_high_ns"], orient="row")
    described = frame.with_columns(device_id=pl.lit("stand-in:0"), device_name=pl.lit("stand-in"))
    return HISTORY_ROWS.conform(described.lazy()).collect()


def try_fleets(fleet_count: int, spread: float, slow_ratio: float, seed: int = 1) -> Fleets:
    """Judge this many fleets, and count."""
    generator = np.random.default_rng(seed)
    found_count = false_count = 0
    for _ in range(fleet_count):
        rows = fleet(made_up_checks(generator, spread, slow_ratio).lazy()).filter(verdict=SLOWER).collect()
        is_planted = (pl.col("node_id") == "node0") & (pl.col("check") == CHECK_TITLES[COPY])
        if slow_ratio:
            found_count += rows.filter(is_planted).height
            rows = rows.filter(~is_planted)
        false_count += rows.height > 0
    return Fleets(found_count, false_count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=1000, help="that are made up for each line")
    count = parser.parse_args().fleets
    print(f"{DEVICE_COUNT} stand-in devices, {BLOCK_COUNT} blocks with noise {NOISE_RATIO:.1%},")
    print(f"{CHECK_NOISE_RATIO:.1%} between checks of a device, compute {COMPUTE_SPREAD:.0%} between devices,")
    print(f"{EARLIER_COUNT} earlier checks of each")
    for spread, slow_ratio in ((0.005, 0.03), (0.01, 0.06), (0.005, 0.0), (0.01, 0.0)):
        tried = try_fleets(count, spread, slow_ratio)
        found = f"found in {100 * tried.found_count / count:.1f} of 100 (goal 95), " if slow_ratio else ""
        false = f"false alarms in {100 * tried.false_count / count:.1f} of 100 (goal 5)"
        print(f"spread {spread:.1%}, one device {slow_ratio:.0%} slow: {found}{false}")


if __name__ == "__main__":
    main()
