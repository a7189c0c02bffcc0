"""`kernalyse resume` and `kernalyse rerun`: a run once more, as far as it is left or all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.bench_options import JsonOption
from services.cli.options import RunArgument, Server, takes_server

if TYPE_CHECKING:
    from services.cli.analyzer_client import AnalyzerClient
    from services.core.model import Run, RunSpec


@takes_server
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
    from services.cli.run_specs import kept_spec, stopped_sweep
    from services.cli.session import analyzer_session
    from services.core.continuing import continued
    from services.core.words.search_words import parse_budget

    budget_ns = parse_budget(budget)
    with analyzer_session(server) as client:
        run = client.run(run_id)
        kept = kept_spec(client, run)
        spec = continued(kept.spec, stopped_sweep(client, run), budget_ns, retries_failed=retry_failed)
        is_good = _start_and_show(client, run, spec, (*kept.notices, *_left_out(spec)), json_path)
    if not is_good:
        raise typer.Exit(1)


@takes_server
def rerun(
    run_id: RunArgument,
    json_path: JsonOption = None,
    *,
    server: Server,
) -> None:
    """Repeat a run exactly: its kernels' sources as they were, its device, method, seeds and order.

    Status 1: as for bench.
    """
    from services.cli.run_specs import kept_spec
    from services.cli.session import analyzer_session
    from services.core.repeating import repeated

    with analyzer_session(server) as client:
        run = client.run(run_id)
        kept = kept_spec(client, run)
        is_good = _start_and_show(client, run, repeated(kept.spec), kept.notices, json_path)
    if not is_good:
        raise typer.Exit(1)


def _left_out(spec: RunSpec) -> Iterator[str]:
    from services.core.model import KernelSweep

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
    from services.cli.model_results import follow_and_show_model
    from services.cli.profile_results import follow_profile
    from services.cli.run_results import follow_and_show
    from services.cli.run_specs import upload_headers
    from services.cli.terminal import console as make_console
    from services.core.model import CommandProfile, ModelRun
    from services.core.words.usage import UsageError

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
