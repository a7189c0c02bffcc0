"""The specification of a run that continues or repeats another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kernalyse.services.core.errors import RunNotFinishedError, UnmetConditionError
from kernalyse.services.core.model import (
    CommandProfile,
    KernelSweep,
    ModelRun,
    Rival,
    Run,
    RunSpec,
    RunState,
    SearchStrategy,
    StopReason,
    Work,
)

# ---------------------------------------------------------------- continuing
# The remaining configurations of a sweep that was stopped, or of a search whose budget is spent.

RESUME_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "failures": ("configuration_index",),
    "measurements": ("configuration_index", "stop_reason", "elapsed_ns"),
    "best": ("configuration_index", "duration_median_ns", "runner_up_configuration_index", "runner_up_duration_median_ns"),
}
"""The columns of a run's tables that are needed to continue it."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StoppedSweep:
    """A run that has ended, with the KEPT_COLUMNS of its tables as rows."""

    run: Run
    failures: Rows = ()
    measurements: Rows = ()
    best: Rows = ()

    def complete_indexes(self) -> frozenset[int]:
        """Return the configurations with all their samples, or with as many as showed that others are faster.

        Configurations that were interrupted by the end of a budget are not among them.
        """
        return frozenset(row["configuration_index"] for row in self.measurements if row["stop_reason"] != StopReason.BUDGET_SPENT)

    def failed_indexes(self) -> frozenset[int]:
        """Return the indexes of the configurations that failed."""
        return frozenset(row["configuration_index"] for row in self.failures)

    def elapsed_ns(self, earlier_indexes: frozenset[int]) -> int:
        """Return the wall clock time spent on this run's own measurements, without those of the runs before it."""
        return sum(row["elapsed_ns"] or 0 for row in self.measurements if row["configuration_index"] not in earlier_indexes)

    def contenders(self, done_indexes: frozenset[int]) -> Iterator[Rival]:
        """Yield the two fastest of each problem, if they are fully measured and the search did not eliminate them."""
        eliminated = {row["configuration_index"] for row in self.measurements if row["stop_reason"] == StopReason.ELIMINATED}
        for row in self.best:
            for prefix in ("", "runner_up_"):
                index = row[f"{prefix}configuration_index"]
                if index in done_indexes and index not in eliminated:
                    yield Rival(index, row[f"{prefix}duration_median_ns"])


def continuation_spec(spec: RunSpec, stopped: StoppedSweep, budget_ns: int | None = None, *, retries_failed: bool = False) -> RunSpec:
    """Return the specification of a run that measures what is left.

    Args:
        spec: of the run, as its node has stored it.
        stopped: the run, and what it has measured.
        budget_ns: of a search; None: what is left of its own.
        retries_failed: include the failed configurations. A kernel that ends the worker would do so each time, and prevent all that follow.

    Raises:
        RunNotFinishedError: the run is still in progress.
        UnmetConditionError: nothing is left, of the configurations or of the budget, or it is not a sweep.
    """
    run, sweep = stopped.run, spec.work
    subject = f"run {run.run_id}"
    if not run.state.is_final:
        raise RunNotFinishedError(subject, found=f"state {run.state}", expected="a run that has ended", remedy="Cancel it first.")
    if not isinstance(sweep, KernelSweep):
        raise UnmetConditionError(subject, found=_kind(sweep), expected="a sweep of kernels", remedy="Use kernalyse rerun.")
    done = frozenset(sweep.done_configuration_indexes) | stopped.complete_indexes()
    failed = (frozenset(sweep.failed_configuration_indexes) | stopped.failed_indexes()) - done
    _check_some_left(run, len(done), 0 if retries_failed else len(failed))
    new_budget_ns = _budget_ns(sweep, stopped, budget_ns)
    left = replace(
        sweep,
        budget_ns=new_budget_ns,
        earlier_budget_ns=None if new_budget_ns is None else _spent_ns(sweep, stopped),
        done_configuration_indexes=tuple(sorted(done)),
        rivals=tuple(stopped.contenders(done)),
        failed_configuration_indexes=() if retries_failed else tuple(sorted(failed)),
    )
    return replace(spec, work=left, continues_run_id=run.run_id)


def _check_some_left(run: Run, done_count: int, failed_count: int) -> None:
    """Raise UnmetConditionError if no configuration is left; failed_count: those that are not to be tried again."""
    if run.total_configuration_count is None or done_count + failed_count < run.total_configuration_count:
        return
    failures = f"the {failed_count} left failed" if failed_count > 1 else "the one left failed"
    raise UnmetConditionError(
        f"run {run.run_id}",
        found=f"every configuration measured, {failures}" if failed_count else "every configuration measured",
        expected="some that are left",
        remedy="kernalyse resume --retry-failed tries them again." if failed_count else "kernalyse rerun measures them all again.",
    )


def _budget_ns(sweep: KernelSweep, stopped: StoppedSweep, requested_ns: int | None) -> int | None:
    """Return the requested budget, or what is left of the run's own.

    Time spent on configurations without a measurement does not count: they start afresh.

    Raises:
        UnmetConditionError: no budget is left, or the sweep cannot have one.
    """
    subject = f"run {stopped.run.run_id}"
    if sweep.strategy is SearchStrategy.ALL:
        if requested_ns is not None:
            raise UnmetConditionError(
                subject, found="a sweep over everything", expected="a search, for a budget", remedy="Leave the budget out."
            )
        return None
    if requested_ns is not None or sweep.budget_ns is None:
        return requested_ns
    left_ns = sweep.budget_ns - _elapsed_ns(sweep, stopped)
    if left_ns <= 0 or stopped.run.state is RunState.SUCCEEDED:
        raise UnmetConditionError(
            subject,
            found=f"its budget of {sweep.budget_ns / 1e9:g} s spent",
            expected="a budget for what is left",
            remedy=f"Give it one: kernalyse resume {stopped.run.run_id} --budget SECONDS.",
        )
    return left_ns


def _spent_ns(sweep: KernelSweep, stopped: StoppedSweep) -> int:
    """Return the budget used by this run and those that it continued.

    A search that ran to its end has used its entire budget, comparisons included.
    """
    earlier_ns = sweep.earlier_budget_ns or 0
    if stopped.run.state is RunState.SUCCEEDED and sweep.budget_ns is not None:
        return earlier_ns + sweep.budget_ns
    return earlier_ns + _elapsed_ns(sweep, stopped)


def _elapsed_ns(sweep: KernelSweep, stopped: StoppedSweep) -> int:
    return stopped.elapsed_ns(frozenset(sweep.done_configuration_indexes))


def _kind(work: Work) -> str:
    match work:
        case CommandProfile():
            return "a command"
        case ModelRun():
            return "a model"
        case _:
            return "ceilings"


# ---------------------------------------------------------------- repeating

SPEC_ARTIFACT: Final = "run_spec.json"
"""A sweep's specification with the sources, definitions and device that it used."""

SOURCES_ARTIFACT: Final = "kernel_sources.json"
"""For an ML model on the project's own kernels, the text of each source by its file name."""


def bundle_artifact_name(digest: str) -> str:
    """Return the name of a run's own copy of a bundle; the copy in the node's store of bundles expires."""
    return f"headers_{digest.removeprefix('sha256:')}.tar.gz"


def repetition_spec(spec: RunSpec) -> RunSpec:
    """Return the specification that measures the same again.

    A repeated continuation measures all configurations, with the budgets of both runs together.
    """
    work = spec.work
    if isinstance(work, KernelSweep):
        work = replace(
            work,
            budget_ns=None if work.budget_ns is None else work.budget_ns + (work.earlier_budget_ns or 0),
            earlier_budget_ns=None,
            done_configuration_indexes=(),
            rivals=(),
            failed_configuration_indexes=(),
        )
    return replace(spec, work=work, continues_run_id=None)
