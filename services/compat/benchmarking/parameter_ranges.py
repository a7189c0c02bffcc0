"""Which values the integer parameters of a kernel take: ranges by position or by name, the rest follow the last one."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from services.compat.benchmarking.kernel_config import KernelConfig
from services.core.errors import InvalidParameterError, UnknownParameterError
from services.core.model import Axis, Tie

Range = Iterable[int]


@dataclass(frozen=True, slots=True)
class ParameterRanges:
    """What a caller of benchmark has given: first by position, then by name."""

    positional: tuple[tuple[int, ...], ...]
    named: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, positional: Sequence[Range], named: Mapping[str, Range]) -> Self:
        """Raises InvalidParameterError for what is no list of whole numbers."""
        return cls(
            tuple(_values(f"range {index + 1}", values) for index, values in enumerate(positional)),
            {name: _values(f"range {name}", values) for name, values in named.items()},
        )

    def check(self, kernels: Sequence[KernelConfig]) -> None:
        """Raises UnknownParameterError for a name that no kernel has."""
        known = {name for kernel in kernels for name in kernel.parameter_names}
        for name in self.named:
            if name not in known:
                raise UnknownParameterError(
                    f"range {name}",
                    found=f"no integer parameter of that name in {', '.join(kernel.kernel_name for kernel in kernels)}",
                    expected=f"one of {', '.join(sorted(known))}" if known else "none, for they have none",
                    remedy="Check the spelling.",
                )

    def of(self, kernel: KernelConfig) -> tuple[tuple[Axis, ...], tuple[Tie, ...]]:
        """Axes in the order of the kernel's parameters. A parameter without a range takes, value by value, that of the last
        range given.

        Raises:
            InvalidParameterError: more ranges than parameters, one given twice, or none at all.
        """
        names = kernel.parameter_names
        if len(self.positional) > len(names):
            raise InvalidParameterError(
                f"ranges of kernel {kernel.kernel_name}",
                found=f"{len(self.positional)} by position",
                expected=f"at most {len(names)}, one for each of its integer parameters ({', '.join(names) or 'it has none'})",
                remedy="Give ranges by name: N=[…]. A kernel takes those it has a parameter for.",
            )
        given = dict(zip(names, self.positional, strict=False))
        for name, values in self.named.items():
            if name in given:
                raise InvalidParameterError(
                    f"range {name} of kernel {kernel.kernel_name}",
                    found="one by position and one by name",
                    expected="one of the two",
                    remedy="Leave one out.",
                )
            if name in names:
                given[name] = values
        if names and not given:
            raise InvalidParameterError(
                f"ranges of kernel {kernel.kernel_name}",
                found=f"none for its integer parameters {', '.join(names)}",
                expected="at least one",
                remedy=f"Give one, for example {names[0]}=[1024].",
            )
        last = next(reversed(given), "")
        axes = tuple(Axis(name, given[name]) for name in names if name in given)
        return axes, tuple(Tie(name, last) for name in names if name not in given)


def _values(subject: str, values: Any) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(value) for value in values)
    except TypeError:
        numbers = ()
    if not numbers:
        raise InvalidParameterError(
            subject, found=repr(values)[:80], expected="a list of whole numbers, such as [128, 256]", remedy="Correct it."
        )
    return numbers
