"""`kernalyse bench --on … --mode split`: the configurations of one sweep shared out to several devices.

A share is an ordinary run of some configurations; a device gets the next one when its last one has ended. Some configurations
are measured on every device, so that what a device does to all measurements can be told from what a configuration does. The
titles of runs follow from the sweep and the share: a command that is repeated takes over what was measured already.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kernalyse.services.cli.many_devices import Target, difference_lines, on_target, upload_bundles, use_lines
from kernalyse.services.cli.output import TerminalTable
from kernalyse.services.cli.output import console as make_console
from kernalyse.services.cli.table_files import write_text
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import KernalyseError, UsageError
from kernalyse.services.core.formatting import UNKNOWN, change, duration, median_with_interval
from kernalyse.services.core.model import KernelSweep, NodeHealth, Run, RunSpec, RunState, SearchStrategy

if TYPE_CHECKING:
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.profiler.kernel_sources.headers import HeaderBundle

MAX_SHARE_SIZE: Final = 20
SHARES_PER_DEVICE: Final = 4
"""At least, where there are enough configurations: the last ones to end then end at about the same time."""

COMMON_RATIO: Final = 0.05
MIN_COMMON_COUNT: Final = 8
LATE: Final = "late"
"""Tag of a run whose configurations another one had measured by then."""

MAX_ATTEMPT_COUNT: Final = 3
POLL_S: Final = 0.2
MAX_LOOKED_AT: Final = 1_000
"""Runs among which those of an earlier command are looked for, the newest."""
SCHEMA: Final = "kernalyse-split/1"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured where.

    Args:
        common: configurations that every device measures.
        shares: the others.
    """

    common: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]

    @property
    def configuration_count(self) -> int:
        """Return how many configurations there are."""
        return len(self.common) + sum(len(share) for share in self.shares)

    def sentence(self, device_count: int) -> str:
        """Return what is about to be done."""
        rest = self.configuration_count - len(self.common)
        return (
            f"{len(self.common)} of {self.configuration_count} configurations are measured on each of {device_count} devices, "
            f"{rest} on one each, in {len(self.shares)} shares."
        )


def plan_of(configuration_count: int, device_count: int, seed: int) -> Plan:
    """Return how configurations are shared out: in an order by chance, so that no device gets those of one corner of the sweep."""
    order = list(range(configuration_count))
    random.Random(seed).shuffle(order)
    common_count = min(configuration_count, max(MIN_COMMON_COUNT, math.ceil(COMMON_RATIO * configuration_count)))
    common, rest = order[:common_count], order[common_count:]
    size = max(1, min(MAX_SHARE_SIZE, math.ceil(len(rest) / (SHARES_PER_DEVICE * device_count))))
    return Plan(tuple(sorted(common)), tuple(tuple(sorted(rest[start : start + size])) for start in range(0, len(rest), size)))


def split_spec(spec: RunSpec, indexes: Sequence[int], configuration_count: int, title: str) -> RunSpec:
    """Return the run that measures these configurations alone."""
    assert isinstance(spec.work, KernelSweep)
    left_out = tuple(sorted(set(range(configuration_count)) - set(indexes)))
    return replace(spec, title=title, work=replace(spec.work, done_configuration_indexes=left_out, skip_confirmation=True))


def experiment_of(spec: RunSpec, plan: Plan) -> str:
    """Return a short name of the sweep and how it is shared out, by which its runs are found again."""
    return hashlib.sha256(f"{protobuf.encode_bytes(spec).hex()} {plan}".encode()).hexdigest()[:8]


def request_id_of(spec: RunSpec, indexes: Sequence[int], target: Target | None, attempt: int) -> str:
    """Return the same for the same share of the same sweep. target: of what every device measures; None: of a share, whoever gets it."""
    place = "" if target is None else f"{target.node_id} {target.label}"
    text = f"{protobuf.encode_bytes(spec).hex()} {sorted(indexes)} {place} {attempt}"
    return f"split-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


# ---------------------------------------------------------------- who measures what


@dataclass(slots=True)
class Share:
    """Configurations that are measured together.

    Args:
        target: that has to measure them; None: any.
        attempt: how often they were given out before.
    """

    indexes: tuple[int, ...]
    target: Target | None = None
    attempt: int = 0


@dataclass(slots=True)
class Device:
    """A device, with what is for it alone and what it does now."""

    target: Target
    own: deque[Share] = field(default_factory=deque)
    share: Share | None = None
    run: Run | None = None
    is_gone: bool = False  # its node does not answer


class Split:
    """Gives out shares until all configurations are measured, or nobody is left to measure them.

    Args:
        client: the analyzer.
        targets: the devices.
        spec: of the whole sweep.
        plan: of its configurations.
    """

    def __init__(self, client: AnalyzerClient, targets: Sequence[Target], spec: RunSpec, plan: Plan) -> None:
        self._client = client
        self._spec = spec
        self._plan = plan
        self._name = f"{spec.title or 'split'} {experiment_of(spec, plan)}"
        self.devices = [Device(target, deque([Share(plan.common, target)])) for target in targets]
        self._waiting = deque(Share(indexes) for indexes in plan.shares)
        self.runs: dict[str, Target] = {}  # all that were started, by run_id
        self.notes: list[str] = []

    def take_over(self, runs: Sequence[Run]) -> int:
        """Leave out what an earlier command has measured, and return how many runs that were. runs: of the analyzer."""
        done = {(run.title, run.node_id, run.device_id): run for run in runs if run.state is RunState.SUCCEEDED}
        shares = {self._title(share): share for share in self._waiting}
        for (title, node_id, device_id), run in done.items():
            there = [device for device in self.devices if device.target.is_on(node_id, device_id)]
            if (taken := shares.get(title)) is not None:  # a second run of a share is kept, and marked as late
                self.runs[run.run_id] = there[0].target if there else Target(node_id, run.node_name or node_id)
                if taken in self._waiting:
                    self._waiting.remove(taken)
            for device in there:
                for share in [share for share in device.own if self._title(share) == title]:
                    device.own.remove(share)
                    self.runs[run.run_id] = device.target
        return len(self.runs)

    def look(self) -> bool:
        """Take in what has ended and give out what waits. Returns whether all is over."""
        health = {status.node.node_id: status.health for status in self._client.nodes() if status.node is not None}
        for device in self.devices:
            was_gone, device.is_gone = device.is_gone, health.get(device.target.node_id) in (None, NodeHealth.UNREACHABLE)
            if device.is_gone and not was_gone:
                self._take_back(device, "does not answer", has_failed=False)
            elif device.run is not None:
                self._take_in(device, self._client.run(device.run.run_id))
            if device.run is None and not device.is_gone:
                self._give(device)
        return all(device.run is None for device in self.devices) and not (self._waiting and self._somebody_left())

    def cancel(self) -> None:
        """Cancel what is being measured, and give nothing out any more."""
        self._waiting.clear()
        for device in self.devices:
            device.own.clear()
            if device.run is not None:
                self._client.cancel_run(device.run.run_id)

    def _somebody_left(self) -> bool:
        return any(not device.is_gone for device in self.devices)

    def _give(self, device: Device) -> None:
        if not device.own and not self._waiting:
            return
        share = device.own.popleft() if device.own else self._waiting.popleft()
        spec = on_target(split_spec(self._spec, share.indexes, self._plan.configuration_count, self._title(share)), device.target)
        request_id = request_id_of(self._spec, share.indexes, share.target, share.attempt)
        try:
            run = self._client.start_run(spec, node_id=device.target.node_id, request_id=request_id)
        except KernalyseError as error:
            device.share = share
            self._take_back(device, error.message)
            return
        device.share, device.run = share, run
        self.runs[run.run_id] = device.target

    def _title(self, share: Share) -> str:
        if share.target is not None:
            return f"{self._name}: on every device"
        return f"{self._name}: share {self._plan.shares.index(share.indexes) + 1} of {len(self._plan.shares)}"

    def _take_in(self, device: Device, run: Run) -> None:
        device.run = run
        if not (run.state.is_final and run.is_settled):
            return
        if run.state is RunState.SUCCEEDED:
            device.run = device.share = None
        elif run.state is RunState.CANCELLED:
            self.notes.append(f"{device.target.label}: run {run.run_id} was cancelled, what it did not measure is missing.")
            device.run = device.share = None
        else:
            self._take_back(device, run.error.message if run.error else run.state.lower())

    def _take_back(self, device: Device, why: str, *, has_failed: bool = True) -> None:
        """Give the share of a device to the next, unless it has failed too often; what is for it alone waits until it is there again."""
        share, device.share, device.run = device.share, None, None
        if share is None:
            return
        self.notes.append(f"{device.target.label}: {why.splitlines()[0]}")
        share.attempt += has_failed  # a node that comes back goes on with the same run
        if share.attempt < MAX_ATTEMPT_COUNT:
            (self._waiting if share.target is None else device.own).append(share)
        else:
            self.notes.append(f"Configurations {', '.join(map(str, share.indexes))} were given out {share.attempt} times and are missing.")


# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement of a configuration. counts: it is the earliest that is complete."""

    row: Mapping[str, Any]
    target: Target
    run_id: str
    counts: bool


def measured_of(rows: Sequence[tuple[Mapping[str, Any], Target, str]]) -> list[Measured]:
    """Return the measurements in the order of configurations; of each the earliest counts.

    Args:
        rows: of table measurements, with their device and run.
    """
    ordered = sorted(rows, key=lambda found: (found[0]["configuration_index"], found[0]["measured_unix_ns"] or 0))
    first: dict[int, str] = {}  # the run that counts, of each configuration: it may have measured it in several processes
    for row, _, run_id in ordered:
        first.setdefault(row["configuration_index"], run_id)
    return [Measured(row, target, run_id, first[row["configuration_index"]] == run_id) for row, target, run_id in ordered]


def mark_late_runs(client: AnalyzerClient, measured: Sequence[Measured], common: Sequence[int]) -> list[str]:
    """Tag the runs that measured configurations after others had, and return their ids.

    Args:
        measured: as `measured_of` returns them.
        common: configurations that every device measures: a second measurement of these is no late one.
    """
    late = dict.fromkeys(one.run_id for one in measured if not one.counts and one.row["configuration_index"] not in common)
    for run_id in late:
        run = client.run(run_id)
        if LATE not in run.tags:
            client.annotate_run(run_id, (*run.tags, LATE), run.notes)
    return list(late)


@dataclass(frozen=True, slots=True)
class Effect:
    """How much slower a device is than the mean of all, over the configurations that all have measured: a ratio with its 95 % interval."""

    label: str
    ratio: float
    low: float
    high: float
    configuration_count: int


def device_effects(measured: Sequence[Measured], common: Sequence[int]) -> list[Effect]:
    """Return the effect of each device.

    The logarithm of a duration is that of its configuration plus that of its device (two-way layout without interaction, Montgomery,
    Design and Analysis of Experiments, chapter 4). Devices that lack some of the common configurations are left out.
    """
    from kernalyse.services.analyzer.analysis.history import student_quantile

    durations: dict[str, dict[int, float]] = {}
    for one in measured:
        if one.row["configuration_index"] in common and one.row["duration_median_ns"]:
            durations.setdefault(one.target.label, {}).setdefault(one.row["configuration_index"], math.log(one.row["duration_median_ns"]))
    indexes = [index for index in common if any(index in of_device for of_device in durations.values())]
    whole = {label: of_device for label, of_device in durations.items() if all(index in of_device for index in indexes)}
    if len(whole) < 2 or len(indexes) < 2:
        return []
    means = {index: fmean(of_device[index] for of_device in whole.values()) for index in indexes}
    effects = []
    for label, of_device in whole.items():
        differences = [of_device[index] - means[index] for index in indexes]
        freedom = len(indexes) - 1
        half = student_quantile(0.975, freedom) * stdev(differences) / math.sqrt(len(indexes))
        mean = fmean(differences)
        effects.append(Effect(label, math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(indexes)))
    return effects


def effect_lines(effects: Sequence[Effect]) -> list[str]:
    """Return a line for each device."""
    return [
        f"{effect.label}: {change(effect.ratio)} ({change(effect.low)} to {change(effect.high)}) beside the mean of all devices, "
        f"over {effect.configuration_count} configurations"
        for effect in effects
    ]


def split_table(measured: Sequence[Measured], effects: Sequence[Effect]) -> TerminalTable:
    """Return a row for each configuration: where it was measured, its median, and the median without the device's effect."""
    ratios = {effect.label: effect.ratio for effect in effects}
    numeric = ("median ± CI", "on a mean device")

    def rows() -> Iterator[tuple[str, ...]]:
        for one in measured:
            if one.counts:
                row, ratio = one.row, ratios.get(one.target.label)
                median = row["duration_median_ns"]
                yield (
                    str(row["label"]),
                    one.target.label,
                    median_with_interval(median, row["duration_median_low_ns"], row["duration_median_high_ns"]),
                    UNKNOWN if ratio is None or median is None else duration(median / ratio),
                )

    return TerminalTable(("configuration", "device", *numeric), rows(), numeric=numeric, unwrapped=("device",))


# ---------------------------------------------------------------- the command


def measure_split(
    client: AnalyzerClient,
    targets: Sequence[Target],
    spec: RunSpec,
    bundles: Sequence[HeaderBundle],
    json_path: Path | None,
    console: Console,
) -> bool:
    """Measure each configuration on one of the devices, some on all, show the results, and return whether all was measured.

    Args:
        client: the analyzer.
        targets: the devices.
        spec: of the whole sweep.
        bundles: headers that the nodes need before.
        json_path: file for the results; "-" for standard output; None: none.
        console: shows progress and notes.

    Raises:
        UsageError: a search or a paired sweep, which cannot be shared out.
    """
    sweep = spec.work
    assert isinstance(sweep, KernelSweep)
    if sweep.strategy is not SearchStrategy.ALL or sweep.pairing is not None:
        found = "a search or a paired sweep"
        raise UsageError("option --mode split", found=found, expected="a sweep over everything", remedy="Use --mode compare.")
    upload_bundles(client, targets, bundles)
    first = targets[0]
    count = client.check_run(on_target(spec, first), node_id=first.node_id).total_configuration_count or 1
    plan = plan_of(count, len(targets), sweep.order_seed or 0)
    sharing = f"Sharing out to {', '.join(target.label for target in targets)}."
    told = (*difference_lines(targets), *use_lines(targets, client.newest_telemetry(client.nodes())))
    for line in (sharing, *told, plan.sentence(len(targets))):
        console.print(line, markup=False, highlight=False)
    split = Split(client, targets, spec, plan)
    if known_count := split.take_over(client.runs(MAX_LOOKED_AT)):
        console.print(f"{known_count} runs of an earlier command are taken over.", markup=False, highlight=False)
    _follow(split, console)
    tables = [(client.table("measurements", [run_id]), target, run_id) for run_id, target in split.runs.items()]
    measured = measured_of([(row, target, run_id) for table, target, run_id in tables for row in table.iter_rows(named=True)])
    effects = device_effects(measured, plan.common)
    if late := mark_late_runs(client, measured, plan.common):
        split.notes.append(f"Came late, and do not count (tag {LATE}): {', '.join(late)}")
    writes_to_standard_output = json_path is not None and str(json_path) == "-"
    if measured:
        make_console(stderr=writes_to_standard_output).print(split_table(measured, effects))
    counted = len({one.row["configuration_index"] for one in measured})
    repeated = sum(not one.counts for one in measured)
    kept = f"{repeated} repetitions are kept beside those that count"
    summary = f"{counted} of {count} configurations measured in {len(split.runs)} runs; {kept}."
    for line in (*effect_lines(effects), *dict.fromkeys(split.notes), summary):
        console.print(line, markup=False, highlight=False)
    if json_path is not None:
        write_text(_document(plan, measured, effects, split.notes), None if writes_to_standard_output else json_path)
    return counted == count


def _follow(split: Split, console: Console) -> None:
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[state]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: list[TaskID] = [progress.add_task(device.target.label, total=None, state="") for device in split.devices]

        def look() -> bool:
            is_over = split.look()
            for task, device in zip(tasks, split.devices, strict=True):
                run = device.run
                state = "gone" if device.is_gone else "" if run is None else run.title.rpartition(": ")[2]
                done = 0 if run is None or device.share is None else run.completed_configuration_count
                progress.update(task, total=None if device.share is None else len(device.share.indexes), completed=done, state=state)
            return is_over

        try:
            while not look():
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            console.print("Cancelling; what was measured is kept…")
            split.cancel()
            while not look():
                time.sleep(POLL_S)


def _document(plan: Plan, measured: Sequence[Measured], effects: Sequence[Effect], notes: Sequence[str]) -> str:
    rows = [{"node": one.target.hostname, "counts": one.counts, **one.row} for one in measured]
    document = {
        "schema": SCHEMA,
        "common_configuration_indexes": plan.common,
        "device_effects": [asdict(effect) for effect in effects],
        "notes": list(notes),
        "measurements": rows,
    }
    return json.dumps(document, indent=2, default=str) + "\n"
