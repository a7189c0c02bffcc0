"""Small Kineto traces of the ranks of a job, written event by event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.unit.analyzer.readers.test_kineto import call, kernel, module

BASE_UNIX_NS: Final = 1_760_000_000 * 10**9


def rank_events(rank: int) -> list[dict[str, Any]]:
    """A module that launches two kernels, the second longer by 10 us a rank."""
    return [
        module("Model_0", 0, 100),
        call(10, 1),
        call(20, 2),
        kernel("gemm", 30, 5, 1),
        kernel("ncclDevKernel_AllReduce", 40, 10 + 10 * rank, 2),
    ]


def write_rank(path: Path, rank: int, *, world_size: int = 2, start_s: float = 0.0) -> Path:
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "baseTimeNanoseconds": BASE_UNIX_NS + int(start_s * 10**9),
        "traceEvents": rank_events(rank),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
