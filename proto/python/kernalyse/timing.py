"""`bench` and `compare`: Python callables under the profiler's measuring engine, which is loaded when one is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from kernalyse.measuring import DEFAULT_MEASURING, Measuring

if TYPE_CHECKING:
    from kernalyse.services.callables.results import Bench, Comparison

Timer = Literal["auto", "torch", "cupy", "cuda", "pycuda", "host"]

NO_PARAMETERS: Final[Mapping[str, int]] = MappingProxyType({})


def bench(
    function: Callable[[], object],
    *,
    name: str | None = None,
    parameters: Mapping[str, int] = NO_PARAMETERS,
    flop: float | None = None,
    bytes: float | None = None,
    dtype: str = "float32",
    category: str = "other",
    timer: Timer = "auto",
    measuring: Measuring = DEFAULT_MEASURING,
) -> Bench:
    """Time a callable: warm-up, samples until the median is known well enough, statistics; as kernels are measured.

    GPU work is timed by CUDA events on the current stream of whichever of PyTorch, CuPy, CUDA Python and PyCUDA this
    program has loaded and put to use; what is enqueued elsewhere is not seen. Without one of them the host's clock times
    the call, and the record says so.

    Args:
        function: called without arguments, many times. It must not need a fresh state each time.
        name: None: the function's own name.
        parameters: whole numbers that tell this measurement from others of the same name, {"N": 4096}.
        flop, bytes: work of one call, for the roofline; None: not known.
        dtype: of the arithmetic; picks the compute ceiling.
        timer: "auto" as above; "host" for work of the CPU in a program that has a GPU open.
        measuring: when to stop, and how to time; `cache="both"` and the graph timing are for sweeps.

    Raises:
        ModuleNotFoundError: the extra profiler is missing.
        RequestError: an argument cannot be used.
        What the function raises.
    """
    with _extra_named():
        from kernalyse.services.callables.benchmark import bench as measure

    return measure(
        function,
        name=name,
        parameters=parameters,
        flop=flop,
        bytes=bytes,
        dtype=dtype,
        category=category,
        timer=timer,
        measuring=measuring,
    )


def compare(
    judged: Callable[[], object],
    baseline: Callable[[], object],
    *,
    names: tuple[str, str] | None = None,
    parameters: Mapping[str, int] = NO_PARAMETERS,
    timer: Timer = "auto",
    measuring: Measuring = DEFAULT_MEASURING,
) -> Comparison:
    """Return whether `judged` is faster or slower than `baseline`: both in alternating blocks, until that can be told.

    Args:
        names: of both, in this order; None: the functions' own names.
        measuring: its limits of time hold for each side.

    Raises:
        As `bench`.
    """
    with _extra_named():
        from kernalyse.services.callables.benchmark import compare as measure

    return measure(judged, baseline, names=names, parameters=parameters, timer=timer, measuring=measuring)


@contextmanager
def _extra_named() -> Iterator[None]:
    """Say which extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed, and measuring needs it: pip install 'kernalyse[profiler]'", name=error.name
        ) from error
