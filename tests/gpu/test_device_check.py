"""The check of a real NVIDIA device: everything is measured, its blocks agree, and the counters of errors can be read."""

from __future__ import annotations

from kernalyse.services.core.device_health import CHECK_NAMES, REMAPPING_FAILED, health_problems
from kernalyse.services.core.model import Configuration, Measurement
from kernalyse.services.profiler.backends.base import DeviceSession
from kernalyse.services.profiler.node import open_readers
from kernalyse.services.profiler.workloads.ceilings import load_sources
from kernalyse.services.profiler.workloads.device_check import run_check
from tests.gpu.conftest import RecordFigure

BLOCK_COUNT = 6
MAX_SPREAD_RATIO = 0.02
"""Of the interval of a block's median: copies and products of one GPU agree within a percent from block to block."""


class Events:
    """A sink that keeps what was measured."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.measurements: dict[str, Measurement] = {}

    def write(self, payload: object) -> None:
        match payload:
            case Configuration(configuration_index=index, kernel_name=name):
                self.names[index] = name
            case Measurement(configuration_index=index):
                self.measurements[self.names[index]] = payload


def test_everything_is_measured_and_the_blocks_agree(pycuda_session: DeviceSession, figure: RecordFigure) -> None:
    events = Events()
    run_check(pycuda_session, load_sources(), BLOCK_COUNT, events)
    assert set(events.measurements) == set(CHECK_NAMES)
    for name, measured in events.measurements.items():
        assert measured.sample_count == BLOCK_COUNT, name
        spread = (measured.duration_median_high_ns - measured.duration_median_low_ns) / measured.duration_median_ns
        figure(name, duration_median_ns=measured.duration_median_ns, spread_ratio=spread)
        assert name == "check_small_launches" or spread < MAX_SPREAD_RATIO, (name, spread)


def test_counters_of_errors_are_read_and_a_sound_device_has_none_that_matter(pycuda_session: DeviceSession) -> None:
    (_, *readers) = open_readers((pycuda_session.device,))
    assert readers, "NVML gives no telemetry of the device"
    counts = readers[0].read().error_counts
    assert REMAPPING_FAILED in {count.name for count in counts} or not counts
    assert health_problems(counts) == []
