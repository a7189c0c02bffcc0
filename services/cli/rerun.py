"""The commands `kernalyse resume` and `kernalyse rerun`, which continue or repeat a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernalyse.services.cli.options import JsonOption, RunArgument, Server, with_server_options
from kernalyse.services.core.errors import ArtifactNotFoundError, UnmetConditionError

if TYPE_CHECKING:
    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.core.model import Run, RunSpec
    from kernalyse.services.core.reruns import StoppedSweep


@with_server_options
def resume(
    run_id: RunArgument,
    budget: Annotated[float | None, typer.Option("--budget", metavar="SECONDS", help="Of a search, instead of what it has left.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try configurations that failed once more.")] = False,
    json_path: JsonOption = None,
    *,
    server: Server,
) -> None:
    """Continue a sweep that was cancelled, failed or was lost, or a search that has spent its budget, as a new run.

    What was measured is not measured again, and what failed is left out. Status 1: as for bench, also for what is left out.
    """
    from kernalyse.services.cli.session import analyzer_session
    from kernalyse.services.core.request_syntax import parse_budget
    from kernalyse.services.core.reruns import continuation_spec

    budget_ns = parse_budget(budget)
    with analyzer_session(server) as client:
        run = client.run(run_id)
        stored = original_spec(client, run)
        spec = continuation_spec(stored.spec, stopped_sweep(client, run), budget_ns, retries_failed=retry_failed)
        is_good = _start_and_show(client, run, spec, (*stored.notices, *_skipped_notice(spec)), json_path)
    if not is_good:
        raise typer.Exit(1)


@with_server_options
def rerun(
    run_id: RunArgument,
    json_path: JsonOption = None,
    *,
    server: Server,
) -> None:
    """Repeat a run exactly: its kernels' sources as they were, its device, method, seeds and order.

    Status 1: as for bench.
    """
    from kernalyse.services.cli.session import analyzer_session
    from kernalyse.services.core.reruns import repetition_spec

    with analyzer_session(server) as client:
        run = client.run(run_id)
        stored = original_spec(client, run)
        is_good = _start_and_show(client, run, repetition_spec(stored.spec), stored.notices, json_path)
    if not is_good:
        raise typer.Exit(1)


def _skipped_notice(spec: RunSpec) -> Iterator[str]:
    from kernalyse.services.core.model import KernelSweep

    count = len(spec.work.failed_configuration_indexes) if isinstance(spec.work, KernelSweep) else 0
    if count:
        which = f"{count} configurations that failed are" if count > 1 else "1 configuration that failed is"
        yield f"{which} left out; --retry-failed tries {'them' if count > 1 else 'it'} again."


def _start_and_show(
    client: AnalyzerClient,
    run: Run,
    spec: RunSpec,
    notices: tuple[str, ...],
    json_path: Path | None,
) -> bool:
    from kernalyse.services.cli.model import follow_and_show_model
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.profile import follow_profile
    from kernalyse.services.cli.run_output import follow_and_show
    from kernalyse.services.core.errors import UsageError
    from kernalyse.services.core.model import CommandProfile, ModelRun

    if json_path is not None and isinstance(spec.work, CommandProfile):
        raise UsageError("option --json", found="a command", expected="a run that measures", remedy="Show its tables with --format json.")
    console = make_console(stderr=True)
    for notice in notices:
        console.print(notice, markup=False, highlight=False)
    upload_headers(client, run, spec)
    started = client.start_run(spec, node_id=run.node_id)
    console.print(f"{'Continuing' if spec.continues_run_id else 'Repeating'} run {run.run_id}…", markup=False, highlight=False)
    if isinstance(spec.work, CommandProfile):
        return follow_profile(client, started, console)
    if isinstance(spec.work, ModelRun):
        return follow_and_show_model(client, started, json_path, console)
    return follow_and_show(client, started, json_path, console)


# ---------------------------------------------------------------- specification of the first run


@dataclass(frozen=True, slots=True)
class OriginalSpec:
    """The specification of a run that is started again.

    Attributes:
        notices: one sentence for each reason why the second run may differ.
    """

    spec: RunSpec
    notices: tuple[str, ...] = ()


def original_spec(client: AnalyzerClient, run: Run) -> OriginalSpec:
    """Return the specification of a run with the kernel sources, definitions and device that it had.

    Raises:
        UnmetConditionError: runs of this kind cannot be repeated.
        InvalidRequestError: another version of kernalyse wrote the specification.
    """
    from kernalyse.services.core import protobuf
    from kernalyse.services.core.model import CeilingMeasurement, CommandProfile, DeviceCheck, KernelSweep, ModelRun, RunSpec
    from kernalyse.services.core.reruns import SPEC_ARTIFACT

    if isinstance(run.spec.work, CeilingMeasurement | DeviceCheck | ModelRun | CommandProfile):
        return OriginalSpec(run.spec)
    if not isinstance(run.spec.work, KernelSweep):
        raise UnmetConditionError(
            f"run {run.run_id}",
            found="an imported trace",
            expected="a sweep of kernels, a command, a model, a measurement of ceilings or a check of a device",
            remedy="`kernalyse runs` lists the others.",
        )
    try:
        return OriginalSpec(protobuf.decode_json(client.artifact(run.run_id, SPEC_ARTIFACT), RunSpec))
    except ArtifactNotFoundError:  # it never started, or its artifacts were deleted
        catalog_names = [kernel.kernel_name for kernel in run.spec.work.kernels if kernel.source is None]
        notice = f"Its node no longer has {SPEC_ARTIFACT}: taken from the catalog as they are now: {', '.join(catalog_names)}."
        return OriginalSpec(run.spec, (notice,) if catalog_names and run.start_time is not None else ())


def stopped_sweep(client: AnalyzerClient, run: Run) -> StoppedSweep:
    """Return a run with the rows that it has measured."""
    from kernalyse.services.core.model import TableQuery
    from kernalyse.services.core.reruns import RESUME_COLUMNS, StoppedSweep

    frames = {name: client.rows(TableQuery(name, (run.run_id,), columns=columns))[0] for name, columns in RESUME_COLUMNS.items()}
    return StoppedSweep(run, **{name: frame.to_dicts() for name, frame in frames.items()})


def upload_headers(client: AnalyzerClient, run: Run, spec: RunSpec) -> None:
    """Upload the headers of a run to its node again, which may have deleted them. The node rejects the run when they are lost."""
    from kernalyse.services.core.model import KernelSweep
    from kernalyse.services.core.reruns import bundle_artifact_name

    if not isinstance(spec.work, KernelSweep):
        return
    for digest in sorted({kernel.bundle_digest for kernel in spec.work.kernels if kernel.bundle_digest is not None}):
        with suppress(ArtifactNotFoundError):
            client.upload_bundle(client.artifact(run.run_id, bundle_artifact_name(digest)), run.node_id)
