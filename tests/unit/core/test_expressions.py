"""kernalyse.services.core.expressions: arithmetic over parameters, and nothing else."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.core.errors import InvalidExpressionError
from kernalyse.services.core.expressions import MAX_DEPTH, MAX_TEXT_LENGTH, parse_expression

VALUES = {"M": 128, "N": 256, "K": 64, "block_x": 16, "block_y": 8}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2*M*N*K", 2 * 128 * 256 * 64),
        ("M + N*K", 128 + 256 * 64),
        ("(M + N)*K", (128 + 256) * 64),
        ("ceil_div(N + 1, block_x)", 17),
        ("-M + N", 128),
        ("-2**2", -4),
        ("2**3**2", 512),
        ("2**-1", 0.5),
        ("7 // 2 * 2 + 7 % 2", 7),
        ("7 / 2", 3.5),
        ("10.5 + .5 + 1e3", 1011.0),
        ("0x10", 16),
        ("min(M, N, K) + max(1, 2)", 66),
        ("log2(N) + sqrt(K) + abs(-3) + ceil(1.2) + floor(1.8)", 8 + 8 + 3 + 2 + 1),
        ("block_x*block_y <= 1024 and N % 16 == 0", True),
        ("not (M < N) or K != 64", False),
        ("M < N <= 256", True),
        ("M < N < 256", False),
        ("1 < 2 == 2", True),
    ],
)
def test_value(text: str, expected: float) -> None:
    assert parse_expression(text).evaluate(VALUES) == expected


@given(st.recursive(
    st.integers(0, 50).map(str) | st.sampled_from(["M", "N"]),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=8,
))  # fmt: skip
def test_sums_and_products_agree_with_python(text: str) -> None:
    values = {"M": 3, "N": 5}
    assert parse_expression(text).evaluate(values) == eval(text, {"__builtins__": {}}, values)


def test_names_are_the_parameters_it_needs() -> None:
    assert parse_expression("2*M*N + min(K, 3)").names == {"M", "N", "K"}


@pytest.mark.parametrize("word", ["android", "order", "nothing"])
def test_a_name_may_begin_like_an_operator(word: str) -> None:
    assert parse_expression(f"{word} + 1").evaluate({word: 2}) == 3


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "2*", "N K", "N +* K", "(N", "N)", "N; K", "N = 2", "N[0]", "N.real", "'text'", "lambda: 1",
        "__import__('os')", "open('f')", "[1]", "N if K else 2", "1_000", "f(N)", "ceil_div(N)", "min()", "sqrt(1, 2)",
        "-" * (MAX_DEPTH + 10) + "1", "1" + "+1" * MAX_TEXT_LENGTH,
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidExpressionError):
        parse_expression(text)


def test_brackets_may_nest_as_deep_as_formulas_need() -> None:
    assert parse_expression("(" * (MAX_DEPTH // 2) + "1" + ")" * (MAX_DEPTH // 2)).evaluate({}) == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("N*Q", "the name Q"),
        ("N / (M - 128)", "division by zero"),
        ("N % 0", "zero"),
        ("N**N**N", r"\*\*"),
        ("9**9**9", r"\*\*"),
        ("1e29 * 100", "10"),
        ("sqrt(-1)", "domain"),
        ("log2(0)", "domain|positive"),
        ("(-8) ** 0.5", "root of the negative"),
    ],
)
def test_what_has_no_value_is_refused_and_named(text: str, found: str) -> None:
    with pytest.raises(InvalidExpressionError, match=found):
        parse_expression(text).evaluate(VALUES)


def test_a_tower_of_powers_ends_at_once() -> None:
    start = time.process_time()
    with pytest.raises(InvalidExpressionError):
        parse_expression("**".join(["99"] * 40)).evaluate({})
    assert time.process_time() - start < 1


def test_a_count_must_be_whole() -> None:
    assert parse_expression("N / 2").evaluate_integer(VALUES) == 128
    with pytest.raises(InvalidExpressionError, match="whole number"):
        parse_expression("N / 3").evaluate_integer(VALUES)


def test_the_place_of_the_mistake_is_named() -> None:
    with pytest.raises(InvalidExpressionError, match="at character 3"):
        parse_expression("N $ 2")
