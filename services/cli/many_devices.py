"""`kernalyse bench --on`: the same sweep on several devices at the same time, each compared with the first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kernalyse.services.cli.output import TerminalTable
from kernalyse.services.cli.output import console as make_console
from kernalyse.services.cli.run_output import failure_lines, outcome_line
from kernalyse.services.cli.table_files import write_text
from kernalyse.services.core.errors import DeviceNotFoundError, InvalidRequestError, observing_error
from kernalyse.services.core.formatting import UNKNOWN, change, device_use, median_with_interval
from kernalyse.services.core.model import (
    BackendName,
    Device,
    DeviceKind,
    KernelSweep,
    NodeHealth,
    NodeStatus,
    NodeTelemetry,
    Run,
    RunSpec,
    RunState,
)

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.profiler.kernel_sources.headers import HeaderBundle

POLL_S: Final = 0.3
SCHEMA: Final = "kernalyse-devices/1"
EQUAL_FIELDS: Final = {
    "driver": "driver_version",
    "toolkit": "toolkit_version",
    "runtime": "runtime",
    "memory": "memory_bytes",
    "compute units": "compute_unit_count",
    "highest clock": "max_clock_hz",
}
SETTINGS: Final = ("power limit", "clock limits", "ECC", "MIG", "persistence mode", "PCIe", "VBIOS")
"""What may differ between devices of one name, as their driver tells it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device that the sweep is measured on.

    Args:
        node_id, hostname: of its node.
        device: None: the one that its node chooses.
    """

    node_id: str
    hostname: str
    device: Device | None = None

    @property
    def label(self) -> str:
        """Return what people call it."""
        return self.hostname if self.device is None else f"{self.hostname} {self.device.device_id}"

    def is_on(self, node_id: str, device_id: str | None) -> bool:
        """Return whether a run was measured on it."""
        return self.node_id == node_id and (self.device is None or self.device.device_id == device_id)


def targets_of(nodes: Sequence[NodeStatus], which: str, backend: BackendName | None) -> tuple[Target, ...]:
    """Return the devices that the option --on means: GPUs, and of a node without one the device that it chooses.

    Args:
        nodes: of the analyzer.
        which: all, names of nodes, or part of a device's name.
        backend: that drives them; None: any.

    Raises:
        DeviceNotFoundError: there is none, or a node does not answer.
        UnmetConditionError: a node that is named only observes.
    """
    nodes = sorted(nodes, key=lambda status: status.node.hostname if status.node else status.address)
    # One that is just being connected to is waited for by the analyzer.
    answering = [status for status in nodes if status.health is not NodeHealth.UNREACHABLE and status.node is not None]
    serving = [status for status in answering if not status.observes_only]
    if which == "all":
        return tuple(target for status in serving for target in _of_node(status, backend)) or _nothing(which, nodes)
    names = [name.strip() for name in which.split(",") if name.strip()]
    by_name = {name: [status for status in nodes if _is_called(status, name)] for name in names}
    if any(by_name.values()):
        for name, found in by_name.items():
            if found and all(status.observes_only for status in found):
                raise observing_error(name)
        missing = [name for name, found in by_name.items() if not any(status in serving for status in found)]
        if missing:
            _nothing(", ".join(missing), nodes)
        return tuple(target for found in by_name.values() for status in found for target in _of_node(status, backend)) or _nothing(
            which, nodes
        )
    named = (
        Target(status.node.node_id, status.node.hostname, device)
        for status in serving
        if status.node is not None
        for device in status.node.devices
        if which.strip() and which.lower() in device.name.lower() and (backend is None or backend in device.backends)
    )
    return tuple(named) or _nothing(which, nodes)


def left_out_lines(nodes: Sequence[NodeStatus], which: str) -> list[str]:
    """Return the line that names the nodes which only observe, where --on names no node."""
    if any(_is_called(status, name.strip()) for name in which.split(",") for status in nodes):
        return []
    names = sorted(status.node.hostname for status in nodes if status.node is not None and status.observes_only)
    return [f"Left out, as nothing is run there: {', '.join(names)} (observe_only)."] if names else []


def _is_called(status: NodeStatus, name: str) -> bool:
    node = status.node
    return name == status.address or (node is not None and (name == node.hostname or node.node_id.startswith(name)))


def _of_node(status: NodeStatus, backend: BackendName | None) -> list[Target]:
    node = status.node
    assert node is not None
    gpus = [device for device in node.devices if device.kind is DeviceKind.GPU and (backend is None or backend in device.backends)]
    if gpus:
        return [Target(node.node_id, node.hostname, device) for device in gpus]
    return [Target(node.node_id, node.hostname)] if node.devices else []


def _state(status: NodeStatus) -> str:
    return "only observes" if status.observes_only else str(status.health).lower()


def _nothing(which: str, nodes: Sequence[NodeStatus]) -> tuple[Target, ...]:
    known = [f"{status.node.hostname if status.node else status.address} ({_state(status)})" for status in nodes]
    raise DeviceNotFoundError(
        f"option --on {which}",
        found="no device of it that answers",
        expected=f"all, nodes of {', '.join(known) or 'this analyzer, which has none'}, or part of a device's name",
        remedy="kernalyse devices lists them.",
    )


def difference_lines(targets: Sequence[Target]) -> list[str]:
    """Return what differs between devices of one name, and what nobody knows of them, a line each."""
    lines = []
    devices = [(target, target.device) for target in targets if target.device is not None]
    for name in dict.fromkeys(device.name for _, device in devices):
        equal = [(target, device) for target, device in devices if device.name == name]
        if len(equal) < 2:
            continue
        unknown = []
        for word in (*EQUAL_FIELDS, *SETTINGS):
            told = {target.label: _told(device, word) for target, device in equal}
            if len(set(told.values())) > 1:
                groups = {value: [label for label, found in told.items() if found == value] for value in dict.fromkeys(told.values())}
                lines.append(
                    f"{name} differ in {word}: " + "; ".join(f"{value} on {', '.join(labels)}" for value, labels in groups.items())
                )
            elif set(told.values()) == {UNKNOWN_WORD}:
                unknown.append(word)
        if unknown:
            lines.append(f"{name}: unknown of all of them: {', '.join(unknown)}")
    return lines


def use_lines(targets: Sequence[Target], telemetry: Sequence[NodeTelemetry]) -> list[str]:
    """Return who else uses the GPUs, a line for each that is used and for all that are free or unknown.

    Args:
        targets: the devices; of CPUs each measurement says how busy their host was.
        telemetry: the newest readings of the analyzer's nodes.
    """
    users = {(reading.node_id, reading.telemetry.device_id): reading.telemetry.other_processes for reading in telemetry}
    labels: dict[str, list[str]] = {}
    for target in targets:
        if target.device is not None and target.device.kind is DeviceKind.GPU:
            labels.setdefault(device_use(users.get((target.node_id, target.device.device_id))), []).append(target.label)
    return [f"{', '.join(together)}: {use}" for use, together in labels.items()]


UNKNOWN_WORD: Final = "unknown"


def _told(device: Device, word: str) -> str:
    value = dict(device.settings).get(word) if word in SETTINGS else getattr(device, EQUAL_FIELDS[word])
    return UNKNOWN_WORD if value is None else str(value)


# ---------------------------------------------------------------- measuring


def measure_on(
    client: AnalyzerClient,
    targets: Sequence[Target],
    spec: RunSpec,
    bundles: Sequence[HeaderBundle],
    json_path: Path | None,
    console: Console,
) -> bool:
    """Measure the sweep on every device, show the results side by side, and return whether all was measured.

    Args:
        client: the analyzer.
        targets: the devices, the first of which the others are compared with.
        bundles: headers that the nodes need before.
        json_path: file for the results; "-" for standard output; None: none.
        console: shows progress and notes.
    """
    told = (*difference_lines(targets), *use_lines(targets, client.newest_telemetry(client.nodes())))
    for line in (f"Measuring on {', '.join(target.label for target in targets)}.", *told):
        console.print(line, markup=False, highlight=False)
    upload_bundles(client, targets, bundles)
    runs = [client.start_run(on_target(spec, target), node_id=target.node_id) for target in targets]
    runs = follow_all(client, targets, runs, console)
    writes_to_standard_output = json_path is not None and str(json_path) == "-"
    shown = make_console(stderr=writes_to_standard_output)
    frames = [client.table("measurements", [run.run_id]) for run in runs]
    found = [compare_devices(client, runs[0], run) for run in runs[1:]]
    compared = [None, *(None if isinstance(table, str) else table for table in found)]
    for target, why in zip(targets[1:], found, strict=True):
        if isinstance(why, str):
            console.print(f"{target.label} is not compared with {targets[0].label}: {why}.", markup=False, highlight=False)
    if any(frame.height for frame in frames):
        shown.print(device_table(targets, frames, compared))
    for target, run in zip(targets, runs, strict=True):
        for line in (*failure_lines(client.table("failures", [run.run_id])), outcome_line(run)):
            console.print(f"{target.label}: {line}", markup=False, highlight=False)
    if json_path is not None:
        write_text(_document(client, targets, runs, compared), None if writes_to_standard_output else json_path)
    return all(run.state is RunState.SUCCEEDED and run.failed_configuration_count == 0 for run in runs)


def upload_bundles(client: AnalyzerClient, targets: Sequence[Target], bundles: Sequence[HeaderBundle]) -> None:
    """Give each node of the devices the headers that the sweep's sources include."""
    for node_id in dict.fromkeys(target.node_id for target in targets):
        for bundle in bundles:
            client.upload_bundle(bundle.data, node_id)


def on_target(spec: RunSpec, target: Target) -> RunSpec:
    """Return the run of the sweep on this device."""
    assert isinstance(spec.work, KernelSweep)
    return spec if target.device is None else replace(spec, work=replace(spec.work, device_id=target.device.device_id))


def follow_all(client: AnalyzerClient, targets: Sequence[Target], runs: Sequence[Run], console: Console) -> list[Run]:
    """Show the progress of all runs, and return their final states. Ctrl-C cancels all of them.

    Args:
        targets: the device of each run.
    """
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[state]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    latest = list(runs)
    with Progress(*columns, console=console, transient=True) as progress:
        tasks = [progress.add_task(target.label, total=None, state="") for target in targets]

        def look() -> bool:
            going_on = [place for place, run in enumerate(latest) if not (run.state.is_final and run.is_settled)]
            for place in going_on:
                latest[place] = run = client.run(latest[place].run_id)
                total, completed = run.total_configuration_count, run.completed_configuration_count
                progress.update(tasks[place], total=total, completed=completed, state=run.state.lower())
            return all(run.state.is_final and run.is_settled for run in latest)

        try:
            while not look():
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            console.print("Cancelling all runs; what they have measured is kept…")
            for run in latest:
                client.cancel_run(run.run_id)
            while not look():
                time.sleep(POLL_S)
    return latest


def compare_devices(client: AnalyzerClient, first: Run, other: Run) -> pl.DataFrame | str:
    """Return table comparison of two runs on different devices, or why they cannot be compared: each chooses its timing by itself."""
    from kernalyse.services.analyzer.analysis.comparison import compare_runs, parse_differences
    from kernalyse.services.cli.compare import load_run_operand

    before, after = (load_run_operand(client, run) for run in (first, other))
    if before.measurements.is_empty() or after.measurements.is_empty():
        return "one of the two has measured nothing"
    try:
        return compare_runs(before, after, parse_differences(["device"]))
    except InvalidRequestError as error:
        return f"{error.found}; a method for all devices is set with --timing"


def device_table(targets: Sequence[Target], frames: Sequence[pl.DataFrame], compared: Sequence[pl.DataFrame | None]) -> TerminalTable:
    """Return a row for each configuration and device.

    Args:
        targets: the devices.
        frames: table measurements of each.
        compared: table comparison of each with the first; None: there is none, as of the first itself.
    """
    numeric = ("median ± CI", "to the first", "interval")

    def rows() -> Iterator[tuple[str, ...]]:
        labels = dict.fromkeys(label for frame in frames for label in frame.sort("configuration_index")["label"])
        medians = [{row["label"]: row for row in frame.iter_rows(named=True)} for frame in frames]
        verdicts = [{} if table is None else {row["label"]: row for row in table.iter_rows(named=True)} for table in compared]
        for label in labels:
            for place, target in enumerate(targets):
                measured, verdict = medians[place].get(label), verdicts[place].get(label, {})
                yield label, target.label, _median(measured), *_verdict_cells(verdict)

    return TerminalTable(("configuration", "device", *numeric, "verdict"), rows(), numeric=numeric, unwrapped=("device",))


def _median(row: dict[str, Any] | None) -> str:
    if row is None:
        return UNKNOWN
    return median_with_interval(row["duration_median_ns"], row["duration_median_low_ns"], row["duration_median_high_ns"])


def _verdict_cells(row: dict[str, Any]) -> tuple[str, str, str]:
    if row.get("duration_ratio") is None:
        return "", "", ""
    interval = f"{change(row['duration_ratio_low'])} to {change(row['duration_ratio_high'])}"
    return change(row["duration_ratio"]), interval, str(row["verdict"] or "").lower()


def _document(client: AnalyzerClient, targets: Sequence[Target], runs: Sequence[Run], compared: Sequence[pl.DataFrame | None]) -> str:
    from kernalyse.services.analyzer.export.results import results_document
    from kernalyse.services.cli.export import run_results

    devices = [
        {
            "node": target.hostname,
            "device_id": run.device_id,
            "results": json.loads(results_document(run_results(client, run))),
            "comparison_with_the_first": None if table is None else table.to_dicts(),
        }
        for target, run, table in zip(targets, runs, compared, strict=True)
    ]
    return json.dumps({"schema": SCHEMA, "differences": difference_lines(targets), "devices": devices}, indent=2) + "\n"
