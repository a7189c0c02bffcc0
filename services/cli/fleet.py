"""`kernalyse fleet check`: a short check of every device, and which of them are not sound."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernalyse.services.cli import options
from kernalyse.services.cli.options import JsonFlag, Server, with_server_options

if TYPE_CHECKING:
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.cli.many_devices import Target
    from kernalyse.services.core.model import BackendName, ErrorCount, Run


@dataclass(frozen=True, slots=True)
class CheckedDevice:
    """A device after its check.

    Args:
        run: the check.
        judgements: rows of table fleet.
        problems: what its counters of errors say, and why it could not be checked.
    """

    target: Target
    run: Run
    judgements: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]

    @property
    def findings(self) -> list[str]:
        """Return a sentence for everything that is wrong with it."""
        from kernalyse.services.core.device_health import SLOWER, slower_sentence

        slower = [slower_sentence(row) for row in self.judgements if row["verdict"] == SLOWER]
        return [f"{self.name}: {finding}" for finding in (*self.problems, *slower)]

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.target.hostname} {self.run.device_id or ''}".rstrip()


@with_server_options
def check(
    on: Annotated[str, typer.Option("--on", help="all, nodes (gpu1,gpu2), or part of a device's name.")] = "all",
    backend: options.BackendOption = options.BackendChoice.AUTO,
    blocks: Annotated[int, typer.Option("--blocks", min=4, max=1000, help="Blocks of about a second, each with every measurement.")] = 10,
    json_output: JsonFlag = False,
    *,
    server: Server,
) -> None:
    """Check devices: counters of errors, copies, multiply-adds, tensor cores, small launches; compare equal devices.

    Devices of different nodes are checked at the same time, those of one node one after the other. Status 1: something is wrong with a
    device, or one could not be checked.
    """
    from kernalyse.services.cli.many_devices import left_out_lines, targets_of
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.session import analyzer_session
    from kernalyse.services.core.model import BackendName, NodeHealth

    console = make_console(stderr=True)
    chosen = BackendName[backend.name]
    with analyzer_session(server) as client:
        nodes = client.nodes()
        for line in left_out_lines(nodes, on):
            console.print(line, markup=False, highlight=False)
        targets = targets_of(nodes, on, None if chosen is BackendName.AUTO else chosen)
        gone = [status for status in nodes if status.health is NodeHealth.UNREACHABLE and on == "all"]
        checked = check_devices(client, targets, chosen, blocks, console)
    missing = [f"{status.node.hostname if status.node else status.address}: not checked, it does not answer" for status in gone]
    findings = [*missing, *(finding for device in checked for finding in device.findings)]
    if json_output:
        typer.echo(json.dumps(_document(checked, missing), indent=2))
    else:
        for line in (*findings, *summary_lines(checked)):
            typer.echo(line)
    if findings:
        raise typer.Exit(1)


def check_devices(
    client: AnalyzerClient, targets: Sequence[Target], backend: BackendName, block_count: int, console: Console
) -> list[CheckedDevice]:
    """Check the devices, one of each node at a time, because those of a node share its memory and its power. Return them in their order."""
    from kernalyse.services.cli.many_devices import follow_all
    from kernalyse.services.core.model import DeviceCheck, RunSpec

    of_nodes: defaultdict[str, list[Target]] = defaultdict(list)
    for target in targets:
        of_nodes[target.node_id].append(target)
    runs: dict[Target, Run] = {}
    for turn in zip_longest(*of_nodes.values()):
        now = [target for target in turn if target is not None]
        works = [DeviceCheck(backend, None if target.device is None else target.device.device_id, block_count) for target in now]
        started = [client.start_run(RunSpec(work), node_id=target.node_id) for target, work in zip(now, works, strict=True)]
        runs |= zip(now, follow_all(client, now, started, console), strict=True)
    run_ids = [runs[target].run_id for target in targets]
    judgements = client.table("fleet", run_ids).partition_by("run_id", as_dict=True)
    telemetry = client.table("telemetry", run_ids)
    found = []
    for target in targets:
        run = runs[target]
        rows = judgements.get((run.run_id,))
        readings = telemetry.filter(run_id=run.run_id, device_id=run.device_id)["error_counts"].drop_nulls().to_list()
        problems = tuple(_problems(run, [counts for counts in map(_counts, readings) if counts]))
        found.append(CheckedDevice(target, run, () if rows is None else tuple(rows.to_dicts()), problems))
    return found


def _problems(run: Run, readings: Sequence[tuple[ErrorCount, ...]]) -> Iterator[str]:
    """Yield what the run and the device's counters of errors say. readings: of the counters during the check, oldest first."""
    from kernalyse.services.core.device_health import health_problems
    from kernalyse.services.core.model import RunState

    if run.state is not RunState.SUCCEEDED:
        yield f"not checked, the run {run.state.lower()}{f': {run.error.message}' if run.error else ''}"
    if readings:
        yield from health_problems(readings[-1], readings[0])


def _counts(text: str) -> tuple[ErrorCount, ...]:
    """Return the counters of a reading, as table telemetry writes them."""
    from kernalyse.services.core.model import ErrorCount

    pairs = (part.rpartition("=") for part in text.split(",") if part)
    return tuple(ErrorCount(name, int(count)) for name, _, count in pairs)


def summary_lines(checked: Sequence[CheckedDevice]) -> list[str]:
    """Return how many devices are sound, and what could not be judged."""
    from kernalyse.services.core.device_health import NOT_JUDGED

    fine_count = sum(not device.findings for device in checked)
    lines = [f"{fine_count} of {len(checked)} device{'' if len(checked) == 1 else 's'}: nothing found."]
    unjudged: defaultdict[str, list[str]] = defaultdict(list)
    for device in checked:
        for row in device.judgements:
            if row["verdict"] == NOT_JUDGED:
                unjudged[row["baseline"]].append(row["check"])
    lines += [f"Not judged: {', '.join(dict.fromkeys(names))}: {reason}." for reason, names in unjudged.items()]
    return lines


def _document(checked: Sequence[CheckedDevice], missing: Sequence[str]) -> dict[str, Any]:
    devices = [
        {
            "node": device.target.hostname,
            "device_id": device.run.device_id,
            "run_id": device.run.run_id,
            "state": str(device.run.state),
            "findings": device.findings,
            "judgements": device.judgements,
        }
        for device in checked
    ]
    return {"schema": "kernalyse-fleet/1", "missing": list(missing), "devices": devices}
