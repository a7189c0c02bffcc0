"""Why ncu did not count, in its own words, and what can be done."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from services.core.errors import UnmetConditionError
from services.profiler.collectors.ncu import PERMISSION_REMEDY

MAX_LINE_COUNT: Final = 12  # of ncu's words in a message; the report in the run's artifacts has all of them

DCGM_REMEDY: Final = (
    "If DCGM watches this GPU, pause it as root while you count (dcgmi profile --pause), and let it go on after that "
    "(dcgmi profile --resume). It is not paused by itself: others may rely on it."
)
NOTHING_PROFILED: Final = "No kernels were profiled"
REMEDIES: Final = {
    "ERR_NVGPUCTRPERM": PERMISSION_REMEDY,
    "driver resource was unavailable": DCGM_REMEDY,
    "not compatible with Nsight Compute": "Use the ncu that came with a CUDA toolkit of the driver's own version; set CUDA_HOME to it.",
    "Profiling is not supported on": "Use a newer ncu, from a CUDA toolkit that knows this GPU (ncu --list-chips); set CUDA_HOME to it.",
    "unrecognised option": "Use a newer ncu, of CUDA 11.8 or later; set CUDA_HOME to its toolkit.",
    "Cannot lock GPU clock": "Count without clock control, which is the default.",
    "LibraryNotLoaded": (
        "Use the ncu of a toolkit no newer than the driver. Sandboxes such as gVisor hide the counters altogether: count on the host then."
    ),
    "Failed to open/create lock file": "Set TMPDIR to a folder that this user can write.",
    NOTHING_PROFILED: "The launches did not come about, or ncu did not see them; the run's log may say why.",
}
"""By words of ncu's message; the first that occurs counts."""

NAMED_METRIC: Final = re.compile(r"Failed to find metric (?:regex:\^?)?([A-Za-z]\w*)")
LISTED_METRICS: Final = re.compile(r"Failed to access the following \d+ metrics?: ([^\n]+)")


def refusal(output: str, exit_code: int | None) -> UnmetConditionError:
    """Return the error for what ncu and the command under it printed.

    Args:
        exit_code: of ncu; None: a signal ended it.
    """
    said = [line.split("== ", 1)[-1].strip() for line in output.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    lines = said or [line for line in output.splitlines() if line.strip()]
    found = "\n".join(dict.fromkeys(lines[-MAX_LINE_COUNT:])) or "nothing"
    remedy = next(
        (remedy for words, remedy in REMEDIES.items() if words in output), "Timings are there; try the same in a shell of that node."
    )
    said_by = "ncu was ended by a signal; it says" if exit_code is None else "ncu says"
    return UnmetConditionError("hardware counters", found=f"{said_by}: {found}", expected="a report", remedy=remedy)


def not_counted(refused: Iterable[str]) -> str:
    """Return the notice on metrics that were left out."""
    return f"Not counted, for this ncu or device does not know them: {', '.join(sorted(refused))}."


def is_refused_for_good(said: str) -> bool:
    """Return whether ncu's words name a reason that lies in the machine, and holds for any kernel."""
    return any(words in said for words in REMEDIES if words != NOTHING_PROFILED)


def refused_metrics(output: str, asked: Iterable[str]) -> frozenset[str]:
    """Return the metrics that this ncu or this device does not have: of those asked for, the ones that its message names."""
    named = {found[1] for found in NAMED_METRIC.finditer(output)}
    for listed in LISTED_METRICS.finditer(output):
        named |= {name.strip().partition(".")[0] for name in listed[1].split(",")}
    return frozenset(metric for metric in asked if metric.partition(".")[0] in named)
