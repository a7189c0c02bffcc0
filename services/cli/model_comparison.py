"""AS-IS and TO-BE: variants of a model, runs, files and traces as comparison_data.json, with interval and verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from services.analyzer.analyses.compare import ComparedRun, timings_of
from services.analyzer.analyses.model_passes import WHOLE_PASS, models
from services.analyzer.schema import CEILINGS
from services.analyzer.threshold_table import THRESHOLDS
from services.cli.compared_runs import ComparedTrace, compared_sides, run_of
from services.cli.model_profiling import ProfilingRequest, finished_runs, metadata_of, missing_models
from services.compat.model_dashboards.profile_document import NS_PER_MS, Document, compared_of, file_name_of, side_of
from services.core.comparison import Timings, compare_processes
from services.core.words.usage import UsageError

if TYPE_CHECKING:
    from services.cli.options import Server

Row = dict[str, Any]

BLOCK_NUMBER: Final = r"\.\d+(\.|$)"
AS_IS: Final = "as_is"
TO_BE: Final = "to_be"
MAX_TRACE_LAYERS: Final = 16
IN_TURNS: Final = "in turns"
OF_MEDIANS: Final = "of medians"
OF_MEANS: Final = "of means"
"""What a speed-up is the ratio of: times of blocks that took turns, medians of processes, means of passes."""


@dataclass(frozen=True, slots=True)
class Side:
    """What models took in one run, or in one variant of it. passes: rows of table models; what follows has one entry a row."""

    run: ComparedRun
    passes: Sequence[Row]
    indexes: Sequence[int]  # of configurations
    timings: Sequence[Sequence[Timings]]  # of each process that has timed it
    layers: Sequence[dict[str, float]]  # nanoseconds by kind of layer


# ---------------------------------------------------------------- variants that are timed now


def compared_models(request: ProfilingRequest, server: Server) -> Document:
    """Return comparison_data.json of two variants that alternate in one run of each model. Raises as `finished_runs` does."""
    from services.cli.session import analyzer_session

    as_is, to_be = request.variants
    metadata: Document = {}
    comparisons: Document = {}
    with analyzer_session(server) as client:
        for run in finished_runs(client, request):
            metadata = metadata or metadata_of(client, run)
            compared = run_of(client, run)
            comparisons |= dict(_entries(_side(compared, as_is), _side(compared, to_be), (as_is, to_be)))
    metadata |= {AS_IS: as_is, TO_BE: to_be} | missing_models(request, comparisons)
    return {"metadata": metadata, "comparisons": comparisons}


def _verdict_of_pair(pair: Row) -> Document:
    """Return the verdict on two variants in alternating blocks, whose ratio is the later one's time over the first's."""
    verdict = _verdict(pair["duration_ratio"], pair["duration_ratio_low"], pair["duration_ratio_high"], pair["verdict"], pair["reason"])
    return verdict | {"speedup_basis": IN_TURNS}


# ---------------------------------------------------------------- runs, files and traces


def compared_names(as_is: str, to_be: str, server: Server) -> Document:
    """Return comparison_data.json of two of what `kernalyse compare` takes; RUN@VARIANT is one variant of a model's run.

    Raises:
        UsageError: a trace and a run that is none, or nothing that both have.
        RunNotFoundError, InvalidTraceError: as `compared_sides`.
    """
    names, variants = zip(*(_split(text) for text in (as_is, to_be)), strict=True)
    first, second = compared_sides(names, server, None)
    metadata: Document = {AS_IS: as_is, TO_BE: to_be}
    if isinstance(first, ComparedTrace) and isinstance(second, ComparedTrace):
        return {"metadata": metadata, "comparisons": {"whole trace": _of_traces(first, second)}}
    if isinstance(first, ComparedTrace) or isinstance(second, ComparedTrace):
        raise UsageError(f"{as_is} and {to_be}", found="a trace and measurements", expected="two traces, or two runs of models")
    metadata |= _devices_of(first, second)
    before, after = _side(first, variants[0]), _side(second, variants[1])
    comparisons = dict(_entries(before, after, (AS_IS, TO_BE)))
    if not comparisons:
        raise UsageError(
            f"{as_is} and {to_be}",
            found="no model of the same batch and sequence in both",
            expected="runs of models: kernalyse model, or profiling_data.json",
            remedy="kernalyse compare holds sweeps of kernels against each other.",
        )
    return {"metadata": metadata, "comparisons": comparisons}


def _devices_of(*runs: ComparedRun) -> Document:
    names = dict.fromkeys(device.name for run in runs for device in run.devices.values())
    return {"gpu_name": " and ".join(names)} if names else {}


def _split(text: str) -> tuple[str, str | None]:
    name, _, variant = text.partition("@")
    return name, variant or None


def _side(run: ComparedRun, variant: str | None) -> Side:
    """Return one operand. variant: None for any.

    Of several processes the one whose passes take the median time stands for all, but in verdicts.
    """
    of_all = run.measurements if variant is None else run.measurements.filter(pl.col("variant") == variant)
    measured = _of_typical_process(of_all)
    found = models(measured.lazy(), CEILINGS.empty().lazy(), THRESHOLDS.empty().lazy()).collect()
    timings, passes = timings_of(run), found.to_dicts()
    indexes = [_index_of(measured, row) for row in passes]
    repeated = [[timings[again] for again in _repeated(of_all, index) if again in timings] for index in indexes]
    layers = [_layers(measured, row["variant"]) for row in passes]
    return Side(run, passes, indexes, repeated, layers)


def _of_typical_process(measurements: pl.DataFrame) -> pl.DataFrame:
    time_ns = pl.coalesce("duration_median_ns", "duration_mean_ns")
    passes = measurements.filter(category=WHOLE_PASS).group_by("process_index").agg(pass_ns=time_ns.sum())
    processes = passes.sort("pass_ns", "process_index")
    if processes.is_empty():
        return measurements
    return measurements.filter(pl.col("process_index").eq_missing(processes["process_index"][processes.height // 2]))


def _repeated(measurements: pl.DataFrame, index: int) -> Sequence[int]:
    """Return the configurations that are the same as one, in whichever process."""
    same = measurements.filter(configuration_index=index).select("label", "variant")
    indexes: Sequence[int] = measurements.join(same, on=["label", "variant"], nulls_equal=True)["configuration_index"].to_list()
    return indexes


def _index_of(measurements: pl.DataFrame, model: Row) -> int:
    own = measurements.filter(
        pl.col("category").eq_missing(WHOLE_PASS),
        pl.coalesce("model_name", "kernel_name") == model["model_name"],
        pl.col("duration_mean_ns").eq_missing(model["duration_mean_ns"]),
    )
    return int(own["configuration_index"][0])


def _layers(measurements: pl.DataFrame, variant: str | None) -> dict[str, float]:
    """Return nanoseconds of a pass by kind of layer, those of all blocks together."""
    kinds = (
        measurements.filter(pl.col("layer_path").is_not_null(), pl.col("variant").replace("", None).eq_missing(pl.lit(variant)))
        .group_by(pl.col("layer_path").str.replace_all(BLOCK_NUMBER, ".*${1}"), maintain_order=True)
        .agg(pl.col("duration_median_ns").sum())
    )
    return dict(kinds.iter_rows())


def _entries(before: Side, after: Side, names: tuple[str, str]) -> Iterator[tuple[str, Document]]:
    """Yield an entry of each model that both have, of several variants each with its like; of one model each, whatever the names are."""
    if len(before.passes) == len(after.passes) == 1 and _inputs(before.passes[0]) == _inputs(after.passes[0]):
        yield file_name_of(after.passes[0]["model_name"]), _entry(before, 0, after, 0, names)
        return
    for place, model in enumerate(before.passes):
        shape = _shape(model)
        candidates = [index for index, other in enumerate(after.passes) if _shape(other) == shape]
        same = [index for index in candidates if after.passes[index]["variant"] == model["variant"]]
        is_alone = sum(_shape(other) == shape for other in before.passes) == 1 and len(candidates) == 1
        chosen = same or (candidates if is_alone else [])
        if chosen:
            name = file_name_of(model["model_name"]) + ("" if is_alone else f" {model['variant']}")
            yield name, _entry(before, place, after, chosen[0], names)


def _shape(model: Row) -> tuple[object, ...]:
    return model["model_name"].replace("-", "_"), *_inputs(model)


def _inputs(model: Row) -> tuple[int | None, int | None]:
    return model["batch_size"], model["sequence_length"]


def _entry(before: Side, place: int, after: Side, other: int, names: tuple[str, str]) -> Document:
    first, second = before.passes[place], after.passes[other]
    entry: Document = compared_of(first) | {names[0]: side_of(first), names[1]: side_of(second)}
    entry["speedup"] = _time_ns(first) / _time_ns(second)
    entry["speedup_basis"] = OF_MEDIANS if first["duration_median_ns"] and second["duration_median_ns"] else OF_MEANS
    judged, baseline = after.timings[other], before.timings[place]
    pair = _pair(before, place, after, other)
    if pair is not None:
        entry |= _verdict_of_pair(pair)
    elif judged and baseline:
        compared = compare_processes(judged, baseline, max(before.run.margin_ratio, after.run.margin_ratio))
        ratio = compared.duration
        entry |= _verdict(ratio.ratio, ratio.low, ratio.high, compared.verdict.value, compared.reason)
        entry["speedup_basis"] = OF_MEDIANS
    return entry | _layer_rows(before.layers[place], after.layers[other])


def _pair(before: Side, place: int, after: Side, other: int) -> Row | None:
    """Return what alternating blocks of one run say of two passes of it, or None where there is no such comparison."""
    pairs = before.run.paired_comparisons
    if pairs is None or before.run.run_id != after.run.run_id:
        return None
    found = pairs.filter(configuration_index=after.indexes[other], baseline_configuration_index=before.indexes[place])
    return found.row(0, named=True) if found.height else None


def _time_ns(model: Row) -> float:
    return float(model["duration_median_ns"] or model["duration_mean_ns"])


def _verdict(ratio: float, low: float, high: float, verdict: str, reason: str) -> Document:
    """Return the verdict with ratios of durations as speed-ups: the ends of an interval change places."""
    return {"speedup": 1 / ratio, "speedup_low": 1 / high, "speedup_high": 1 / low, "verdict": verdict, "reason": reason}


def _layer_rows(before_ns: dict[str, float], after_ns: dict[str, float]) -> Document:
    rows = [
        {"layer": layer, "as_is_ms": _ms(before_ns.get(layer)), "to_be_ms": _ms(after_ns.get(layer))} for layer in {**before_ns, **after_ns}
    ]
    return {"layers": rows} if rows else {}


def _of_traces(before: ComparedTrace, after: ComparedTrace) -> Document:
    """Return an entry of device time of all kernels: one execution each, of which no interval can be told."""
    totals_ms = [float(side.tables["kernels"]["duration_sum_ns"].sum()) / NS_PER_MS for side in (before, after)]
    layers = [
        dict(side.tables["layers"].drop_nulls("layer").group_by("layer").agg(pl.col("duration_sum_ns").sum()).iter_rows())
        for side in (before, after)
    ]
    longest = sorted({**layers[0], **layers[1]}, key=lambda name: max(side.get(name, 0) for side in layers), reverse=True)[
        :MAX_TRACE_LAYERS
    ]
    shown = [{name: side[name] for name in longest if name in side} for side in layers]
    return {
        AS_IS: {"mean_ms": totals_ms[0]},
        TO_BE: {"mean_ms": totals_ms[1]},
        "speedup": totals_ms[0] / totals_ms[1] if totals_ms[1] else None,
        "speedup_basis": "of device times",
        "reason": "Device time of all kernels of one execution each: that has no interval, and so no verdict.",
        **_layer_rows(*shown),
    }


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS
