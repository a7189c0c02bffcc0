"""What a run was told to do, as it is needed to do it again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.core import wire
from services.core.continuing import KEPT_COLUMNS, StoppedSweep
from services.core.errors import ArtifactNotFoundError, UnmetConditionError
from services.core.model import CeilingMeasurement, CommandProfile, KernelSweep, ModelRun, Run, RunSpec, TableQuery
from services.core.repeating import SPEC_ARTIFACT, bundle_artifact_name

if TYPE_CHECKING:
    from services.cli.analyzer_client import AnalyzerClient


@dataclass(frozen=True, slots=True)
class KeptSpec:
    """The spec of a run. notices: why a run of it may not be the same, one sentence each."""

    spec: RunSpec
    notices: tuple[str, ...] = ()


def kept_spec(client: AnalyzerClient, run: Run) -> KeptSpec:
    """Return the run's spec with the sources, definitions and device that it had.

    Raises:
        UnmetConditionError: not the kind of run that can be repeated.
        InvalidRequestError: another version has written it.
    """
    if isinstance(run.spec.work, CeilingMeasurement | ModelRun | CommandProfile):
        return KeptSpec(run.spec)
    if not isinstance(run.spec.work, KernelSweep):
        raise UnmetConditionError(
            f"run {run.run_id}",
            found="an imported trace",
            expected="a sweep of kernels, a command, a model or a measurement of ceilings",
            remedy="`kernalyse runs` lists the others.",
        )
    try:
        return KeptSpec(wire.decode_json(client.artifact(run.run_id, SPEC_ARTIFACT), RunSpec))
    except ArtifactNotFoundError:  # it never began, or its artifacts have been deleted
        catalogue_names = [kernel.kernel_name for kernel in run.spec.work.kernels if kernel.source is None]
        notice = f"Its node no longer has {SPEC_ARTIFACT}: taken from the catalogue as they are now: {', '.join(catalogue_names)}."
        return KeptSpec(run.spec, (notice,) if catalogue_names and run.start_time is not None else ())


def stopped_sweep(client: AnalyzerClient, run: Run) -> StoppedSweep:
    """Return the run with what it has measured."""
    frames = {name: client.rows(TableQuery(name, (run.run_id,), columns=columns))[0] for name, columns in KEPT_COLUMNS.items()}
    return StoppedSweep(run, **{name: frame.to_dicts() for name, frame in frames.items()})


def upload_headers(client: AnalyzerClient, run: Run, spec: RunSpec) -> None:
    """Give the node the headers that the run had: it may have deleted them since. It says so itself when they are nowhere."""
    if not isinstance(spec.work, KernelSweep):
        return
    for digest in sorted({kernel.bundle_digest for kernel in spec.work.kernels if kernel.bundle_digest is not None}):
        with suppress(ArtifactNotFoundError):
            client.upload_bundle(client.artifact(run.run_id, bundle_artifact_name(digest)), run.node_id)
