"""Conditions for holding a stream while work is enqueued behind it, and what must not run meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

UNDER_PROFILER: Final = "KERNALYSE_UNDER_PROFILER"  # set by whoever starts this process under one
REPLAYING: Final = ("NV_TPS_LAUNCH_", "NV_COMPUTE_PROFILER_", "NV_NSIGHT_INJECTION_", "NV_SANITIZER_", "CUDA_INJECTION64_PATH")
"""Set by ncu, compute-sanitizer and libraries that are loaded into every CUDA program: they may run kernels one at a time,
and then a held stream waits for work that never gets to it."""


def may_hold_streams(environment: Mapping[str, str]) -> bool:
    """Return False under a tool, or a setting, that lets every launch wait for the one before."""
    if any(environment.get(name, "0") not in ("", "0") for name in (UNDER_PROFILER, "CUDA_LAUNCH_BLOCKING")):
        return False
    return not any(name.startswith(REPLAYING) for name in environment)


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """Keep Python's garbage collector off: it looks at the whole program at any time, and freeing device memory waits for the device."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
