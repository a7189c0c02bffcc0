"""A run as lists and headers show it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from kernalyse.services.core.model import CommandProfile, ModelRun, Run, RunState
from kernalyse.services.ui import theme
from kernalyse.services.ui.data.memory import Overview


@dataclass(frozen=True, slots=True)
class RunCard:
    """A run as lists and headers show it."""

    run_id: str
    title: str
    state: str
    is_active: bool
    progress_ratio: float | None
    completed: int
    failed: int
    total: int | None
    elapsed_s: float | None
    left_s: float | None
    activity: str
    device_id: str | None
    node_name: str
    is_imported: bool
    is_trace: bool
    is_model: bool
    has_timeline: bool
    command: str  # that was profiled; empty: none
    collector: str  # of the command
    create_text: str
    problem: str
    notes: str
    tags: tuple[str, ...]
    continues_run_id: str  # empty: none


def run_card(run: Run, overview: Overview, now_unix_s: float) -> RunCard:
    start_s = run.start_time.timestamp() if run.start_time else None
    end_s = run.end_time.timestamp() if run.end_time else now_unix_s
    elapsed_s = None if start_s is None else max(0.0, end_s - start_s)
    done, total = run.completed_configuration_count, run.total_configuration_count
    work = run.spec.work
    return RunCard(
        run_id=run.run_id,
        title=run.title,
        state=run.state.value,
        is_active=not run.state.is_final,
        progress_ratio=1.0 if run.state is RunState.SUCCEEDED else min(1.0, done / total) if total else None,
        completed=done,
        failed=run.failed_configuration_count,
        total=total,
        elapsed_s=elapsed_s,
        left_s=_left_s(run, overview.progress_unix_s.get(run.run_id, now_unix_s), now_unix_s),
        activity=run.activity,
        device_id=run.device_id,
        node_name=run.node_name,
        is_imported=run.is_imported,
        is_trace=run.is_trace,
        is_model=isinstance(work, ModelRun),
        has_timeline=run.has_timeline,
        command=shlex.join(work.arguments) if isinstance(work, CommandProfile) else "",
        collector=work.collector if isinstance(work, CommandProfile) else "",
        create_text=theme.moment(int(run.create_time.timestamp() * 1e9)),
        problem=run.error.message if run.error else run.problem,
        notes=run.notes,
        tags=run.tags,
        continues_run_id=run.spec.continues_run_id or "",
    )


def _left_s(run: Run, progress_unix_s: float, now_unix_s: float) -> float | None:
    """As long for each of the configurations left as for those that are done; the one that goes on has used some of its time."""
    done, total = run.completed_configuration_count, run.total_configuration_count
    if run.state is not RunState.RUNNING or run.start_time is None or not done or not total:
        return None
    each_s = max(0.0, progress_unix_s - run.start_time.timestamp()) / done
    return max(0.0, each_s * (total - done) - (now_unix_s - progress_unix_s))
