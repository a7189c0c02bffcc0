"""Hardware counters of a benchmark: its launches once more under ncu."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from services.compat.benchmarking.collected_events import CollectedEvents
from services.compat.benchmarking.notices import tell, tell_once
from services.compat.benchmarking.opened_device import OpenedDevice
from services.core.errors import KernalyseError
from services.core.model import CountersStored, Device, EventPayload, KernelSweep, RunSpec
from services.core.wire import encode_bytes
from services.profiler.workloads.counters import Counting, CountingFiles, MeasuredLaunches, prepare_counting
from services.profiler.workloads.counters import count_launches as count_measured
from services.profiler.workloads.events import ARTIFACTS_FOLDER, EventSink
from services.profiler.workloads.sweep_plan import SweepPlan


@dataclass(slots=True)
class _Reports:
    """An event sink that remembers reports and passes everything else on."""

    events: EventSink
    stored: list[CountersStored] = field(default_factory=list)

    def write(self, payload: EventPayload) -> None:
        if isinstance(payload, CountersStored):
            self.stored.append(payload)
        else:
            self.events.write(payload)


def count_launches(sweep: KernelSweep, plan: SweepPlan, opened: OpenedDevice, events: CollectedEvents) -> Mapping[int, Mapping[str, float]]:
    """Runs the launches of a sweep once more under ncu; counters by configuration index and ncu's own names.

    Empty: nothing was counted, and a notice says why.

    Args:
        events: of the sweep, with what it measured; takes what the counting has to say.
    """
    counting = way_to_count(opened.session.device, events)
    if counting is None:
        return {}
    sweep = replace(sweep, backend=opened.backend, device_id=opened.session.device.device_id)
    reports = _Reports(events)
    measured = MeasuredLaunches(reports)
    for measurement in events.measurements.values():
        measured.indexes.setdefault(measurement.cache_mode, []).append(measurement.configuration_index)
    with tempfile.TemporaryDirectory(prefix="kernalyse-counters-") as folder:
        spec_file = Path(folder) / "spec"
        spec_file.write_bytes(encode_bytes(RunSpec(sweep)))
        count_measured(counting, plan, measured, CountingFiles(spec_file, Path(folder)))
        counted: dict[int, Mapping[str, float]] = {}
        for stored in reports.stored:
            counted.update(_read(stored, (Path(folder) / ARTIFACTS_FOLDER / stored.artifact_name).read_bytes()))
    return counted


def way_to_count(device: Device, events: EventSink) -> Counting | None:
    """None after a notice that says why there is none."""
    if device.compute_capability is None:
        tell_once(f"profile: Nsight Compute reads no counters of {device.name}; throughput, occupancy and SM efficiency are NaN.")
        return None
    return prepare_counting(device, events)


def _read(stored: CountersStored, data: bytes) -> dict[int, Mapping[str, float]]:
    """What the report says of each configuration that it names."""
    try:
        from services.analyzer.counter_reports import matched_configurations
        from services.analyzer.readers.ncu import read_ncu_report
    except ModuleNotFoundError as error:
        tell_once(f"profile: reading the report of ncu needs the Python module {error.name}: pip install 'kernalyse[analyzer]'.")
        return {}
    try:
        report = read_ncu_report(data)
    except KernalyseError as error:  # the times are worth more than the counters
        tell(f"profile: {error.message}")
        return {}
    indexes, problems = matched_configurations(report.launches["kernel_name"].to_list(), stored)
    for problem in (*problems, *report.notes):
        tell(f"profile: {problem}")
    counted: dict[int, dict[str, float]] = {}
    for launch_index, metric_name, value in report.counters.select("launch_index", "metric_name", "value").iter_rows():
        configuration_index = indexes[launch_index]
        if configuration_index is not None and value is not None:
            counted.setdefault(configuration_index, {})[metric_name] = value
    return dict(counted)
