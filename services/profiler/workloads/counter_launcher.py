"""The process that launches configurations of a sweep once each under ncu.

Run as `python -m kernalyse.services.profiler.workloads.counter_launcher`.

Runs under ncu, started by the worker after the sweep. Each configuration is prepared as the sweep prepared it, on the same
backend. Where launches are this process's own, one goes ahead unseen, so that lazy loading is behind it, and the one that
counts lies between cuProfilerStart and cuProfilerStop. The record says which launches came about, in their order.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernalyse.services.core.errors import InternalError, InvalidRequestError, KernalyseError
from kernalyse.services.core.model import BackendName, KernelSweep, RunSpec
from kernalyse.services.core.protobuf import decode_bytes
from kernalyse.services.profiler.workloads.counters import LaunchLog, LaunchLogEntry, LaunchStep
from kernalyse.services.profiler.workloads.events import NullSink

if TYPE_CHECKING:
    from kernalyse.services.profiler.workloads.sweeps.configuration import MeasurementContext
    from kernalyse.services.profiler.workloads.sweeps.plan import PlannedConfiguration

CUDA_LIBRARY = "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class LauncherArguments:
    """The command-line arguments of counted launches."""

    spec_file: Path
    configurations_file: Path
    record_file: Path
    directory: Path
    catalog_file: Path | None
    cache_directory: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch what the command line names, under ncu; return the exit status."""
    order = _read_command_line(arguments)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    spec = decode_bytes(order.spec_file.read_bytes(), RunSpec)
    if not isinstance(spec.work, KernelSweep):
        raise InvalidRequestError("counted launches", found=type(spec.work).__name__, expected="a KernelSweep")
    _launch_all(spec.work, order)
    return 0


def _launch_all(sweep: KernelSweep, order: LauncherArguments) -> None:
    from kernalyse.services.profiler.backends.discovery import open_backend_for
    from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
    from kernalyse.services.profiler.measuring.buffers import DeviceBuffers
    from kernalyse.services.profiler.measuring.device_state import ContentionCheck, NoClockMeter, NoUseMeter
    from kernalyse.services.profiler.workloads.sweeps.configuration import MeasurementContext
    from kernalyse.services.profiler.workloads.sweeps.launches import SweepCompiler
    from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep

    wanted: list[int] = json.loads(order.configurations_file.read_text())
    plan = plan_sweep(sweep, load_catalog(order.catalog_file), sys.maxsize)
    planned_by_index = {planned.configuration_index: planned for planned in plan.configurations()}
    backend = open_backend_for(sweep.backend, sweep.device_id, order.cache_directory)
    session = backend.open(sweep.device_id)
    context = MeasurementContext(
        sweep=sweep,
        session=session,
        sink=NullSink(),
        directory=order.directory,
        clock_meter=NoClockMeter(),
        contention=ContentionCheck(NoUseMeter()),
        buffers=DeviceBuffers(session),
        compiler=SweepCompiler(sweep.compiler_options, session, NullSink(), order.directory),
    )
    record = LaunchLog(order.record_file)
    for configuration_index in wanted:
        launch_once(planned_by_index[configuration_index], context, record, has_ranges=backend.name is BackendName.PYCUDA)
    context.buffers.release()
    session.close()


def launch_once(planned: PlannedConfiguration, context: MeasurementContext, record: LaunchLog, *, has_ranges: bool) -> None:
    """Prepare one configuration and launch it once. Errors are recorded, not raised."""
    from kernalyse.services.profiler.workloads.sweeps.configuration import ConfigurationRun

    run = ConfigurationRun(planned, context)
    index, label = planned.configuration_index, planned.kernel.definition.kernel_name
    try:
        label = run.label
        record.write(LaunchLogEntry(index, LaunchStep.PREPARING, label))
        run.report_configuration()
        launch = run.prepare()
        if has_ranges:
            context.session.run(launch)
            with profiled_range():
                context.session.run(launch)
        else:
            context.session.run(launch)
    except KernalyseError as error:
        record.write(LaunchLogEntry(index, LaunchStep.FAILED, label, error.message))
    else:
        record.write(LaunchLogEntry(index, LaunchStep.LAUNCHED, label))


@contextmanager
def profiled_range() -> Iterator[None]:
    """Have ncu count the launches within the context, under --profile-from-start off. Raises InternalError."""
    driver = ctypes.CDLL(CUDA_LIBRARY)  # loaded already, by the backend
    _check(driver.cuProfilerStart(), "cuProfilerStart")
    try:
        yield
    finally:
        _check(driver.cuProfilerStop(), "cuProfilerStop")


def _check(status: int, function_name: str) -> None:
    if status != 0:
        raise InternalError(function_name, found=f"status {status} of the CUDA driver", expected="0")


def _read_command_line(arguments: Sequence[str] | None) -> LauncherArguments:
    parser = argparse.ArgumentParser(prog="python -m kernalyse.services.profiler.workloads.counter_launcher", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="file with the serialized RunSpec of the sweep")
    parser.add_argument("--configurations", type=Path, required=True, help="JSON file: indexes of configurations, in their order")
    parser.add_argument("--record", type=Path, required=True, help="file to write what was launched to")
    parser.add_argument("--directory", type=Path, required=True, help="private working directory")
    parser.add_argument("--catalog", type=Path, help="catalog file; the project's own if not given")
    parser.add_argument("--cache-directory", type=Path, help="where compiled kernels are cached between runs")
    parsed = parser.parse_args(arguments)
    return LauncherArguments(parsed.spec, parsed.configurations, parsed.record, parsed.directory, parsed.catalog, parsed.cache_directory)


if __name__ == "__main__":
    sys.exit(main())
