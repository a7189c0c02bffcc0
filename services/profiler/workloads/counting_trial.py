"""A small kernel under ncu before a sweep: what only ncu can say against counting is said before the hours that the sweep takes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.core.errors import KernalyseError
from services.core.model import Axis, CacheMode, KernelSelection, KernelSweep, LogLevel, LogLines, RunSpec
from services.core.wire import encode_bytes
from services.profiler.catalog import load_catalog
from services.profiler.collectors.ncu_refusals import is_refused_for_good
from services.profiler.workloads.counters import Counting, CountingFiles, MeasuredLaunches, count_one
from services.profiler.workloads.events import EventSink, NullSink

KERNEL_NAME: Final = "saxpy"
SIZE: Final = 1_024
METRIC: Final = "dram__bytes.sum"  # one that takes the lock which other programs may hold; more would only cost replays


def try_counting(counting: Counting, sweep: KernelSweep, folder: Path, sink: EventSink) -> Counting | None:
    """Return the counting, or None after a warning: ncu has refused for a reason that the sweep's end will not change.

    Whatever else goes wrong says little of the sweep's own kernels, and is left to them.

    Args:
        sweep: that is to be counted; the trial runs on its device.
        folder: of the run; files of the trial go below it.
    """
    place = folder / "counting_trial"
    place.mkdir()
    trial = KernelSweep((KernelSelection(KERNEL_NAME),), (Axis("N", (SIZE,)),), backend=sweep.backend, device_id=sweep.device_id)
    files = CountingFiles(place / "spec", place)
    files.spec_file.write_bytes(encode_bytes(RunSpec(trial)))
    function_name = load_catalog().definition(KERNEL_NAME).function
    try:
        count_one(counting.of((METRIC,)), CacheMode.HOT, function_name, MeasuredLaunches(NullSink()), files)
    except KernalyseError as error:
        if is_refused_for_good(error.found):
            sink.write(LogLines(LogLevel.WARNING, "worker", tuple(f"No counters, timings alone: {error.message}".splitlines())))
            return None
    except OSError:  # the program or the folder; the sweep's own counting says which
        pass
    return counting
