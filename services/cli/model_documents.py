"""The documents that model dashboards draw, made of runs that are timed now and of pairs of runs, files or traces."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kernalyse.services.analyzer.analysis.comparison import ComparisonOperand, timings_by_configuration
from kernalyse.services.analyzer.analysis.models import COMPLETE_PASS, models
from kernalyse.services.analyzer.tables.runs import CEILINGS, THRESHOLDS
from kernalyse.services.cli.compare import TraceOperand, load_operands, load_run_operand
from kernalyse.services.cli.model import BLOCK_NUMBER, DASHBOARD_MAX_TIME_S
from kernalyse.services.compat.model_dashboards.document import (
    NS_PER_MS,
    Document,
    benchmark_entry,
    comparison_entry,
    document_model_name,
    implementation_entry,
    layer_entry,
)
from kernalyse.services.core.comparison import Timings, compare_processes
from kernalyse.services.core.errors import DeviceNotFoundError, UnmetConditionError, UsageError
from kernalyse.services.core.ml_models import MODEL_NAMES
from kernalyse.services.core.model import BackendName, MeasuringOptions, ModelRun, Run, RunSpec, RunState

if TYPE_CHECKING:
    from rich.console import Console

    from kernalyse.services.cli.analyzer_client import AnalyzerClient
    from kernalyse.services.cli.options import Server


# ---------------------------------------------------------------- timed runs
# Models are timed one after the other; the result has the layout of profiling_data.json.

PREPARING_S: Final = 5.0
"""Opening the device, compiling and verifying a model on a CPU. The estimate is printed first, so that nobody thinks that it hangs."""

SAMPLINGS: Final = 4 / 3  # single launches for a third of the time, then complete passes
NS_PER_S: Final = 1e9

VARIANT: Final = "fused"
MISSING: Final = "not_timed"
"""The member of a document's metadata with the names of requested models that have no entry."""


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """The models to time for a document.

    Attributes:
        model_names: empty: all built-in ones.
        backend: auto, pycuda, nvcc or opencl.
        node: id, host name or address; empty: any.
        max_duration_s: of sampling one variant.
    """

    model_names: tuple[str, ...] = ()
    variants: tuple[str, ...] = (VARIANT,)
    batch_size: int = 4
    sequence_length: int = 64
    backend: str = "auto"
    device_id: str | None = None
    node: str = ""
    max_duration_s: float = DASHBOARD_MAX_TIME_S  # of sampling one variant

    @property
    def expected_s(self) -> float:
        """Return an upper bound of the seconds that all runs take on an idle CPU."""
        return len(self.model_names or MODEL_NAMES) * (PREPARING_S + len(self.variants) * SAMPLINGS * self.max_duration_s)

    def specs(self) -> list[RunSpec]:
        """Return one run specification for each model."""
        return [RunSpec(work) for work in self.works()]

    def works(self) -> list[ModelRun]:
        """Return the work of the run of each model."""
        max_duration_ns = int(self.max_duration_s * NS_PER_S)
        min_duration_ns = min(MeasuringOptions().min_duration_ns, max_duration_ns)
        return [
            ModelRun(
                model_name=name.replace("_", "-"),
                variants=self.variants,
                batch_size=self.batch_size,
                sequence_length=self.sequence_length,
                backend=_parse_backend(self.backend),
                device_id=self.device_id,
                measuring=MeasuringOptions(min_duration_ns=min_duration_ns, max_duration_ns=max_duration_ns),
            )
            for name in self.model_names or MODEL_NAMES
        ]


def profile_models(request: ProfilingRequest, server: Server | None = None) -> Document:
    """Time models and return the document of profiling_data.json.

    Args:
        request: the models.
        server: the analyzer to ask; None: the one of this machine, or one that is started for this call.

    Raises:
        KernalyseError: a run could not be started, or none succeeded.
    """
    from kernalyse.services.cli.options import Server
    from kernalyse.services.cli.session import analyzer_session

    metadata: Document = {}
    benchmarks: Document = {}
    with analyzer_session(server or Server()) as client:
        for run in finished_runs(client, request):
            metadata = metadata or run_metadata(client, run)
            benchmarks |= dict(_benchmarks(client, run))
    metadata |= {"variant": request.variants[0]} | missing_models(request, benchmarks)
    return {"metadata": metadata, "benchmarks": benchmarks}


def finished_runs(client: AnalyzerClient, request: ProfilingRequest) -> Iterator[Run]:
    """Start the requested runs one after the other and yield those that succeed; why others did not is printed.

    Raises:
        UnmetConditionError: no run succeeded.
    """
    from kernalyse.services.cli.output import console as make_console
    from kernalyse.services.cli.run_output import follow

    console = make_console(stderr=True)
    _print_estimate(console, request)
    done_count, problem = 0, None
    specs, start_s = request.specs(), time.monotonic()
    for position, spec in enumerate(specs):
        if position:
            remaining_s = (time.monotonic() - start_s) / position * (len(specs) - position)
            console.print(f"{position} of {len(specs)} models done, about {remaining_s:.0f} s left.", highlight=False)
        run = follow(client, client.start_run(spec, node_id=client.node_id_of(request.node)), console)
        if run.state is RunState.SUCCEEDED:
            done_count += 1
            yield run
            continue
        problem = _run_error(run)
        console.print(problem.message, markup=False, highlight=False)
        if run.state is RunState.CANCELLED:
            break  # the document has what was timed before
    if problem is not None and not done_count:
        raise problem


def missing_models(request: ProfilingRequest, entries: Document) -> Document:
    """Return the requested models without an entry as a member of the document's metadata; nothing where none is missing."""
    requested = [document_model_name(work.model_name) for work in request.works()]
    missing = [name for name in requested if not any(name.removeprefix("gpt_") == entry.removeprefix("gpt_") for entry in entries)]
    return {MISSING: ", ".join(missing)} if missing else {}


def _parse_backend(name: str) -> BackendName:
    """Return the backend of a name.

    Raises:
        UsageError: there is no such backend; the error lists all.
    """
    try:
        return BackendName[name.upper()]
    except KeyError as error:
        raise UsageError(
            f"backend {name}", found="no such backend", expected=f"one of {', '.join(BackendName).lower()}", remedy="Correct the name."
        ) from error


def _run_error(run: Run) -> UnmetConditionError:
    return UnmetConditionError(
        f"run {run.run_id}",
        found=f"state {run.state.lower()}" + (f": {run.error.message}" if run.error else ""),
        expected="a model that was timed",
        remedy=f"kernalyse show {run.run_id} log_lines has its log.",
    )


def run_metadata(client: AnalyzerClient, run: Run) -> Document:
    """Return the metadata of a document: time, versions, device and sizes of a run of a model. Unknown members are missing."""
    work = run.spec.work
    backend = run.device_id.partition(":")[0] if run.device_id else None
    known: dict[str, Any] = {
        "timestamp": datetime.now(UTC).replace(tzinfo=None).isoformat(),
        **_device_facts(client, run),
        "backend": {"cuda": "pycuda"}.get(backend or "", backend),
        "batch_size": getattr(work, "batch_size", None),
        "seq_len": getattr(work, "sequence_length", None),
        "run_id": run.run_id,
        "kernalyse_version": version("kernalyse"),
    }
    return {name: value for name, value in known.items() if value is not None}


def _device_facts(client: AnalyzerClient, run: Run) -> Document:
    node = next((status.node for status in client.nodes() if status.node is not None and status.node.node_id == run.node_id), None)
    host = {} if node is None else {"cpu_model": node.cpu_model}
    try:
        device = client.device(run.node_id, run.device_id or "")
    except DeviceNotFoundError:
        return host
    return host | {
        "gpu_name": device.name,
        "compute_capability": device.compute_capability,
        "cuda_version": device.toolkit_version,
        "driver_version": device.driver_version,
        "runtime": device.runtime,
    }


def _benchmarks(client: AnalyzerClient, run: Run) -> Iterator[tuple[str, Document]]:
    """Yield name and entry of each variant that the run timed."""
    models, layers = (client.table(name, [run.run_id]) for name in ("models", "layers"))
    points = client.table("roofline", [run.run_id])
    roofline_points = {row["variant"]: row for row in points.iter_rows(named=True) if row["category"] == COMPLETE_PASS}
    layer_order = client.table("configurations", [run.run_id])["layer_path"].drop_nulls().unique(maintain_order=True).to_list()
    rank = {path: position for position, path in enumerate(layer_order)}
    for model in models.iter_rows(named=True):
        rows = [layer for layer in layers.iter_rows(named=True) if layer["variant"] == model["variant"]]
        rows.sort(key=lambda layer: rank.get(layer["layer"], len(rank)))
        yield (
            document_model_name(model["model_name"]),
            benchmark_entry(model, [layer_entry(layer) for layer in rows], roofline_points.get(model["variant"], {})),
        )


def _print_estimate(console: Console, request: ProfilingRequest) -> None:
    count = len(request.specs())
    what = "1 model" if count == 1 else f"{count} models"
    console.print(
        f"Timing {what}: at most about {request.expected_s:.0f} s on an idle machine, more on a busy one. Ctrl-C cancels.", highlight=False
    )


# ---------------------------------------------------------------- comparisons
# AS-IS and TO-BE are variants of a model, runs, files or traces; the result has the layout of comparison_data.json.

Row = dict[str, Any]

AS_IS: Final = "as_is"
TO_BE: Final = "to_be"
MAX_TRACE_LAYERS: Final = 16
IN_TURNS: Final = "in turns"
OF_MEDIANS: Final = "of medians"
OF_MEANS: Final = "of means"
"""Bases of a speed-up: times of interleaved blocks, medians of processes, means of passes."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a comparison: the times of models in a run, or in one variant of it.

    Attributes:
        passes: rows of table models.
        indexes: of each row, the index of its configuration.
        timings: of each row, the timings of each process that measured it.
        layers: of each row, nanoseconds by kind of layer.
    """

    run: ComparisonOperand
    passes: Sequence[Row]
    indexes: Sequence[int]
    timings: Sequence[Sequence[Timings]]
    layers: Sequence[dict[str, float]]


# ---------------------------------------------------------------- variants that are timed now


def compare_variants(request: ProfilingRequest, server: Server) -> Document:
    """Time two interleaved variants in one run of each model and return the document of comparison_data.json.

    Raises:
        UnmetConditionError: no run succeeded.
    """
    from kernalyse.services.cli.session import analyzer_session

    as_is, to_be = request.variants
    metadata: Document = {}
    comparisons: Document = {}
    with analyzer_session(server) as client:
        for run in finished_runs(client, request):
            metadata = metadata or run_metadata(client, run)
            compared = load_run_operand(client, run)
            comparisons |= dict(_entries(_operand(compared, as_is), _operand(compared, to_be), (as_is, to_be)))
    metadata |= {AS_IS: as_is, TO_BE: to_be} | missing_models(request, comparisons)
    return {"metadata": metadata, "comparisons": comparisons}


def _paired_verdict(pair: Row) -> Document:
    """Return the verdict of a paired comparison, whose ratio is the second variant's time over the first's."""
    verdict = _verdict(pair["duration_ratio"], pair["duration_ratio_low"], pair["duration_ratio_high"], pair["verdict"], pair["reason"])
    return verdict | {"speedup_basis": IN_TURNS}


# ---------------------------------------------------------------- runs, files and traces


def compare_named(as_is: str, to_be: str, server: Server) -> Document:
    """Return the document of comparison_data.json for two operands of `kernalyse compare`; RUN@VARIANT is one variant of a run.

    Raises:
        UsageError: a trace is compared with measurements, or the operands have no model in common.
        RunNotFoundError: there is no such run.
        InvalidTraceError: no reader accepts a file.
    """
    names, variants = zip(*(_split(text) for text in (as_is, to_be)), strict=True)
    first, second = load_operands(names, server, None)
    metadata: Document = {AS_IS: as_is, TO_BE: to_be}
    if isinstance(first, TraceOperand) and isinstance(second, TraceOperand):
        return {"metadata": metadata, "comparisons": {"whole trace": _trace_entry(first, second)}}
    if isinstance(first, TraceOperand) or isinstance(second, TraceOperand):
        raise UsageError(f"{as_is} and {to_be}", found="a trace and measurements", expected="two traces, or two runs of models")
    metadata |= _device_names(first, second)
    before, after = _operand(first, variants[0]), _operand(second, variants[1])
    comparisons = dict(_entries(before, after, (AS_IS, TO_BE)))
    if not comparisons:
        raise UsageError(
            f"{as_is} and {to_be}",
            found="no model of the same batch and sequence in both",
            expected="runs of models: kernalyse model, or profiling_data.json",
            remedy="kernalyse compare holds sweeps of kernels against each other.",
        )
    return {"metadata": metadata, "comparisons": comparisons}


def _device_names(*runs: ComparisonOperand) -> Document:
    names = dict.fromkeys(device.name for run in runs for device in run.devices.values())
    return {"gpu_name": " and ".join(names)} if names else {}


def _split(text: str) -> tuple[str, str | None]:
    name, _, variant = text.partition("@")
    return name, variant or None


def _operand(run: ComparisonOperand, variant: str | None) -> Operand:
    """Return one operand of a comparison. variant: None: all of them.

    Of several processes, the one whose passes take the median time stands for all; only verdicts use every process.
    """
    all_processes = run.measurements if variant is None else run.measurements.filter(pl.col("variant") == variant)
    measured = _median_process(all_processes)
    found = models(measured.lazy(), CEILINGS.empty().lazy(), THRESHOLDS.empty().lazy()).collect()
    timings, passes = timings_by_configuration(run), found.to_dicts()
    indexes = [_configuration_index(measured, row) for row in passes]
    repeated = [[timings[other_index] for other_index in _repeated(all_processes, index) if other_index in timings] for index in indexes]
    layers = [_layers(measured, row["variant"]) for row in passes]
    return Operand(run, passes, indexes, repeated, layers)


def _median_process(measurements: pl.DataFrame) -> pl.DataFrame:
    time_ns = pl.coalesce("duration_median_ns", "duration_mean_ns")
    passes = measurements.filter(category=COMPLETE_PASS).group_by("process_index").agg(pass_ns=time_ns.sum())
    processes = passes.sort("pass_ns", "process_index")
    if processes.is_empty():
        return measurements
    return measurements.filter(pl.col("process_index").eq_missing(processes["process_index"][processes.height // 2]))


def _repeated(measurements: pl.DataFrame, index: int) -> Sequence[int]:
    """Return the indexes of the same configuration in all processes."""
    same = measurements.filter(configuration_index=index).select("label", "variant")
    indexes: Sequence[int] = measurements.join(same, on=["label", "variant"], nulls_equal=True)["configuration_index"].to_list()
    return indexes


def _configuration_index(measurements: pl.DataFrame, model: Row) -> int:
    rows = measurements.filter(
        pl.col("category").eq_missing(COMPLETE_PASS),
        pl.coalesce("model_name", "kernel_name") == model["model_name"],
        pl.col("duration_mean_ns").eq_missing(model["duration_mean_ns"]),
    )
    return int(rows["configuration_index"][0])


def _layers(measurements: pl.DataFrame, variant: str | None) -> dict[str, float]:
    """Return nanoseconds of a pass by kind of layer, summed over all blocks."""
    kinds = (
        measurements.filter(pl.col("layer_path").is_not_null(), pl.col("variant").replace("", None).eq_missing(pl.lit(variant)))
        .group_by(pl.col("layer_path").str.replace_all(BLOCK_NUMBER, ".*${1}"), maintain_order=True)
        .agg(pl.col("duration_median_ns").sum())
    )
    return dict(kinds.iter_rows())


def _entries(before: Operand, after: Operand, names: tuple[str, str]) -> Iterator[tuple[str, Document]]:
    """Yield an entry for each model that both operands have. Variants are matched by name; a single model each by sizes alone."""
    if len(before.passes) == len(after.passes) == 1 and _inputs(before.passes[0]) == _inputs(after.passes[0]):
        yield document_model_name(after.passes[0]["model_name"]), _entry(before, 0, after, 0, names)
        return
    for position, model in enumerate(before.passes):
        shape = _shape(model)
        candidates = [index for index, other in enumerate(after.passes) if _shape(other) == shape]
        same = [index for index in candidates if after.passes[index]["variant"] == model["variant"]]
        is_alone = sum(_shape(other) == shape for other in before.passes) == 1 and len(candidates) == 1
        selected = same or (candidates if is_alone else [])
        if selected:
            name = document_model_name(model["model_name"]) + ("" if is_alone else f" {model['variant']}")
            yield name, _entry(before, position, after, selected[0], names)


def _shape(model: Row) -> tuple[object, ...]:
    return model["model_name"].replace("-", "_"), *_inputs(model)


def _inputs(model: Row) -> tuple[int | None, int | None]:
    return model["batch_size"], model["sequence_length"]


def _entry(before: Operand, position: int, after: Operand, other: int, names: tuple[str, str]) -> Document:
    first, second = before.passes[position], after.passes[other]
    entry: Document = comparison_entry(first) | {names[0]: implementation_entry(first), names[1]: implementation_entry(second)}
    entry["speedup"] = _time_ns(first) / _time_ns(second)
    entry["speedup_basis"] = OF_MEDIANS if first["duration_median_ns"] and second["duration_median_ns"] else OF_MEANS
    candidate, baseline = after.timings[other], before.timings[position]
    pair = _pair(before, position, after, other)
    if pair is not None:
        entry |= _paired_verdict(pair)
    elif candidate and baseline:
        compared = compare_processes(candidate, baseline, max(before.run.margin_ratio, after.run.margin_ratio))
        ratio = compared.duration
        entry |= _verdict(ratio.ratio, ratio.low, ratio.high, compared.verdict.value, compared.reason)
        entry["speedup_basis"] = OF_MEDIANS
    return entry | _layer_rows(before.layers[position], after.layers[other])


def _pair(before: Operand, position: int, after: Operand, other: int) -> Row | None:
    """Return the paired comparison of two passes of one run, or None where there is none."""
    pairs = before.run.paired_comparisons
    if pairs is None or before.run.run_id != after.run.run_id:
        return None
    found = pairs.filter(configuration_index=after.indexes[other], baseline_configuration_index=before.indexes[position])
    return found.row(0, named=True) if found.height else None


def _time_ns(model: Row) -> float:
    return float(model["duration_median_ns"] or model["duration_mean_ns"])


def _verdict(ratio: float, low: float, high: float, verdict: str, reason: str) -> Document:
    """Return the verdict with speed-ups, the reciprocals of duration ratios; so the ends of the interval swap."""
    return {"speedup": 1 / ratio, "speedup_low": 1 / high, "speedup_high": 1 / low, "verdict": verdict, "reason": reason}


def _layer_rows(before_ns: dict[str, float], after_ns: dict[str, float]) -> Document:
    rows = [
        {"layer": layer, "as_is_ms": _ms(before_ns.get(layer)), "to_be_ms": _ms(after_ns.get(layer))} for layer in {**before_ns, **after_ns}
    ]
    return {"layers": rows} if rows else {}


def _trace_entry(before: TraceOperand, after: TraceOperand) -> Document:
    """Return an entry of the device time of all kernels. One execution each has no interval, and so no verdict."""
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
