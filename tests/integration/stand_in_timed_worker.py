"""A worker that measures nothing: each configuration takes the time that is set and has the duration that is set.

It stands in for devices that this machine does not have. Its arguments: seconds of each configuration, and a factor of durations.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from kernalyse.services.core import protobuf
from kernalyse.services.core.model import (
    CacheMode,
    Configuration,
    DataType,
    Dim3,
    KernelSweep,
    Measurement,
    Progress,
    RunSpec,
    SampleBatch,
    StopReason,
    Verification,
    VerificationState,
)
from kernalyse.services.core.statistics import summarize
from kernalyse.services.profiler.processes.event_pipe import EventWriter

SAMPLE_COUNT = 20


def timed_worker(seconds: float, factor: float = 1.0) -> tuple[str, ...]:
    """The command of the worker."""
    return (sys.executable, "-P", str(Path(__file__)), "--seconds", str(seconds), "--factor", str(factor))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--factor", type=float)
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--events-fd", type=int)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_known_args()[0]
    sweep = protobuf.decode_bytes(options.spec.read_bytes(), RunSpec).work
    assert isinstance(sweep, KernelSweep)
    values = sweep.axes[0].values
    left = [index for index in range(len(values)) if index not in sweep.done_configuration_indexes]
    writer, block = EventWriter(options.events_fd), Dim3(1)
    done = len(values) - len(left)
    for index in left:
        writer.write(Progress(done, 0, len(values), f"measuring saxpy N={values[index]}", configuration_index=index))
        writer.write(Configuration(index, "saxpy", (), block, block, 0, "elementwise", DataType.FLOAT32, None, None))
        begin_ns = time.time_ns()
        time.sleep(options.seconds)
        chance = random.Random(f"{options.factor} {index}")
        samples = [1000.0 * (index + 1) * options.factor * chance.gauss(1, 0.001) for _ in range(SAMPLE_COUNT)]
        writer.write(SampleBatch(index, 0, tuple(samples), begin_ns))
        writer.write(measurement(index, samples, begin_ns))
        done += 1
        writer.write(Progress(done, 0, len(values), ""))


def measurement(index: int, samples: list[float], begin_ns: int) -> Measurement:
    told = asdict(summarize(np.array(samples)))
    now = time.time_ns()
    return Measurement(
        configuration_index=index,
        discarded_sample_count=0,
        warm_up_count=1,
        stop_reason=StopReason.CONFIDENCE_REACHED,
        cache_mode=CacheMode.HOT,
        verification=Verification(VerificationState.SWITCHED_OFF),
        measured_unix_ns=now,
        elapsed_ns=now - begin_ns,
        compile_ns=0,
        **told,
    )


if __name__ == "__main__":
    main()
