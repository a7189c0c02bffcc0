"""Results documents of one sweep that was measured again and again: a history to import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kernalyse.services.analyzer.export.results import results_document
from kernalyse.services.core.model import RunState, StateChanged
from tests.integration.profiler_stand_in import configuration, measurement
from tests.unit.run_results import results_of

DAY_NS: Final = 86_400_000_000_000
FIRST_UNIX_NS: Final = 1_767_225_600_000_000_000  # 2026-01-01


def history_files(
    directory: Path, durations_ns: Sequence[float], kernel_name: str = "saxpy", first_unix_ns: int = FIRST_UNIX_NS
) -> list[Path]:
    """One document a day, each of its commit. durations_ns: medians, one a run."""
    results = results_of(directory / "store", configuration(0, kernel_name=kernel_name), measurement(0), StateChanged(RunState.SUCCEEDED))
    document: dict[str, Any] = json.loads(results_document(results))
    (row,) = document["measurements"]
    paths = []
    for day, duration_ns in enumerate(durations_ns):
        for name in [name for name in row if name.startswith("duration_") and name.endswith("_ns")]:
            row[name] = duration_ns
        row |= {"duration_median_low_ns": duration_ns * 0.998, "duration_median_high_ns": duration_ns * 1.002}
        row["measured_unix_ns"] = first_unix_ns + day * DAY_NS
        row["duration_standard_deviation_ns"] = row["duration_median_absolute_deviation_ns"] = duration_ns * 0.01
        document["run"] |= {
            "run_id": f"run-{day}",
            "title": f"nightly {kernel_name} {day}",
            "git_commit": f"{day:040x}",
            "git_is_dirty": False,
        }
        path = directory / f"{kernel_name}-{day}.json"
        path.write_text(json.dumps(document))
        paths.append(path)
    return paths
