"""The command `kernalyse model`, which times an ML model, built in or of an ONNX file, layer by layer, and its tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kernalyse.services.cli import options
from kernalyse.services.cli.options import Server, with_server_options
from kernalyse.services.core.disturbance import DISTURBED_SYMBOL
from kernalyse.services.core.formatting import UNKNOWN, change, duration, giga, median_with_interval, percentage, rate

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.cli.output import TerminalTable
    from kernalyse.services.core.model import Run, Work


WORK: Final = "What the model does"

VariantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--variant", metavar="NAME", help="baseline or fused; given twice, passes of both alternate and are compared.", rich_help_panel=WORK
    ),
]
BatchSizeOption = Annotated[int, typer.Option("--batch-size", metavar="N", min=1, help="Sequences of one pass.", rich_help_panel=WORK)]
SequenceLengthOption = Annotated[int, typer.Option("--seq-len", metavar="N", min=1, help="Tokens of each.", rich_help_panel=WORK)]
VocabularyOption = Annotated[
    int, typer.Option("--vocab-size", metavar="N", min=1, help="Tokens that the model knows.", rich_help_panel=WORK)
]
BundleOption = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="DIRECTORY",
        help="Goes to the node with FILE.onnx. By default the weights beside it whose names begin with its own.",
        rich_help_panel=WORK,
    ),
]


DEFAULT_MAX_TIME_S: Final = 6.0
"""Of sampling complete passes; launches take a third of it in addition. On a noisy machine no interval reaches the target, so this limit
ends the run: longer, and the user waits in vain; shorter, and there are too few passes."""

DASHBOARD_MAX_TIME_S: Final = 3.0
"""Of sampling one variant for a dashboard: shorter gives too few passes of the large models; longer, and six models on a CPU take more
than minutes."""


@with_server_options
def model(
    model_name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="gpt-nano, gpt-micro, gpt-mini, gpt-tile-small, …-medium, …-large, bert-tiny, or a file FILE.onnx."
        ),
    ],
    variants: VariantOption = None,
    batch_size: BatchSizeOption = 4,
    sequence_length: SequenceLengthOption = 64,
    vocabulary_size: VocabularyOption = 1024,
    bundle_directory: BundleOption = None,
    target: options.TargetOption = None,
    samples: options.SamplesOption = None,
    min_time: options.MinTimeOption = None,
    max_time: options.MaxTimeOption = None,
    seed: options.SeedOption = 0,
    no_verify: options.NoVerifyOption = False,
    backend: options.BackendOption = options.BackendChoice.AUTO,
    device: options.DeviceOption = None,
    node: options.NodeOption = "",
    json_path: options.JsonOption = None,
    title: options.TitleOption = "",
    *,
    server: Server,
) -> None:
    """Time passes through a model and every launch of them: live progress, then latency, layers and, of two variants, what changed.

    Status 1: the run or a verification failed.
    """
    from kernalyse.services.cli.bundles import model_bundle
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.session import analyzer_session, checkout_revision
    from kernalyse.services.core.model import BackendName, ModelRun, RunSpec
    from kernalyse.services.core.request_syntax import MeasuringArguments

    measuring = MeasuringArguments(
        target=target,
        max_sample_count=samples,
        min_duration_s=min_time,
        max_duration_s=DEFAULT_MAX_TIME_S if max_time is None and min_time is None else max_time,
        seed=seed,
        skip_verification=no_verify,
    )
    bundle = model_bundle(model_name, bundle_directory)
    work = ModelRun(
        model_name=model_name if bundle is None else Path(model_name).name,
        variants=tuple(variants or ()),
        batch_size=batch_size,
        sequence_length=sequence_length,
        backend=BackendName[backend.name],
        device_id=device,
        vocabulary_size=vocabulary_size,
        seed=seed,
        measuring=measuring.options(),
    )
    with analyzer_session(server) as client:
        node_id = client.node_id_of(node)
        if bundle is not None:
            work = replace(work, bundle_digest=client.upload_bundle(bundle.data, node_id))
        run = client.start_run(RunSpec(work, title=title, revision=checkout_revision(Path.cwd())), node_id=node_id)
        is_good = follow_and_show_model(client, run, json_path, make_console(stderr=True))
    if not is_good:
        raise typer.Exit(1)


# ---------------------------------------------------------------- results of a run

SHOWN_TABLES: Final = ("models", "layers", "layer_variants", "paired_comparisons", "failures")


def follow_and_show_model(client: AnalyzerClient, run: Run, json_path: Path | None, console: Console) -> bool:
    """Follow a run of a model, show its results, and return whether everything was timed and verified.

    Args:
        client: the analyzer.
        run: it was just started.
        json_path: file for the results; "-" for standard output, which then has nothing else; None: none.
        console: shows progress and notes.
    """
    from kernalyse.services.cli.run_output import follow, outcome_line, write_json
    from kernalyse.services.core.model import RunState

    run = follow(client, run, console)
    tables = {name: client.table(name, [run.run_id]) for name in SHOWN_TABLES}
    is_quiet = json_path is not None and str(json_path) == "-"
    _print_tables(tables, run.spec.work, quiet=is_quiet)
    console.print(outcome_line(run), markup=False, highlight=False)
    if json_path is not None:
        write_json(client, run, None if is_quiet else json_path)
    is_right = "FAILED" not in tables["models"]["verification_state"].to_list()
    return run.state is RunState.SUCCEEDED and run.failed_configuration_count == 0 and is_right


def _print_tables(tables: dict[str, pl.DataFrame], work: Work, *, quiet: bool) -> None:
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.run_output import failure_lines
    from kernalyse.services.core.disturbance import disturbance_note

    console = make_console(stderr=quiet)
    if not tables["models"].is_empty():
        console.print(model_table(tables["models"]))
    if not tables["layer_variants"].is_empty():
        console.print(variant_table(tables["layer_variants"]))
    elif not tables["layers"].is_empty():
        console.print(layer_table(tables["layers"]))
    disturbed = disturbance_note(tables["models"]["disturbance"])
    for line in (
        *layer_lines(tables["models"], work),
        *pair_lines(tables["paired_comparisons"], tables["models"]),
        *([disturbed] if disturbed else []),
        *failure_lines(tables["failures"]),
    ):
        console.print(line, markup=False, highlight=False)


# ---------------------------------------------------------------- tables and notes
# Complete passes, their layers, and how layers differ between variants.

BLOCK_NUMBER: Final = r"\.\d+(\.|$)"
"""The number of a block in a layer path. All blocks of a model are alike, so a terminal shows each kind of layer once."""


def model_table(models: pl.DataFrame) -> TerminalTable:
    """Return one row per model and variant. Input: table models."""
    from kernalyse.services.cli.output import TerminalTable

    numeric = ("median ± CI", "mean ± sd", "p95", "p99", "tokens/s of median", "GFLOP/s of median", "efficiency")
    rows = (
        (
            row["model_name"],
            row["variant"] or UNKNOWN,
            _median(row),
            f"{duration(row['duration_mean_ns'])} ± {duration(row['duration_standard_deviation_ns'])}",
            duration(row["duration_p95_ns"]),
            duration(row["duration_p99_ns"]),
            rate(row["tokens_per_s"], "tokens/s").removesuffix("tokens/s"),
            giga(row["achieved_flop_per_s"]),
            percentage(row["efficiency_ratio"]),
            (row["verification_state"] or UNKNOWN).lower().replace("_", " ")
            + (f", {DISTURBED_SYMBOL} disturbed" if row["disturbance"] else ""),
        )
        for row in models.iter_rows(named=True)
    )
    return TerminalTable(("model", "variant", *numeric, "verified"), rows, numeric=numeric)


def layer_table(layers: pl.DataFrame) -> TerminalTable:
    """Return one row per kind of layer, over all blocks. Input: table layers of one variant."""
    import polars as pl

    from kernalyse.services.cli.output import TerminalTable

    time_ns = pl.col("duration_sum_ns")
    kinds = (
        layers.with_columns(kind=_kind())
        .group_by("kind", maintain_order=True)
        .agg(
            pl.col("launch_count", "duration_sum_ns", "share_ratio").sum(),
            pl.col("bound").first(),
            flop=_known_sum("flop"),
            bytes=_known_sum("bytes"),
            efficiency_ratio=_joint_efficiency("efficiency_ratio"),
        )
        .with_columns(flop_per_s=pl.col("flop") / time_ns * 1e9, bytes_per_s=pl.col("bytes") / time_ns * 1e9)
        .sort("duration_sum_ns", descending=True)
    )
    numeric = ("launches", "time", "share of layers", "GFLOP/s", "GB/s", "efficiency")
    rows = (
        (
            row["kind"],
            str(row["launch_count"]),
            duration(row["duration_sum_ns"]),
            percentage(row["share_ratio"]),
            giga(row["flop_per_s"]),
            giga(row["bytes_per_s"]),
            percentage(row["efficiency_ratio"]),
            row["bound"] or UNKNOWN,
        )
        for row in kinds.iter_rows(named=True)
    )
    return TerminalTable(("layer", *numeric, "bound"), rows, numeric=numeric)


def variant_table(layer_variants: pl.DataFrame) -> TerminalTable:
    """Return one row per kind of layer, over all blocks, with the values of both variants. Input: table layer_variants."""
    import polars as pl

    from kernalyse.services.cli.output import TerminalTable

    kinds = (
        layer_variants.with_columns(kind=_kind())
        .group_by("variant", "baseline_variant", "kind", maintain_order=True)
        .agg(
            _known_sum("duration_sum_ns"),
            _known_sum("baseline_duration_sum_ns"),
            pl.col("duration_delta_ns").sum(),
            efficiency_ratio=_joint_efficiency("efficiency_ratio"),
            baseline_efficiency_ratio=_joint_efficiency("efficiency_ratio", "baseline_"),
            verdicts=pl.col("verdict").drop_nulls().str.to_lowercase(),
        )
        .sort(pl.max_horizontal("duration_sum_ns", "baseline_duration_sum_ns"), descending=True)
    )
    numeric = ("before", "after", "change", "saved", "efficiency before", "efficiency after")
    rows = (
        (
            row["kind"],
            duration(row["baseline_duration_sum_ns"]),
            duration(row["duration_sum_ns"]),
            _change(row["duration_sum_ns"], row["baseline_duration_sum_ns"]),
            duration(-row["duration_delta_ns"]),
            percentage(row["baseline_efficiency_ratio"]),
            percentage(row["efficiency_ratio"]),
            _count_verdicts(row["verdicts"]),
            f"{row['baseline_variant']} → {row['variant']}",
        )
        for row in kinds.iter_rows(named=True)
    )
    return TerminalTable(("layer", *numeric, "paired verdict", "variants"), rows, numeric=numeric)


def _change(after_ns: float | None, before_ns: float | None) -> str:
    return change(after_ns / before_ns) if after_ns is not None and before_ns else UNKNOWN


def _count_verdicts(verdicts: list[str]) -> str:
    """Return the verdicts of all blocks: "faster", or "2 faster, 1 undecided" where they differ."""
    counts = Counter(verdicts)
    return next(iter(counts), UNKNOWN) if len(counts) < 2 else ", ".join(f"{count} {name}" for name, count in counts.most_common())


def layer_lines(models: pl.DataFrame, work: Work) -> list[str]:
    """Return a note per variant on the sum of its layers' times against that of a complete pass.

    Args:
        models: table models of one run.
        work: what the run did.
    """
    from kernalyse.services.core.ml_models import layers_note

    sums = models.select("variant", "launches_duration_sum_ns", "duration_median_ns")
    notes = ((variant, layers_note(work, layers_ns, pass_ns)) for variant, layers_ns, pass_ns in sums.iter_rows())
    return [f"{variant}: {note}" if variant else note for variant, note in notes if note]


def pair_lines(comparisons: pl.DataFrame, models: pl.DataFrame) -> list[str]:
    """Return a line per paired comparison of two variants: the speed-up in interleaved blocks, and that of the medians.

    Args:
        comparisons: table paired_comparisons of a run of a model.
        models: its table models.
    """
    medians = dict(models.select("variant", "duration_median_ns").iter_rows())
    return [_pair_line(row, medians) for row in comparisons.iter_rows(named=True)]


def _pair_line(row: dict[str, Any], medians: dict[str | None, float | None]) -> str:
    speed, low, high = (1 / row[name] for name in ("duration_ratio", "duration_ratio_high", "duration_ratio_low"))
    variant, baseline = _last_word(row["label"]), _last_word(row["baseline_label"])
    after_ns, before_ns = medians.get(variant), medians.get(baseline)
    of_medians = f"; ×{before_ns / after_ns:.3g} by the medians" if after_ns and before_ns else ""
    paired = f"×{speed:.3g} (×{low:.3g} to ×{high:.3g}) the speed in alternating blocks"
    return f"{variant} against {baseline}: {row['verdict'].lower()}, {paired}{of_medians}; {row['reason']}"


def _last_word(label: str) -> str:
    """Return the last word of a label, which names the variant of a complete pass."""
    return label.rpartition(" ")[2]


def _kind() -> pl.Expr:
    import polars as pl

    return pl.col("layer").str.replace_all(BLOCK_NUMBER, ".*${1}")


def _known_sum(name: str) -> pl.Expr:
    """Return the sum of the known values of a column, null where none is known."""
    import polars as pl

    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)


def _joint_efficiency(name: str, prefix: str = "") -> pl.Expr:
    """Return the efficiency of layers together: attainable time over measured time, of the layers with a known efficiency."""
    import polars as pl

    known_ns = pl.col(f"{prefix}duration_sum_ns").filter(pl.col(f"{prefix}{name}").is_not_null())
    attainable_ns = pl.col(f"{prefix}{name}") * pl.col(f"{prefix}duration_sum_ns")
    return pl.when(known_ns.sum() > 0).then(attainable_ns.sum() / known_ns.sum())


def _median(row: dict[str, Any]) -> str:
    if row["duration_median_low_ns"] is None:
        return duration(row["duration_median_ns"])
    return median_with_interval(row["duration_median_ns"], row["duration_median_low_ns"], row["duration_median_high_ns"])
