"""kernalyse.services.analyzer.analysis.history: its distributions agree with those of SciPy 1.17, whose values stand here."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernalyse.services.analyzer.analysis.history import mann_whitney_p_value, student_p_value, student_quantile

EXACT = 1e-9


@pytest.mark.parametrize(
    ("t", "freedom", "expected"),
    [
        (0.0, 3, 1.0),
        (1e-200, 3, 1.0),
        (0.5, 1, 0.7048327646991335),
        (63.0, 1, 0.010104227213323793),
        (-4.3, 2, 0.05005715411709159),
        (1e-06, 4, 0.99999925),
        (3.355, 8, 0.010005750543262713),
        (-25.0, 8, 7.0114937133198786e-09),
        (1.2, 18, 0.24569579560631127),
        (6.5, 98, 3.3731590392640275e-09),
        (0.01, 1998, 0.9920222857121997),
        (3.1, 1998, 0.001962199411191104),
        (40.0, 30, 1.3726045194406417e-27),
        (1e200, 5, 0.0),
    ],
)
def test_the_two_sided_p_value_of_students_t(t: float, freedom: int, expected: float) -> None:
    """2 * scipy.special.stdtr(freedom, -abs(t))."""
    assert student_p_value(t, freedom) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.706204736174694),
        (0.975, 2, 4.302652729749462),
        (0.975, 4, 2.7764451051977934),
        (0.975, 9, 2.262157162798205),
        (0.975, 38, 2.0243941639119694),
        (0.975, 1998, 1.9611520148367054),
        (0.995, 1, 63.656741162871526),
        (0.995, 2, 9.924843200918287),
        (0.995, 4, 4.604094871349992),
        (0.995, 9, 3.249835541592126),
        (0.995, 38, 2.7115576019130825),
        (0.995, 1998, 2.578292252720635),
    ],
)
def test_quantiles_of_students_t(probability: float, freedom: int, expected: float) -> None:
    """scipy.special.stdtrit(freedom, probability)."""
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 0.007936507936507936),
        ([1, 5, 3, 9, 7], [6, 2, 8, 4, 10, 12], 0.42857142857142855),
        ([1, 2, 2, 4, 5], [2, 7, 5, 9, 10], 0.09523809523809523),
        ([3] * 5, [3] * 5, 1.0),
        ([7 * i % 23 for i in range(20)], [5 * i % 19 + 4 for i in range(17)], 0.556706494734255),
        ([7 * i % 23 for i in range(21)], [5 * i % 19 + 4 for i in range(30)], 0.38335510665350747),
        ([i / 10 for i in range(40)], [i / 7 + 1 for i in range(25)], 0.01521590424344142),
        ([1] * 21, [1] * 21, 1.0),
        (list(range(50)), list(range(100, 150)), 7.066071930388932e-18),
    ],
)
def test_the_rank_test_of_mann_and_whitney(one: list[float], other: list[float], expected: float) -> None:
    """scipy.stats.mannwhitneyu, exact up to 20 values a side, asymptotic for more; with ties and without, from either side."""
    for first, second in ((one, other), (other, one)):
        assert mann_whitney_p_value(np.array(first, dtype=float), np.array(second, dtype=float)) == pytest.approx(expected, rel=EXACT)


def test_the_exact_rank_test_counts_every_order_once() -> None:
    ranks = np.arange(20.0)
    assert mann_whitney_p_value(ranks, ranks + 100) == pytest.approx(2 / math.comb(40, 20), rel=EXACT)
