"""The functions `bench` and `compare`, which load the profiler's measuring engine when they are called."""

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
    """Measure the duration of a callable: warm-up, samples until the median is known well enough, statistics, as for kernels.

    GPU work is timed by CUDA events on the current stream of whichever of PyTorch, CuPy, CUDA Python and PyCUDA this
    program has loaded and used; work on other streams is not measured. Without one of them the host's clock times
    the call, and the record says so.

    Args:
        function: called without arguments, many times. It must not need a fresh state each time.
        name: None: the function's own name.
        parameters: integers that distinguish this measurement from others of the same name, {"N": 4096}.
        flop, bytes: cost of one call, for the roofline; None: not known.
        dtype: of the arithmetic; selects the compute ceiling.
        category: of the function, as kernels have it.
        timer: "auto" as above; "host" for work of the CPU in a program that has a GPU open.
        measuring: when to stop, and how to time; `cache="both"` and the graph timing are for sweeps.

    Raises:
        ModuleNotFoundError: the extra profiler is missing.
        RequestError: an argument cannot be used.
        Exception: whatever the function raises.
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
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    *,
    names: tuple[str, str] | None = None,
    parameters: Mapping[str, int] = NO_PARAMETERS,
    timer: Timer = "auto",
    measuring: Measuring = DEFAULT_MEASURING,
) -> Comparison:
    """Compare `candidate` with `baseline` in alternating blocks, until a verdict is possible: faster, slower or the same.

    Args:
        candidate: what is timed and compared.
        baseline: what it is compared with.
        names: of both, in this order; None: the functions' own names.
        parameters: as of `bench`.
        timer: as of `bench`.
        measuring: its time limits apply to each of the two.

    Raises:
        ModuleNotFoundError: the extra profiler is missing.
        RequestError: an argument cannot be used.
        Exception: whatever a function raises.
    """
    with _extra_named():
        from kernalyse.services.callables.benchmark import compare as measure

    return measure(candidate, baseline, names=names, parameters=parameters, timer=timer, measuring=measuring)


@contextmanager
def _extra_named() -> Iterator[None]:
    """Name the missing extra in the error of an import."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed, and measuring needs it: pip install 'kernalyse[profiler]'", name=error.name
        ) from error
