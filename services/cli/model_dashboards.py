"""The commands `kernalyse perf-dashboard` and `kernalyse perf-comparison`, which write ML models as HTML files that need no server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kernalyse.services.cli.model import DASHBOARD_MAX_TIME_S, BatchSizeOption, SequenceLengthOption
from kernalyse.services.cli.options import BackendChoice, BackendOption, DeviceOption, NodeOption, Server, with_server_options

if TYPE_CHECKING:
    from kernalyse.services.cli.model_documents import ProfilingRequest
    from kernalyse.services.compat.model_dashboards.dashboards import Dashboard
    from kernalyse.services.compat.model_dashboards.document import Document

OUTPUT_DIRECTORY: Final = Path("profiling_results")

SamplingTimeOption = Annotated[float, typer.Option("--max-time", metavar="SECONDS", help="Longest sampling of one variant.")]
OutputOption = Annotated[
    Path, typer.Option("--output-dir", "-o", metavar="DIRECTORY", file_okay=False, help="Where the files are written, and looked for.")
]
DataOption = Annotated[Path | None, typer.Option("--data", metavar="FILE", help="Draw from this file; nothing is timed.")]
ModelsOption = Annotated[
    list[str] | None, typer.Option("--model", metavar="NAME", help="tile-medium, gpt_nano…; may be given several times. Default: all six.")
]


@with_server_options
def perf_dashboard(
    run_profiling: Annotated[bool, typer.Option("--run-profiling", help="Time the models now.")] = False,
    data: DataOption = None,
    models: ModelsOption = None,
    variant: Annotated[str, typer.Option("--variant", metavar="NAME", help="baseline or fused.")] = "fused",
    batch_size: BatchSizeOption = 4,
    sequence_length: SequenceLengthOption = 64,
    backend: BackendOption = BackendChoice.AUTO,
    device: DeviceOption = None,
    node: NodeOption = "",
    max_time: SamplingTimeOption = DASHBOARD_MAX_TIME_S,
    output_directory: OutputOption = OUTPUT_DIRECTORY,
    *,
    server: Server,
) -> None:
    """Write a dashboard of whole models: latency, throughput, percentiles, architecture, efficiency of their layers.

    --run-profiling times them and writes profiling_data.json too; --data draws from such a file.
    """
    from kernalyse.services.cli.model_documents import ProfilingRequest, profile_models
    from kernalyse.services.compat.model_dashboards.dashboards import PerformanceDashboard

    dashboard = PerformanceDashboard(output_directory)
    if run_profiling and data is None:
        request = ProfilingRequest(tuple(models or ()), (variant,), batch_size, sequence_length, backend.value, device, node, max_time)
        dashboard.data = profile_models(request, server)
        _save(dashboard)
    elif data is not None and not run_profiling:
        dashboard.load_data(data)
    else:
        found = "both --run-profiling and --data" if run_profiling else "neither --run-profiling nor --data"
        _raise_usage_error(
            "perf-dashboard", found, "--run-profiling or --data FILE", "The first times the models now, the second draws what was timed."
        )
    typer.echo(f"wrote {dashboard.generate_dashboard()}")
    _fail_where_incomplete(dashboard.data)


@with_server_options
def perf_comparison(
    models: ModelsOption = None,
    compare_all: Annotated[bool, typer.Option("--compare-all", help="All six built-in models.")] = False,
    benchmark: Annotated[bool, typer.Option("--benchmark", help="Time both variants now, in alternating passes.")] = False,
    as_is: Annotated[
        str | None, typer.Option("--as-is", metavar="RUN", help="The baseline: a run, RUN@VARIANT, last, a file; or several: X,Y")
    ] = None,
    to_be: Annotated[str | None, typer.Option("--to-be", metavar="RUN", help="The candidate, named in the same way.")] = None,
    data: DataOption = None,
    variants: Annotated[
        tuple[str, str], typer.Option("--variants", metavar="AS-IS TO-BE", help="Of --benchmark: the two that are compared.")
    ] = ("baseline", "fused"),
    batch_size: BatchSizeOption = 4,
    sequence_length: SequenceLengthOption = 64,
    backend: BackendOption = BackendChoice.AUTO,
    device: DeviceOption = None,
    node: NodeOption = "",
    max_time: SamplingTimeOption = DASHBOARD_MAX_TIME_S,
    output_directory: OutputOption = OUTPUT_DIRECTORY,
    *,
    server: Server,
) -> None:
    """Write a dashboard of two implementations side by side, AS-IS and TO-BE: speed-up with its interval, and a verdict.

    --benchmark times two variants of the models in alternating passes. --as-is and --to-be compare runs, files or
    imported traces. --data, or neither, draws from a comparison_data.json that is there.
    """
    from kernalyse.services.cli.model_documents import ProfilingRequest
    from kernalyse.services.compat.model_dashboards.dashboards import ComparisonDashboard

    if bool(models) and compare_all:
        _raise_usage_error("perf-comparison", "both --model and --compare-all", "one of them", "--compare-all stands for all six.")
    if (as_is is None) != (to_be is None) or (as_is is not None and benchmark):
        options = [name for name, value in (("--as-is", as_is), ("--to-be", to_be), ("--benchmark", benchmark)) if value]
        _raise_usage_error(
            "perf-comparison", " and ".join(options), "both --as-is and --to-be, or --benchmark", "Name both sides, or time both now."
        )
    dashboard = ComparisonDashboard(output_directory)
    if benchmark and data is None:
        if not models and not compare_all:
            _raise_usage_error(
                "perf-comparison --benchmark", "no model", "--model NAME or --compare-all", "Say which models are to be timed."
            )
        request = ProfilingRequest(tuple(models or ()), variants, batch_size, sequence_length, backend.value, device, node, max_time)
        dashboard.data = _benchmark(request, server)
    elif as_is is not None and to_be is not None:
        dashboard.data = _compare_names(as_is, to_be, server)
    else:
        dashboard.load_data(data or output_directory / dashboard.data_file)
    if data is None:
        _save(dashboard)
    for line in dashboard.summary_lines():
        typer.echo(line)
    typer.echo(f"wrote {dashboard.generate_dashboard()}")
    _fail_where_incomplete(dashboard.data)


def _save(dashboard: Dashboard) -> None:
    written = dashboard.save_data()
    if dashboard.kept_file is not None:
        typer.echo(f"kept {dashboard.kept_file}: {written.name} as it was, which has other models (--data {dashboard.kept_file} draws it)")
    typer.echo(f"wrote {written}")


def _benchmark(request: ProfilingRequest, server: Server) -> Document:
    from kernalyse.services.cli.model_documents import compare_variants

    return compare_variants(request, server)


def _compare_names(as_is: str, to_be: str, server: Server) -> Document:
    from kernalyse.services.cli.model_documents import compare_named

    return compare_named(as_is, to_be, server)


def _fail_where_incomplete(data: Document) -> None:
    """End with status 1 where a model is missing. Called last, so that what was timed has been written."""
    from kernalyse.services.cli.model_documents import MISSING

    missing = data["metadata"].get(MISSING) if isinstance(data.get("metadata"), dict) else None
    if missing:
        typer.echo(f"not timed: {missing}", err=True)
        raise typer.Exit(1)


def _raise_usage_error(subject: str, found: str, expected: str, remedy: str) -> None:
    from kernalyse.services.core.errors import UsageError

    raise UsageError(f"command {subject}", found=found, expected=expected, remedy=remedy)
