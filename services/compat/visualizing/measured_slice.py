"""The results that one chart shows: along one parameter, everything else held still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.compat.benchmarking.results import BenchmarkResult
from services.core.errors import InvalidParameterError

Problem = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class MeasuredSlice:
    """Results by kernel, in growing order of the parameter, and in words what the other parameters are."""

    param_name: str
    results: Mapping[str, Sequence[BenchmarkResult]]
    note: str

    @property
    def values(self) -> list[int]:
        """Of the parameter, that occur anywhere, growing."""
        return sorted({result.parameters[self.param_name] for group in self.results.values() for result in group})

    def at(self, kernel_name: str) -> dict[int, BenchmarkResult]:
        """By value of the parameter."""
        return {result.parameters[self.param_name]: result for result in self.results[kernel_name]}


def slice_along(results: Sequence[BenchmarkResult], param_name: str, fixed_params: Mapping[str, int]) -> MeasuredSlice:
    """One result for each kernel and value of `param_name`.

    Parameters that are neither `param_name` nor fixed are held at the largest values that every kernel was measured at, so
    that all points of one value of `param_name` are of one problem. Of several results for one problem, with other blocks
    say, the fastest counts.

    Raises:
        InvalidParameterError: no result has that parameter, or those fixed values; names what there is.
    """
    chosen = select(results, [param_name], fixed_params)
    fastest = {name: fastest_by_problem(group) for name, group in by_kernel(chosen).items()}
    shared = set.intersection(*(set(group) for group in fastest.values()))
    points: dict[str, list[BenchmarkResult]] = {}
    for name, group in fastest.items():
        problems = [problem for problem in group if problem in shared] if shared else list(group)
        points[name] = _largest_at_each_value([group[problem] for problem in problems], param_name)
    shown = [result for group in points.values() for result in group]
    return MeasuredSlice(param_name, points, describe_others(shown, [param_name]))


def select(results: Sequence[BenchmarkResult], param_names: Sequence[str], fixed_params: Mapping[str, int]) -> list[BenchmarkResult]:
    """Results that have all these parameters and these fixed values. Raises InvalidParameterError as `slice_along` does."""
    _check_names(results, [*param_names, *fixed_params])
    chosen = [
        result
        for result in results
        if all(name in result.parameters for name in param_names)
        and all(result.parameters.get(name) == value for name, value in fixed_params.items())
    ]
    if not chosen:
        raise _nothing_there(results, param_names, fixed_params)
    return chosen


def by_kernel(results: Iterable[BenchmarkResult]) -> dict[str, list[BenchmarkResult]]:
    groups: dict[str, list[BenchmarkResult]] = {}
    for result in results:
        groups.setdefault(result.kernel_name, []).append(result)
    return groups


def fastest_by_problem(results: Iterable[BenchmarkResult]) -> dict[Problem, BenchmarkResult]:
    """By all parameters and their values."""
    slowest_first = sorted(results, key=lambda result: -result.execution_time_ms)
    return {frozenset(result.parameters.items()): result for result in slowest_first}


def parameter_names(results: Iterable[BenchmarkResult]) -> list[str]:
    """In the order in which they first occur."""
    return list(dict.fromkeys(name for result in results for name in result.parameters))


def varying_names(results: Sequence[BenchmarkResult]) -> list[str]:
    """Parameters with more than one value."""
    return [name for name in parameter_names(results) if len({result.parameters.get(name) for result in results} - {None}) > 1]


def _largest_at_each_value(results: list[BenchmarkResult], param_name: str) -> list[BenchmarkResult]:
    def others(result: BenchmarkResult) -> tuple[int, ...]:
        return tuple(value for name, value in result.parameters.items() if name != param_name)

    largest: dict[int, BenchmarkResult] = {}
    for result in sorted(results, key=others):
        largest[result.parameters[param_name]] = result
    return [largest[value] for value in sorted(largest)]


def describe_others(shown: Sequence[BenchmarkResult], param_names: Sequence[str]) -> str:
    """What the parameters beside `param_names` are in these results, as in: M = 1024, K = N."""
    parts = []
    for name in parameter_names(shown):
        having = [result.parameters for result in shown if name in result.parameters]
        values = {parameters[name] for parameters in having}
        followed = [other for other in param_names if all(parameters[name] == parameters.get(other) for parameters in having)]
        if name not in param_names:
            parts.append(f"{name} = {followed[0] if followed else values.pop()}" if followed or len(values) == 1 else f"{name} varies")
    return ", ".join(parts)


def _check_names(results: Sequence[BenchmarkResult], names: Iterable[str]) -> None:
    known = parameter_names(results)
    for name in names:
        if name not in known:
            raise InvalidParameterError(
                f"parameter {name}",
                found="no such parameter in the results",
                expected=f"one of {', '.join(known)}" if known else "none, for the results have none",
                remedy="Check the spelling.",
            )


def _nothing_there(
    results: Sequence[BenchmarkResult], param_names: Sequence[str], fixed_params: Mapping[str, int]
) -> InvalidParameterError:
    measured = [
        f"{name} of {', '.join(map(str, sorted({result.parameters[name] for result in results if name in result.parameters})))}"
        for name in fixed_params
    ]
    wanted = " ".join((f"by {' and '.join(param_names)}", *(f"{name}={value}" for name, value in fixed_params.items())))
    return InvalidParameterError(
        f"results {wanted}",
        found="none",
        expected=f"what was measured: {'; '.join(measured)}" if measured else f"a kernel with {' and '.join(param_names)}",
        remedy="Choose other parameters or values.",
    )
