"""Runs done again, exactly or as far as they are left, and what they keep on their node for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.core.errors import RunNotFinishedError, UnmetConditionError
from services.core.model import CommandProfile, KernelSweep, ModelRun, Run, RunSpec, RunState, Work

SPEC_ARTIFACT: Final = "run_spec.json"
"""Of a sweep: its spec with the sources, definitions and device that it had."""

SOURCES_ARTIFACT: Final = "kernel_sources.json"
"""Of a model on the project's own kernels: the text of each source by its file name."""


def bundle_artifact_name(digest: str) -> str:
    """Of the copy of a bundle that a run keeps: the node's own expires."""
    return f"headers_{digest.removeprefix('sha256:')}.tar.gz"


def repeated(spec: RunSpec) -> RunSpec:
    """The same once more; of a run that continued another, the whole."""
    work = replace(spec.work, done_configuration_indexes=()) if isinstance(spec.work, KernelSweep) else spec.work
    return replace(spec, work=work, continues_run_id=None)


def continued(spec: RunSpec, run: Run, measured_indexes: frozenset[int]) -> RunSpec:
    """What is left of a stopped run. Configurations that failed are left too: the reason may be gone.

    Raises:
        RunNotFinishedError: it goes on by itself.
        UnmetConditionError: nothing is left, or it is not a sweep over everything.
    """
    subject = f"run {run.run_id}"
    if not run.state.is_final:
        raise RunNotFinishedError(subject, found=f"state {run.state}", expected="a run that has ended", remedy="Cancel it first.")
    sweep = spec.work
    if not isinstance(sweep, KernelSweep):
        raise UnmetConditionError(subject, found=_kind(sweep), expected="a sweep of kernels", remedy="Use kernalyse rerun.")
    if sweep.strategy != "ALL":
        raise UnmetConditionError(
            subject,
            found=f"a search by {sweep.strategy.lower()}, which has chosen by what it had measured until then",
            expected="a sweep with --strategy all",
            remedy="Use kernalyse rerun.",
        )
    done = frozenset(sweep.done_configuration_indexes) | measured_indexes
    is_complete = run.total_configuration_count is not None and len(done) >= run.total_configuration_count
    if is_complete or (run.state is RunState.SUCCEEDED and run.failed_configuration_count == 0):
        raise UnmetConditionError(
            subject, found="every configuration measured", expected="some that are left", remedy="kernalyse rerun measures them all again."
        )
    return replace(spec, work=replace(sweep, done_configuration_indexes=tuple(sorted(done))), continues_run_id=run.run_id)


def _kind(work: Work) -> str:
    match work:
        case CommandProfile():
            return "a command"
        case ModelRun():
            return "a model"
        case _:
            return "ceilings"
