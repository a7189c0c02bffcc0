"""Limits for each person: runs that wait or run, time of devices, and what is stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.core.access import caller
from kernalyse.services.core.errors import LimitReachedError
from kernalyse.services.core.identity import Scope
from kernalyse.services.core.model import Run

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class PersonLimits:
    """What one person may have at once. None: no limit.

    Args:
        active_run_count: runs that wait or run, on all nodes.
        device_s_a_day: seconds of devices in 24 hours, of runs that were created in them.
        stored_bytes: bytes of runs in the store.
    """

    active_run_count: int | None = None
    device_s_a_day: float | None = None
    stored_bytes: int | None = None


class Usage:
    """Compares what the caller of an RPC has with the limits. Whoever has scope admin has none.

    Args:
        store: knows the runs and their owners.
        limits: of every person.
        clock: seconds since the epoch.
    """

    def __init__(self, store: Store, limits: PersonLimits, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock

    def check_start(self) -> None:
        """Let the caller start a run. Raises LimitReachedError."""
        limits, person = self._limits, caller()
        if Scope.ADMIN in person.scopes:
            return
        if limits.active_run_count is None and limits.device_s_a_day is None:
            return
        now = self._clock()
        runs = self._store.runs.of_owner(person.name, int((now - DAY_S) * 1e9))
        active_count = sum(not run.state.is_final for run in runs)
        if limits.active_run_count is not None and active_count >= limits.active_run_count:
            raise LimitReachedError(
                f"runs of {person.name}",
                found=f"{active_count} that wait or run",
                expected=f"fewer than {limits.active_run_count} (analyzer.max_active_runs_per_person)",
                remedy="Wait until one has ended, or cancel one.",
            )
        device_s = sum(_device_s(run, now) for run in runs)
        if limits.device_s_a_day is not None and device_s >= limits.device_s_a_day:
            raise LimitReachedError(
                f"device time of {person.name}",
                found=f"{device_s:.0f} s in the last 24 hours",
                expected=f"less than {limits.device_s_a_day:g} s (analyzer.max_device_s_per_person_and_day)",
                remedy="Wait until runs of yesterday leave these hours.",
            )

    def check_store(self) -> None:
        """Let the caller store more. Raises LimitReachedError."""
        limit, person = self._limits.stored_bytes, caller()
        if limit is None or Scope.ADMIN in person.scopes:
            return
        stored_bytes = self._store.runs.stored_bytes(person.name)
        if stored_bytes >= limit:
            raise LimitReachedError(
                f"store of {person.name}",
                found=f"{stored_bytes} bytes",
                expected=f"less than {limit} (analyzer.max_stored_bytes_per_person)",
                remedy="Delete runs that are no longer needed: kernalyse delete RUN.",
            )


def _device_s(run: Run, now_unix_s: float) -> float:
    """Return how long a run has had its device."""
    if run.start_time is None or run.is_imported:
        return 0.0
    end_unix_s = now_unix_s if run.end_time is None else run.end_time.timestamp()
    return max(0.0, end_unix_s - run.start_time.timestamp())
