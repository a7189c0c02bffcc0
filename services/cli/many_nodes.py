"""`kernalyse profile --on`: one command on several nodes at the same time, as the launchers of distributed programs need it."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kernalyse.services.cli.many_devices import POLL_S, Target, follow_all
from kernalyse.services.cli.output import TerminalTable
from kernalyse.services.cli.output import console as make_console
from kernalyse.services.cli.run_output import outcome_line
from kernalyse.services.core.errors import KernalyseError, UsageError
from kernalyse.services.core.formatting import UNKNOWN, duration
from kernalyse.services.core.model import CommandProfile, EnvironmentVariable, Filter, Run, RunSpec, RunState, TableQuery

if TYPE_CHECKING:
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.cli.profile_request import ProfileSubmission

TRACE_OF_RANK: Final = re.compile(r"trace(\.\w+)?\.json(\.gz)?")
"""Artifacts of the collector kineto: one file a process, which can be imported together."""

EXPORT: Final = re.compile(r"export\.\w+(/\w[\w.-]*)?")
"""Artifacts of the collector nsys: a file, or a directory of files, of all processes of a node."""

START_AHEAD_S: Final = 2.0
START_AHEAD_PER_NODE_S: Final = 0.25
"""From the submission of the first run to the start of all: until then each node has its run, and is ready."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node's place among those that a command runs on. first_host: name of the node of rank 0."""

    rank: int
    count: int
    first_host: str

    @property
    def placeholders(self) -> Mapping[str, str]:
        """Return what is replaced in the words of the command."""
        return {"{node_rank}": str(self.rank), "{node_count}": str(self.count), "{first_host}": self.first_host}

    def command(self, work: CommandProfile) -> CommandProfile:
        """Return the command of this node. Variables that the user has set stay."""
        arguments = tuple(self._filled(word) for word in work.arguments)
        given = {variable.name for variable in work.environment}
        own = {"NODE_RANK": str(self.rank), "NODE_COUNT": str(self.count), "MASTER_ADDR": self.first_host}
        added = tuple(EnvironmentVariable(name, value) for name, value in own.items() if name not in given)
        filled = tuple(replace(variable, value=self._filled(variable.value)) for variable in work.environment)
        return replace(work, arguments=arguments, environment=(*filled, *added))

    def _filled(self, text: str) -> str:
        for placeholder, value in self.placeholders.items():
            text = text.replace(placeholder, value)
        return text


def one_target_per_node(targets: Sequence[Target]) -> tuple[Target, ...]:
    """Return the nodes of the devices, each once, in their order: a command has all devices of its node."""
    return tuple(Target(node_id, hostname) for node_id, hostname in dict.fromkeys((one.node_id, one.hostname) for one in targets))


def profile_on(client: AnalyzerClient, targets: Sequence[Target], built: ProfileSubmission, spec: RunSpec, console: Console) -> bool:
    """Run the command on all nodes, show what each did, and return whether all succeeded.

    Every node has accepted the command, and is idle, before the first one starts it; if one refuses it after all, the others' are
    cancelled.

    Raises:
        UsageError: it is a model, not a command.
        KernalyseError: a node refuses the command.
    """
    if not isinstance(built.work, CommandProfile):
        raise UsageError("option --on", found="a model by --prompt", expected="a command", remedy="Profile it node by node with --node.")
    specs = []
    for rank, target in enumerate(targets):
        work = NodePlace(rank, len(targets), targets[0].hostname).command(built.work)
        if built.bundle is not None:
            work = replace(work, bundle_digest=client.upload_bundle(built.bundle.data, target.node_id))
        specs.append(replace(spec, work=work))
        client.check_run(specs[-1], node_id=target.node_id)
    _wait_until_idle(client, targets, console)
    console.print(f"Starting on {', '.join(target.label for target in targets)}.", markup=False, highlight=False)
    runs: list[Run] = []
    start_unix_ns = time.time_ns() + int((START_AHEAD_S + START_AHEAD_PER_NODE_S * len(targets)) * 1e9)
    try:
        for each, target in zip(specs, targets, strict=True):
            assert isinstance(each.work, CommandProfile)
            together = replace(each, work=replace(each.work, start_unix_ns=start_unix_ns, network=True))
            runs.append(client.start_run(together, node_id=target.node_id))
    except (KernalyseError, KeyboardInterrupt):
        for run in runs:
            client.cancel_run(run.run_id)
        raise
    runs = follow_all(client, targets, runs, console)
    make_console().print(node_table(client, targets, runs))
    for target, run in zip(targets, runs, strict=True):
        console.print(f"{target.label}: {outcome_line(run)}", markup=False, highlight=False)
    _join_ranks(client, runs, console)
    return all(run.state is RunState.SUCCEEDED for run in runs)


def _wait_until_idle(client: AnalyzerClient, targets: Sequence[Target], console: Console) -> None:
    """Wait until no run of this analyzer runs or waits on these nodes, and say what is waited for."""
    while waiting := [target for target in targets if _is_busy(client, target)]:
        line = f"Waiting until {', '.join(target.label for target in waiting)} has nothing else to do…"
        console.print(line, markup=False, highlight=False)
        while any(_is_busy(client, target) for target in waiting):
            time.sleep(POLL_S)


def _is_busy(client: AnalyzerClient, target: Target) -> bool:
    states = (RunState.QUEUED, RunState.RUNNING)
    queries = (TableQuery("runs", filters=(Filter("node_id", target.node_id), Filter("state", state.value)), limit=1) for state in states)
    return any(client.rows(query)[1] for query in queries)


# ---------------------------------------------------------------- results


def node_table(client: AnalyzerClient, targets: Sequence[Target], runs: Sequence[Run]) -> TerminalTable:
    """Return a row for each device that a process used: whose trace was read, and how long it was busy."""
    numeric = ("span", "busy", "computing", "communicating")

    def rows() -> Iterator[tuple[str, ...]]:
        for target, run in zip(targets, runs, strict=True):
            frame = client.table("breakdown", [run.run_id])
            if frame.is_empty():
                yield target.label, run.run_id, str(run.state).lower(), *(UNKNOWN for _ in range(2 + len(numeric)))
            for row in frame.iter_rows(named=True):
                times = (row[name] for name in ("span_ns", "busy_ns", "compute_ns", "communication_ns"))
                device = f"{row['device_name'] or 'device'} {row['device_index']}"
                yield target.label, run.run_id, str(run.state).lower(), device, str(row["process_id"]), *map(duration, times)

    return TerminalTable(("node", "run", "state", "device", "process", *numeric), rows(), numeric=numeric, unwrapped=("node", "run"))


def _join_ranks(client: AnalyzerClient, runs: Sequence[Run], console: Console) -> None:
    """Import the traces of all nodes as the ranks of one run, where each node has left some."""
    from kernalyse.trace_upload import OutgoingTrace, TraceUpload

    with tempfile.TemporaryDirectory(prefix="kernalyse-ranks-") as directory:
        paths = [_fetched_traces(client, run, Path(directory) / f"rank{rank}") for rank, run in enumerate(runs)]
        if not all(paths):
            return
        traces = [OutgoingTrace(path) for of_node in paths for path in of_node]
        joined, _ = client.import_trace(TraceUpload(traces, lambda _sent_bytes: None))
    console.print(
        f"All ranks as one run: kernalyse show {joined.run_id} ranks rank_clocks collectives", markup=False, highlight=False, soft_wrap=True
    )


def _fetched_traces(client: AnalyzerClient, run: Run, directory: Path) -> list[Path]:
    """Fetch what can be joined of a run's artifacts, and return the trace of each process, or the one of the node."""
    names = client.table("artifacts", [run.run_id])["artifact_name"].to_list()
    of_ranks = [name for name in names if TRACE_OF_RANK.fullmatch(name)]
    fetched = []
    for name in of_ranks or [name for name in names if EXPORT.fullmatch(name)]:
        whole, separator, part = name.partition("/")
        path = directory / whole  # the directory's name tells the rank of an export, which does not itself
        target = path / part if separator else path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(client.artifact(run.run_id, name))
        fetched.append(path)
    return list(dict.fromkeys(fetched))
