"""What to know of a result before believing it: wrong, not verified, other than what its rivals write, impossible, disturbed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from services.compat.benchmarking.results import BenchmarkResult
from services.core.disturbance import disturbances
from services.core.model import VerificationState

COMPARED_WITH: Final = "compared_with"
IMPLAUSIBLE_REASON: Final = "implausible_reason"
"""Members of a result's metrics."""

UNVERIFIED: Final = (VerificationState.NO_REFERENCE, VerificationState.SWITCHED_OFF)


class Agreement(StrEnum):
    """What two kernels write for equal inputs."""

    SAME = "SAME"
    DIFFERENT = "DIFFERENT"


@dataclass(frozen=True, slots=True)
class Remark:
    """mark: beside a figure. sentence: the same with its reason; is_alarm: for who looks at nothing but the times."""

    mark: str
    sentence: str
    is_alarm: bool = False


def remarks_of(result: BenchmarkResult) -> list[Remark]:
    """Return what is to be said of a result; empty of one whose file tells nothing."""
    return [*_of_verification(result.metrics), *_of_rate(result.metrics), *_of_circumstances(result.metrics)]


def by_sentence(results: Iterable[BenchmarkResult]) -> dict[Remark, list[BenchmarkResult]]:
    """Return every remark with the results that it is of."""
    found: dict[Remark, list[BenchmarkResult]] = {}
    for result in results:
        for remark in remarks_of(result):
            found.setdefault(remark, []).append(result)
    return found


def alarms(results: Iterable[BenchmarkResult]) -> list[str]:
    """Return a sentence for each remark that nobody should miss: the first result that it is of, and how many more."""
    return [
        f"{_named(of[0])}{f' and {len(of) - 1} more' if len(of) > 1 else ''}: {remark.sentence}"
        for remark, of in by_sentence(results).items()
        if remark.is_alarm
    ]


def _named(result: BenchmarkResult) -> str:
    return " ".join((result.kernel_name, *(f"{name}={value}" for name, value in result.parameters.items())))


def is_verified(result: BenchmarkResult) -> bool | None:
    """Return whether the results were compared with a reference and right; None: not known."""
    state = (result.metrics.get("verification") or {}).get("state")
    return None if state is None else bool(state == VerificationState.PASSED)


def _of_verification(metrics: dict[str, Any]) -> Iterator[Remark]:
    verification = metrics.get("verification") or {}
    compared = metrics.get(COMPARED_WITH) or []
    if verification.get("state") == VerificationState.FAILED:
        yield Remark("WRONG RESULTS", f"WRONG RESULTS: {verification.get('message', '')}")
    different = [str(one["kernel"]) for one in compared if one["state"] == Agreement.DIFFERENT]
    if different:
        others = ", ".join(different)
        yield Remark("other results", f"other results than {others}: they compute different things, or one is wrong", is_alarm=True)
    if verification.get("state") in UNVERIFIED:
        same = [str(one["kernel"]) for one in compared if one["state"] == Agreement.SAME]
        agreeing = f"; the same results as {', '.join(same)}" if same else ""
        yield Remark("not verified", f"not verified: no reference was given to load_kernel{agreeing}")


def _of_rate(metrics: dict[str, Any]) -> Iterator[Remark]:
    if metrics.get(IMPLAUSIBLE_REASON):
        yield Remark("implausible", f"implausible: {metrics[IMPLAUSIBLE_REASON]}", is_alarm=True)


def _of_circumstances(metrics: dict[str, Any]) -> Iterator[Remark]:
    found = disturbances(metrics.get("host_busy_ratio"), metrics.get("other_process_count"), metrics.get("throttle_reasons"))
    if found:
        yield Remark("disturbed", f"disturbed: {', '.join(found)}")
