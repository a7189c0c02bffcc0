"""Two traces held against each other, by definitions in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.analysis.comparison import kernel_comparison, layer_comparison, normalize_names
from kernalyse.services.analyzer.tables.base import COUNT, TEXT
from kernalyse.services.analyzer.tables.derived import KERNEL_COMPARISON, LAYER_COMPARISON
from tests.examples import examples

Kernels = dict[str | None, tuple[int, int]]
"""Launches and their time by name."""

# Three forms, each with two names, and a name without any.
FORM_OF = {"f<1>": "f", "f<2>": "f", "g(int)": "g", "g(float)": "g", "plain": "plain", "other": "other", None: None}


def frame(kernels: Kernels, name: str = "kernel_name", **more: int) -> pl.LazyFrame:
    rows = [{name: key, "launch_count": count, "duration_sum_ns": time, **more} for key, (count, time) in kernels.items()]
    return pl.LazyFrame(rows, schema={name: TEXT, "launch_count": COUNT, "duration_sum_ns": COUNT, **dict.fromkeys(more, COUNT)})


sides = st.dictionaries(st.sampled_from(list(FORM_OF)), st.tuples(st.integers(1, 9), st.integers(0, 50)))


def paired(after: Kernels, before: Kernels) -> Counter[tuple[frozenset[str | None], frozenset[str | None]]]:
    """Names of each row: equal ones first, of what is left those of one form."""
    found = [(frozenset([name]), frozenset([name])) for name in after.keys() & before.keys()]
    groups: defaultdict[str | None, tuple[set[str | None], set[str | None]]] = defaultdict(lambda: (set(), set()))
    for side, kernels, other in ((0, after, before), (1, before, after)):
        for name in kernels.keys() - other.keys():
            groups[FORM_OF[name]][side].add(name)
    return Counter([*found, *((frozenset(candidate), frozenset(baseline)) for candidate, baseline in groups.values())])


@given(sides, sides)
@examples(200)
def test_every_launch_counts_once_on_its_side(after: Kernels, before: Kernels) -> None:
    rows = kernel_comparison(frame(after, duration_median_ns=1), frame(before, duration_median_ns=1)).collect()
    assert set(rows.columns) == set(KERNEL_COMPARISON.column_names) - {"run_id", "event_index", "baseline_run_id"}
    expected: Counter[tuple[object, ...]] = Counter()
    for (candidate, baseline), count in paired(after, before).items():
        sums = [[side[name][figure] for name in names] for side, names in ((after, candidate), (before, baseline)) for figure in (0, 1)]
        launches, time, launches_before, time_before = (sum(values) if values else None for values in sums)
        occurrence = "MATCHED" if candidate and baseline else "NEW" if candidate else "GONE"
        delta = (time or 0) - (time_before or 0)
        expected[occurrence, len(candidate) or None, len(baseline) or None, launches, launches_before, time, time_before, delta] += count
    columns = ("occurrence", "name_count", "baseline_name_count", "launch_count", "baseline_launch_count")
    found = rows.select(*columns, "duration_sum_ns", "baseline_duration_sum_ns", "duration_delta_ns").rows()
    assert Counter(found) == expected

    total_delta = sum(time for _, time in after.values()) - sum(time for _, time in before.values())
    assert rows["duration_delta_ns"].sum() == total_delta
    if total_delta:
        assert rows["delta_share_ratio"].to_list() == pytest.approx([delta / total_delta for delta in rows["duration_delta_ns"]])
    else:
        assert rows["delta_share_ratio"].null_count() == rows.height
    sizes = rows["duration_delta_ns"].abs().to_list()
    assert sizes == sorted(sizes, reverse=True)


def test_more_launches_and_slower_launches_are_told_apart() -> None:
    candidate = frame({"more": (4, 40), "slower": (2, 40)}, duration_median_ns=10)
    rows = kernel_comparison(candidate, frame({"more": (2, 20), "slower": (2, 20)}, duration_median_ns=10)).collect()
    ratios = {row["kernel_name"]: (row["duration_ratio"], row["duration_per_launch_ratio"]) for row in rows.rows(named=True)}
    assert ratios == {"more": (2.0, 1.0), "slower": (2.0, 2.0)}


def test_a_launch_that_was_held_up_moves_the_mean_and_not_the_median() -> None:
    held_up, two_names = frame({"k": (10, 1090)}, duration_median_ns=10), frame({"f<1>": (1, 5), "f<2>": (1, 6)}, duration_median_ns=5)
    before = pl.concat([frame({"k": (10, 100)}, duration_median_ns=10), frame({"f<3>": (1, 5)}, duration_median_ns=5)])
    rows = kernel_comparison(pl.concat([held_up, two_names]), before).collect()
    ratios = {row["kernel_name"]: (row["duration_per_launch_ratio"], row["duration_median_ratio"]) for row in rows.rows(named=True)}
    assert ratios == {"k": (10.9, 1.0), "f": (1.1, None)}


def test_layers_of_one_name_count_together_whatever_tells_them() -> None:
    candidate = pl.concat([frame({"a": (1, 10)}, "layer", call_count=1), frame({"a": (2, 5), None: (1, 1)}, "layer", call_count=2)])
    rows = layer_comparison(candidate, frame({"a": (3, 12)}, "layer", call_count=3)).collect()
    assert set(rows.columns) == set(LAYER_COMPARISON.column_names) - {"run_id", "event_index", "baseline_run_id"}
    assert rows.select("occurrence", "layer", "call_count", "launch_count", "duration_delta_ns").rows() == [
        ("MATCHED", "a", 3, 3, 3),
        ("NEW", None, 2, 1, 1),
    ]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("void gemm<float, Tile<128, Shape<8> > >(float const*, int)", "gemm"),
        ("void at::native::(anonymous namespace)::cat<int>(A<int>, (B)2)", "at::native::cat"),
        ("void at::native::<unnamed>::cat<2>(int)", "at::native::cat"),
        ("kernel_0x7f3a_at", "kernel__at"),
        ("triton_poi_fused_add_12", "triton_poi_fused_add"),
        ("aten::cat, op_id = 992477", "aten::cat"),
        ("aten::linear, seq = 5, sizes = [[2, 3], [3]], input_op_ids = [(1,0)]", "aten::linear"),
        ("nn.Module: Linear_3", "nn.Module: Linear_3"),
        ("sm80_xmma_gemm_f32", "sm80_xmma_gemm_f32"),
        ("<" * 20 + "x" + ">" * 20 + "f", "f"),
        (None, None),
    ],
)
def test_the_form_of_a_name(name: str | None, form: str | None) -> None:
    assert normalize_names(pl.Series([name], dtype=TEXT)).to_list() == [form]
