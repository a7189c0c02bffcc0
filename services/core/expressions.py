"""Arithmetic over named integers: buffer shapes, flop and byte formulas, launch configurations, sweep constraints.

The grammar is small and closed; nothing is ever evaluated as Python.

    N*K        2*M*N*K + 10.5        ceil_div(N, block_x)        block_x*block_y <= 1024 and N % 16 == 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from kernalyse.services.core.errors import InvalidExpressionError

Number = int | float | bool

MAX_TEXT_LENGTH: Final = 2_000  # longer than any formula of a kernel; parsing stays in the microseconds
MAX_MAGNITUDE: Final = 1e30  # above any count a device could reach; keeps N**N**N from filling the memory
MAX_DEPTH: Final = 100  # of nested brackets; deeper ones would reach Python's own recursion limit

GRAMMAR: Final = r"""
    ?start: either
    ?either: both | both ("or" both)+                       -> either
    ?both: negation | negation ("and" negation)+            -> both
    ?negation: comparison | "not" negation                  -> negate
    ?comparison: sum | sum (COMPARE sum)+                   -> compare
    ?sum: product | product (SUM_OPERATOR product)+         -> arithmetic
    ?product: signed | signed (PRODUCT_OPERATOR signed)+    -> arithmetic
    ?signed: power | SUM_OPERATOR signed                    -> sign
    ?power: atom | atom POWER_OPERATOR signed               -> power
    ?atom: NUMBER                                           -> number
         | NAME "(" [either ("," either)*] ")"              -> call
         | NAME                                             -> name
         | "(" either ")"
    COMPARE: "<=" | ">=" | "==" | "!=" | "<" | ">"
    SUM_OPERATOR: "+" | "-"
    PRODUCT_OPERATOR: "//" | "*" | "/" | "%"
    POWER_OPERATOR.2: "**"
    NAME: /(?!(and|or|not)\b)[A-Za-z_][A-Za-z_0-9]*/
    NUMBER: /0[xX][0-9a-fA-F]+|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?/
    %ignore /\s+/
"""


def _ceil_div(numerator: Number, denominator: Number) -> Number:
    return -(-numerator // denominator)


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Number], int]]] = {
    # name: (function, number of arguments; -1 for one or more)
    "ceil_div": (_ceil_div, 2),
    "ceil": (math.ceil, 1),
    "floor": (math.floor, 1),
    "log2": (math.log2, 1),
    "sqrt": (math.sqrt, 1),
    "abs": (abs, 1),
    "min": (min, -1),
    "max": (max, -1),
}


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=True)


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `names` are the parameters it needs."""

    text: str
    names: frozenset[str]
    _tree: Tree[Token] | Token

    def evaluate(self, values: Mapping[str, int]) -> Number:
        """Return the value of the expression for these parameters.

        Raises:
            InvalidExpressionError: a name without a value, a division by zero, or a result out of range.
        """
        try:
            return _evaluate(self._tree, values)
        except KeyError as error:
            raise InvalidExpressionError(
                f"expression '{self.text}'",
                found=f"the name {error.args[0]}",
                expected=f"one of {', '.join(sorted(values)) or 'no names at all'}",
                remedy="Check the spelling, or give the parameter a value.",
            ) from error
        except (ZeroDivisionError, OverflowError, ValueError) as error:
            shown = ", ".join(f"{name}={values[name]}" for name in sorted(self.names & values.keys()))
            raise InvalidExpressionError(
                f"expression '{self.text}' with {shown or 'no parameters'}",
                found=str(error),
                expected=f"a number below {MAX_MAGNITUDE:g}",
                remedy="Change the expression or the values.",
            ) from error

    def evaluate_integer(self, values: Mapping[str, int]) -> int:
        """Return the value, which must be an integer.

        Raises:
            InvalidExpressionError: as of `evaluate`, or the value has a fraction.
        """
        value = self.evaluate(values)
        if value != int(value):
            raise InvalidExpressionError(
                f"expression '{self.text}'",
                found=repr(value),
                expected="a whole number",
                remedy="Use // or ceil_div for a division.",
            )
        return int(value)


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Expression:
    """Parse `text`.

    Raises:
        InvalidExpressionError: names the position where the text stops being arithmetic.
    """
    if not text.strip() or len(text) > MAX_TEXT_LENGTH:
        raise InvalidExpressionError(
            f"expression '{text[:60]}'",
            found=f"{len(text)} characters",
            expected=f"arithmetic of 1 to {MAX_TEXT_LENGTH} characters",
            remedy="Write for example 2*M*N*K.",
        )
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        position = getattr(error, "pos_in_stream", None)
        place = text[position:][:20] if isinstance(position, int) and position >= 0 else ""
        raise InvalidExpressionError(
            f"expression '{text}'",
            found=f"'{place}' at character {position + 1}" if place and position is not None else "its end",
            expected="arithmetic with + - * / // % **, comparisons, and, or, not, " + ", ".join(FUNCTIONS),
            remedy="Correct that place.",
        ) from error
    _check(tree, text, depth=0)
    names = frozenset(str(node.children[0]) for node in _subtrees(tree) if node.data == "name")
    return Expression(text, names, tree)


def _subtrees(tree: Tree[Token] | Token) -> list[Tree[Token]]:
    return list(tree.iter_subtrees()) if isinstance(tree, Tree) else []


def _check(node: Tree[Token] | Token | None, text: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidExpressionError(
            f"expression '{text[:60]}…'",
            found=f"more than {MAX_DEPTH} nested brackets or operators",
            expected=f"at most {MAX_DEPTH}",
            remedy="Flatten it.",
        )
    if not isinstance(node, Tree):
        return
    if node.data == "call":
        name = str(node.children[0])
        arguments = [child for child in node.children[1:] if child is not None]
        if name not in FUNCTIONS:
            raise InvalidExpressionError(
                f"expression '{text}'",
                found=f"the function {name}",
                expected="one of " + ", ".join(FUNCTIONS),
                remedy="Use one of these.",
            )
        argument_count = FUNCTIONS[name][1]
        if (argument_count == -1 and not arguments) or (argument_count >= 0 and len(arguments) != argument_count):
            raise InvalidExpressionError(
                f"function {name} in expression '{text}'",
                found=f"{len(arguments)} arguments",
                expected="at least 1" if argument_count == -1 else str(argument_count),
                remedy="Give it that many.",
            )
    for child in node.children:
        _check(child, text, depth + 1)


def _evaluate(node: Tree[Token] | Token, values: Mapping[str, int]) -> Number:
    assert isinstance(node, Tree)
    children = [child for child in node.children if child is not None]
    match node.data:
        case "number":
            return _number(str(children[0]))
        case "name":
            return values[str(children[0])]
        case "call":
            function = FUNCTIONS[str(children[0])][0]
            return _bounded(function(*(_evaluate(child, values) for child in children[1:])))
        case "either":
            return any(_evaluate(child, values) for child in children)
        case "both":
            return all(_evaluate(child, values) for child in children)
        case "negate":
            return not _evaluate(children[0], values)
        case "sign":
            value = _evaluate(children[1], values)
            return -value if str(children[0]) == "-" else +value
        case "power":
            return _power(_evaluate(children[0], values), _evaluate(children[2], values))
        case "compare":
            return _compare(children, values)
        case _:
            return _fold(children, values)


def _number(text: str) -> Number:
    if text[:2].lower() == "0x":
        return int(text, 16)
    return int(text) if text.isdigit() else float(text)


def _fold(children: list[Tree[Token] | Token], values: Mapping[str, int]) -> Number:
    result = _evaluate(children[0], values)
    for operator, operand in zip(children[1::2], children[2::2], strict=True):
        result = _bounded(_apply(str(operator), result, _evaluate(operand, values)))
    return result


def _apply(operator: str, left: Number, right: Number) -> Number:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//":
            return left // right
        case "/":
            return left / right
        case _:
            return left % right


def _power(base: Number, exponent: Number) -> Number:
    if abs(base) > 1 and exponent * math.log10(abs(base)) > math.log10(MAX_MAGNITUDE):
        raise OverflowError(f"{base}**{exponent}")
    if base < 0 and exponent != int(exponent):
        raise ValueError(f"a root of the negative number {base}")
    return _bounded(base**exponent)


def _compare(children: list[Tree[Token] | Token], values: Mapping[str, int]) -> Number:
    left = _evaluate(children[0], values)
    for operator, operand in zip(children[1::2], children[2::2], strict=True):
        right = _evaluate(operand, values)
        match str(operator):
            case "<=":
                holds = left <= right
            case ">=":
                holds = left >= right
            case "==":
                holds = left == right
            case "!=":
                holds = left != right
            case "<":
                holds = left < right
            case _:
                holds = left > right
        if not holds:
            return False
        left = right
    return True


def _bounded(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError("a result that is not finite")
    if abs(value) > MAX_MAGNITUDE:
        raise OverflowError(f"a result of about 10**{int(math.log10(abs(value)))}")
    return value
