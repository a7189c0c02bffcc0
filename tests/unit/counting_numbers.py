"""Numbers that count what is done with them: a definition carried out on them says how many flop it takes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Counter:
    flop: int = 0

    def number(self, value: float = 1.0) -> Number:
        return Number(value, self)

    def numbers(self, count: int) -> list[Number]:
        return [self.number() for _ in range(count)]


@dataclass
class Number:
    value: float
    counter: Counter = field(repr=False)

    def _done(self, value: float) -> Number:
        self.counter.flop += 1
        return Number(value, self.counter)

    def __add__(self, other: Number | float) -> Number:
        return self._done(self.value + _value(other))

    def __sub__(self, other: Number | float) -> Number:
        return self._done(self.value - _value(other))

    def __mul__(self, other: Number | float) -> Number:
        return self._done(self.value * _value(other))

    def __truediv__(self, other: Number | float) -> Number:
        return self._done(self.value / _value(other))

    def applied(self) -> Number:
        """One function of it: a root, an exponential, a logarithm."""
        return self._done(self.value)


def _value(number: Number | float) -> float:
    return number.value if isinstance(number, Number) else number


def total(numbers: list[Number]) -> Number:
    first, *others = numbers
    for other in others:
        first = first + other
    return first
