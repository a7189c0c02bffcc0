"""The choice of how samples of a kernel are taken, by how long it runs.

The rule, where the request leaves it open (AUTO):

- cold samples: one launch each. The cache has to be flushed between launches, so there is nothing to batch.
- hot samples of kernels of 10 us and more: one launch each.
- hot samples of shorter kernels: as many launches between two events as take 100 us, as one CUDA graph where the backend
  has graphs, else enqueued one after the other. Events resolve about half a microsecond and cost as much themselves, which
  is 5 % of 10 us and 1 % of a batch.
"""

from __future__ import annotations

import math
from typing import Final

from services.core.errors import InvalidParameterError
from services.core.model import CacheMode, TimingMethod
from services.profiler.backends.base import Timing

SHORT_KERNEL_NS: Final = 10_000.0
BATCH_NS: Final = 100_000.0
MAX_LAUNCHES_PER_SAMPLE: Final = 1_024  # of an empty kernel: more would fill the queue of any runtime


def choose_timing(asked: TimingMethod, cache_mode: CacheMode, launch_ns: float, known: frozenset[TimingMethod]) -> Timing:
    """Return the timing of a kernel whose launch was seen to take `launch_ns`.

    Args:
        cache_mode: COLD or HOT.
        known: methods of the backend.

    Raises:
        InvalidParameterError: the request asks for what cold samples, or this backend, cannot have.
    """
    method = _method(asked, cache_mode, launch_ns, known)
    if method is TimingMethod.SINGLE:
        return Timing(method, cache_mode)
    count = math.ceil(BATCH_NS / max(launch_ns, 1.0))
    return Timing(method, cache_mode, min(max(count, 2), MAX_LAUNCHES_PER_SAMPLE))


def _method(asked: TimingMethod, cache_mode: CacheMode, launch_ns: float, known: frozenset[TimingMethod]) -> TimingMethod:
    if asked is TimingMethod.AUTO:
        if cache_mode is CacheMode.COLD or launch_ns >= SHORT_KERNEL_NS:
            return TimingMethod.SINGLE
        return next(method for method in (TimingMethod.GRAPH, TimingMethod.BATCHED, TimingMethod.SINGLE) if method in known)
    if asked not in known:
        raise InvalidParameterError(
            f"timing method {asked.lower()}",
            found="a backend without it",
            expected=f"one of {', '.join(sorted(method.lower() for method in known))}, or auto",
            remedy="Choose another method or backend.",
        )
    if asked is not TimingMethod.SINGLE and cache_mode is CacheMode.COLD:
        raise InvalidParameterError(
            f"timing method {asked.lower()}",
            found="cold samples, for which the cache is flushed before each launch",
            expected="hot samples",
            remedy="Use --cache hot, or --timing single.",
        )
    return asked
