"""Runs of models for the dashboards: timed one after the other, and what they took as documents of the files' layout."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from services.compat.model_dashboards.profile_document import Document, benchmark_of, file_name_of, layer_of
from services.core.errors import DeviceNotFoundError, UnmetConditionError
from services.core.gpt_models import MODEL_NAMES
from services.core.model import BackendName, MeasuringOptions, ModelRun, Run, RunSpec, RunState
from services.core.words.usage import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from services.cli.analyzer_client import AnalyzerClient
    from services.cli.options import Server

PREPARING_S: Final = 5.0
"""Of a model on a CPU: opening the device, compiling and checking. Said before, so that nobody thinks that it hangs."""

SAMPLINGS: Final = 4 / 3  # launch by launch for a third of the time, then whole passes
NS_PER_S: Final = 1e9

DEFAULT_MAX_TIME_S: Final = 3.0
"""Of sampling one variant: enough for hundreds of passes of the small models, and all six are done within minutes on a CPU."""

VARIANT: Final = "fused"
MISSING: Final = "not_timed"
"""Member of a document's metadata that names models without an entry."""


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """Models to time. model_names: empty for all built-in ones. backend: auto, pycuda or opencl."""

    model_names: tuple[str, ...] = ()
    variants: tuple[str, ...] = (VARIANT,)
    batch_size: int = 4
    sequence_length: int = 64
    backend: str = "auto"
    device_id: str | None = None
    node: str = ""
    max_duration_s: float = DEFAULT_MAX_TIME_S  # of sampling one variant

    @property
    def expected_s(self) -> float:
        """Return the seconds that it takes on an idle CPU, at most."""
        return len(self.model_names or MODEL_NAMES) * (PREPARING_S + len(self.variants) * SAMPLINGS * self.max_duration_s)

    def specs(self) -> list[RunSpec]:
        """Return one run for each model."""
        return [RunSpec(work) for work in self.works()]

    def works(self) -> list[ModelRun]:
        """Return the work of each model's run."""
        max_duration_ns = int(self.max_duration_s * NS_PER_S)
        min_duration_ns = min(MeasuringOptions().min_duration_ns, max_duration_ns)
        return [
            ModelRun(
                model_name=name.replace("_", "-"),
                variants=self.variants,
                batch_size=self.batch_size,
                sequence_length=self.sequence_length,
                backend=_backend_of(self.backend),
                device_id=self.device_id,
                measuring=MeasuringOptions(min_duration_ns=min_duration_ns, max_duration_ns=max_duration_ns),
            )
            for name in self.model_names or MODEL_NAMES
        ]


def profiled_models(request: ProfilingRequest, server: Server | None = None) -> Document:
    """Return profiling_data.json of models that are timed now.

    Args:
        server: the analyzer to ask; None: the one of this machine, or one of its own.

    Raises:
        KernalyseError: what StartRun raises, or a run that did not succeed.
    """
    from services.cli.options import Server
    from services.cli.session import analyzer_session

    metadata: Document = {}
    benchmarks: Document = {}
    with analyzer_session(server or Server()) as client:
        for run in finished_runs(client, request):
            metadata = metadata or metadata_of(client, run)
            benchmarks |= dict(_benchmarks(client, run))
    metadata |= {"variant": request.variants[0]} | missing_models(request, benchmarks)
    return {"metadata": metadata, "benchmarks": benchmarks}


def finished_runs(client: AnalyzerClient, request: ProfilingRequest) -> Iterator[Run]:
    """Start the request's runs one after the other and yield those that succeed; of the others it says why they did not.

    Raises:
        UnmetConditionError: none did.
    """
    from services.cli.run_results import follow
    from services.cli.terminal import console as make_console

    console = make_console(stderr=True)
    _say_what_to_expect(console, request)
    done_count, problem = 0, None
    specs, start_s = request.specs(), time.monotonic()
    for place, spec in enumerate(specs):
        if place:
            left_s = (time.monotonic() - start_s) / place * (len(specs) - place)
            console.print(f"{place} of {len(specs)} models done, about {left_s:.0f} s left.", highlight=False)
        run = follow(client, client.start_run(spec, node_id=client.node_id_of(request.node)), console)
        if run.state is RunState.SUCCEEDED:
            done_count += 1
            yield run
            continue
        problem = _problem_of(run)
        console.print(problem.message, markup=False, highlight=False)
        if run.state is RunState.CANCELLED:
            break  # what has been timed until then is kept
    if problem is not None and not done_count:
        raise problem


def missing_models(request: ProfilingRequest, entries: Document) -> Document:
    """Return, for a document's metadata, those of the request that have no entry, where there are any."""
    wanted = [file_name_of(work.model_name) for work in request.works()]
    missing = [name for name in wanted if not any(name.removeprefix("gpt_") == entry.removeprefix("gpt_") for entry in entries)]
    return {MISSING: ", ".join(missing)} if missing else {}


def _backend_of(name: str) -> BackendName:
    """Return the backend of a name. Raises UsageError that names those there are."""
    try:
        return BackendName[name.upper()]
    except KeyError as error:
        raise UsageError(
            f"backend {name}", found="no such backend", expected=f"one of {', '.join(BackendName).lower()}", remedy="Correct the name."
        ) from error


def _problem_of(run: Run) -> UnmetConditionError:
    return UnmetConditionError(
        f"run {run.run_id}",
        found=f"state {run.state.lower()}" + (f": {run.error.message}" if run.error else ""),
        expected="a model that was timed",
        remedy=f"kernalyse show {run.run_id} log_lines has its log.",
    )


def metadata_of(client: AnalyzerClient, run: Run) -> Document:
    """Return metadata of a document: when, with what and on which device a run of a model was. What is not known is left out."""
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
    """Yield name and entry of each variant that the run has timed."""
    from services.analyzer.analyses.model_passes import WHOLE_PASS

    models, layers = (client.table(name, [run.run_id]) for name in ("models", "layers"))
    points = client.table("roofline", [run.run_id])
    roofs = {row["variant"]: row for row in points.iter_rows(named=True) if row["category"] == WHOLE_PASS}
    in_order = client.table("configurations", [run.run_id])["layer_path"].drop_nulls().unique(maintain_order=True).to_list()
    rank = {path: place for place, path in enumerate(in_order)}
    for model in models.iter_rows(named=True):
        own = [layer for layer in layers.iter_rows(named=True) if layer["variant"] == model["variant"]]
        own.sort(key=lambda layer: rank.get(layer["layer"], len(rank)))
        yield file_name_of(model["model_name"]), benchmark_of(model, [layer_of(layer) for layer in own], roofs.get(model["variant"], {}))


def _say_what_to_expect(console: Console, request: ProfilingRequest) -> None:
    count = len(request.specs())
    what = "1 model" if count == 1 else f"{count} models"
    console.print(
        f"Timing {what}: at most about {request.expected_s:.0f} s on an idle machine, more on a busy one. Ctrl-C cancels.", highlight=False
    )
