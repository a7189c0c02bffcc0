"""`kernalyse.bench` and `kernalyse.compare`; what they take is described there, in `kernalyse.timing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kernalyse.errors import RequestError
from kernalyse.measuring import Measuring
from kernalyse.revision import git_revision
from services.callables.callable_run import CallableRun, Desk, Work, refuse_no_function
from services.callables.record import Record
from services.callables.results import Bench, Comparison
from services.callables.session import Stopwatch
from services.callables.stopwatches import choose_stopwatch
from services.core import wire
from services.core.comparison import MIN_PAIR_COUNT
from services.core.errors import InvalidParameterError, KernalyseError
from services.core.model import MeasuringOptions, Revision, StopReason
from services.profiler.measuring.busy import Neighbours, open_use_meter
from services.profiler.measuring.clocks import open_clock_meter
from services.profiler.workloads.turns import Turns


def bench(
    function: Callable[[], object],
    *,
    name: str | None,
    parameters: Mapping[str, int],
    flop: float | None,
    bytes: float | None,
    dtype: str,
    category: str,
    timer: str,
    measuring: Measuring,
) -> Bench:
    with _request_errors(), _opened(timer, function=function) as stopwatch:
        work = Work(function, name or _name_of(function), parameters, flop, bytes, dtype, category)
        record = _record(work.name, stopwatch)
        run = CallableRun(0, work, _desk(stopwatch, measuring, record))
        run.start()
        return _bench(run, run.sample(), stopwatch, record)


def compare(
    judged: Callable[[], object],
    baseline: Callable[[], object],
    *,
    names: tuple[str, str] | None,
    parameters: Mapping[str, int],
    timer: str,
    measuring: Measuring,
) -> Comparison:
    with _request_errors(), _opened(timer, judged=judged, baseline=baseline) as stopwatch:
        judged_name, baseline_name = _different(_name_of(judged), _name_of(baseline)) if names is None else _checked(names)
        record = _record(f"{judged_name} against {baseline_name}", stopwatch)
        desk = _desk(stopwatch, measuring, record)
        runs = (
            CallableRun(0, Work(baseline, baseline_name, parameters), desk),
            CallableRun(1, Work(judged, judged_name, parameters), desk),
        )
        for run in runs:
            run.start()
        turns = Turns(*runs, on_activity=lambda _: None)
        paired = turns.compare(MIN_PAIR_COUNT)
        baseline_bench, judged_bench = (_bench(run, turns.stop_reason, stopwatch, record) for run in runs)
        record.write(paired)
        return Comparison(judged_bench, baseline_bench, paired, record)


def _bench(run: CallableRun, stop_reason: StopReason, stopwatch: Stopwatch, record: Record) -> Bench:
    return Bench(run.configuration, run.finish(stop_reason), stopwatch.device, stopwatch.description, stopwatch.notice, record)


def _record(title: str, stopwatch: Stopwatch) -> Record:
    revision = git_revision(Path.cwd())
    return Record(title, stopwatch, None if revision is None else Revision(*revision))


def _desk(stopwatch: Stopwatch, measuring: Measuring, record: Record) -> Desk:
    device = stopwatch.device
    return Desk(
        stopwatch,
        wire.decode(measuring.message(), MeasuringOptions),
        open_clock_meter(device),
        Neighbours(open_use_meter(device)),
        record.write,
    )


def _name_of(function: Callable[[], object]) -> str:
    """Its own; of what has none, such as a functools.partial, the name of what it calls or of its class."""
    inner = getattr(function, "func", function)
    name: str = getattr(inner, "__name__", type(inner).__name__)
    return "callable" if name == "<lambda>" else name


def _different(judged_name: str, baseline_name: str) -> tuple[str, str]:
    return (judged_name, baseline_name) if judged_name != baseline_name else (f"{judged_name} (judged)", f"{baseline_name} (baseline)")


def _checked(names: tuple[str, ...]) -> tuple[str, str]:
    if len(names) != 2 or len(set(names)) != 2 or not all(names):
        raise InvalidParameterError("argument names", found=repr(names), expected="two different names, the judged one's first")
    return names[0], names[1]


@contextmanager
def _opened(timer: str, **functions: object) -> Iterator[Stopwatch]:
    """functions: by the names of their arguments."""
    for name, function in functions.items():
        refuse_no_function(function, name)
    stopwatch = choose_stopwatch(timer)
    try:
        yield stopwatch
    finally:
        stopwatch.close()


@contextmanager
def _request_errors() -> Iterator[None]:
    """What is refused here is raised as what a service refuses."""
    try:
        yield
    except KernalyseError as error:
        raise RequestError(error.code, error.reason, error.message, error.metadata) from error
