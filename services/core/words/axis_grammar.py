"""Values of a parameter as written on the command line.

N=128,256           these two
M=2**7..2**10       the powers 128, 256, 512, 1024
K=32..128:32        from 32 to 128 in steps of 32, both ends included
N=1,2**3..2**5,100  any mix
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from services.core.model import ArgumentDefinition, Axis, Dim3, Tie
from services.core.words.usage import UsageError

MAX_VALUE_COUNT: Final = 1_000_000
"""Far more than any sweep measures; few enough that a slip of the finger does not fill the memory."""

MAX_POWER_BITS: Final = 63
"""Parameters are 64-bit integers on every side."""

NAME: Final = re.compile(r"[A-Za-z_]\w*")
INTEGER: Final = re.compile(r"[+-]?\d{1,19}")
POWER: Final = re.compile(r"(\d{1,19})\*\*(\d{1,3})")
POWER_RANGE: Final = re.compile(r"(\d{1,19})\*\*(\d{1,3})\.\.(\d{1,19})\*\*(\d{1,3})")
STEP_RANGE: Final = re.compile(r"([+-]?\d{1,19})\.\.([+-]?\d{1,19}):(\d{1,19})")
FORMS: Final = "integers, b**e, b**e..b**f or lo..hi:step, separated by commas"


def parse_axes(texts: Sequence[str], flag: str = "-p") -> tuple[Axis, ...]:
    """One axis for each `flag`, in their order. Raises UsageError."""
    axes = tuple(parse_axis(text, flag) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"option {flag}", found=f"the name {name} {names.count(name)} times", expected="each name once")
    return axes


def parse_axis(text: str, flag: str = "-p") -> Axis:
    """`NAME=VALUES`. Raises UsageError."""
    name, _, values_text = text.partition("=")
    option = f"option {flag} {text}"
    if not NAME.fullmatch(name.strip()) or not values_text.strip():
        raise UsageError(option, found=f"'{text}'", expected=f"NAME=VALUES, with VALUES {FORMS}", remedy=f"For example: {flag} N=128,256")
    values: list[int] = []
    for item in values_text.split(","):
        values.extend(_item_values(option, "".join(item.split())))
        if len(values) > MAX_VALUE_COUNT:
            raise _too_many(option, len(values))
    return Axis(name.strip(), tuple(dict.fromkeys(values)))


def _item_values(option: str, item: str) -> Sequence[int]:
    if INTEGER.fullmatch(item):
        return (_bounded(option, int(item)),)
    if match := POWER.fullmatch(item):
        base, exponent = map(int, match.groups())
        return (_power(option, base, exponent),)
    if match := POWER_RANGE.fullmatch(item):
        return _powers(option, item, *map(int, match.groups()))
    if match := STEP_RANGE.fullmatch(item):
        return _steps(option, item, *map(int, match.groups()))
    if ".." in item and "**" not in item and ":" not in item:
        raise UsageError(
            option, found=f"'{item}'", expected="a range with its step, lo..hi:step", remedy=f"Write {item}:1 for every integer."
        )
    raise UsageError(option, found=f"'{item}'", expected=FORMS, remedy="For example: N=128,256 or N=2**7..2**10 or N=32..128:32")


def _powers(option: str, item: str, base: int, first: int, last_base: int, last: int) -> Sequence[int]:
    if base != last_base:
        raise UsageError(option, found=f"the bases {base} and {last_base} in '{item}'", expected="one base", remedy=f"Write {base}**…")
    if first > last:
        raise UsageError(option, found=f"'{item}', which goes down", expected="the smaller exponent first")
    return [_power(option, base, exponent) for exponent in range(first, last + 1)]


def _steps(option: str, item: str, low: int, high: int, step: int) -> Sequence[int]:
    if step == 0:
        raise UsageError(option, found=f"the step 0 in '{item}'", expected="a step of at least 1")
    if low > high:
        raise UsageError(option, found=f"'{item}', which goes down", expected="the smaller end first")
    count = (_bounded(option, high) - _bounded(option, low)) // step + 1
    if count > MAX_VALUE_COUNT:
        raise _too_many(option, count)
    return range(low, high + 1, step)


def _power(option: str, base: int, exponent: int) -> int:
    if base > 1 and exponent * (base.bit_length() - 1) > MAX_POWER_BITS:
        raise UsageError(option, found=f"{base}**{exponent}", expected="a number below 2**63")
    return _bounded(option, base**exponent)


def _bounded(option: str, value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise UsageError(option, found=str(value), expected="a number below 2**63")
    return value


def _too_many(option: str, count: int) -> UsageError:
    return UsageError(option, found=f"{count} values", expected=f"at most {MAX_VALUE_COUNT}", remedy="Choose a larger step.")


def parse_tie(text: str) -> Tie:
    """`M=N`: M always has the value of N. Raises UsageError."""
    name, source_name = _pair("--tie", text, "M=N")
    if not NAME.fullmatch(source_name):
        raise UsageError(
            f"option --tie {text}", found=f"'{source_name}'", expected="the name of a parameter", remedy="For example: --tie M=N"
        )
    return Tie(name, source_name)


def parse_argument(text: str) -> ArgumentDefinition:
    """`alpha=2.0`: a scalar argument and its value, an expression. Raises UsageError, InvalidExpressionError."""
    from services.core.expressions import parse_expression

    name, expression = _pair("--arg", text, "alpha=2.0")
    parse_expression(expression)
    return ArgumentDefinition(name, expression)


def parse_buffer(text: str) -> tuple[str, str]:
    """`a=N*K`: a pointer parameter and its element count, an expression. Raises UsageError, InvalidExpressionError."""
    from services.core.expressions import parse_expression

    name, expression = _pair("--buffer", text, "a=N*K")
    parse_expression(expression)
    return name, expression


def parse_blocks(text: str) -> tuple[Dim3, ...]:
    """`16x16,32x8`: threads per block in one to three directions, for each block. Raises UsageError."""
    return tuple(dict.fromkeys(_block(text, part.strip()) for part in text.split(",")))


def _block(text: str, block: str) -> Dim3:
    parts = block.lower().split("x")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and 0 < len(part) < 6 and int(part) > 0 for part in parts):
        raise UsageError(
            f"option --block {text}",
            found=f"'{block}'",
            expected="one to three positive integers, separated by x; several blocks separated by commas",
            remedy="For example: --block 16x16,32x8",
        )
    return Dim3(*map(int, parts))


def _pair(option: str, text: str, example: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition("="))
    if not NAME.fullmatch(name) or not value:
        raise UsageError(
            f"option {option} {text}", found=f"'{text}'", expected=f"NAME=VALUE, like {example}", remedy=f"For example: {option} {example}"
        )
    return name, value
