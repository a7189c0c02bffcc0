"""kernalyse.services.profiler.workloads.sweeps.plan: what a sweep expands to, and every way in which it can be wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.core.errors import (
    InvalidExpressionError,
    InvalidParameterError,
    KernalyseError,
    TooManyConfigurationsError,
    UnknownKernelError,
    UnknownParameterError,
)
from kernalyse.services.core.model import (
    ArgumentDefinition,
    Axis,
    BufferDefinition,
    BufferRole,
    DataType,
    Dim3,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    MeasuringOptions,
    Pairing,
    ParameterDefinition,
    Rival,
    SearchStrategy,
    Tie,
)
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.workloads.sweeps.plan import SweepPlan, plan_sweep

CATALOG = load_catalog()
MAX_COUNT = 10_000
SOURCE = KernelSource(
    "own.cu",
    "__global__ void scale(const float *a, float *b, float alpha, int N, int M) {"
    " int i = threadIdx.x; if (i < N * M) b[i] = alpha * a[i]; }",
)
SCALE = KernelDefinition(
    kernel_name="scale",
    source_file_name="own.cu",
    launch=LaunchDefinition(block=("min(N, 256)",), grid=("ceil_div(N*M, block_x)",)),
    parameters=(ParameterDefinition("N", (64, 128)), ParameterDefinition("M", (1, 2, 3), min_value=0)),
    buffers=(
        BufferDefinition("a", ("N", "M"), DataType.FLOAT32, BufferRole.INPUT),
        BufferDefinition("b", ("N", "M"), DataType.FLOAT32, BufferRole.OUTPUT),
    ),
    arguments=(ArgumentDefinition("alpha", "2.0"),),
)
SELECTION = KernelSelection("scale", SOURCE, SCALE)
SWEEP = KernelSweep((SELECTION,))
SEARCH = replace(SWEEP, strategy=SearchStrategy.HALVING)


def plan(sweep: KernelSweep, max_configuration_count: int = MAX_COUNT) -> SweepPlan:
    return plan_sweep(sweep, CATALOG, max_configuration_count)


def expanded(sweep: KernelSweep) -> list[dict[str, int]]:
    return [dict(configuration.values) for configuration in plan(sweep).configurations()]


# ---------------------------------------------------------------- expansion


def test_parameters_without_axis_take_the_default_values_last_one_fastest() -> None:
    assert expanded(SWEEP) == [{"N": n, "M": m} for n, m in product((64, 128), (1, 2, 3))]


def test_axes_vary_in_the_order_given_first_one_slowest() -> None:
    sweep = replace(SWEEP, axes=(Axis("M", (5, 4)), Axis("N", (10, 30, 20))))
    assert expanded(sweep) == [{"N": n, "M": m} for m in (5, 4) for n in (10, 30, 20)]


def test_values_keep_the_order_of_the_definition_whatever_the_axes() -> None:
    configuration = next(plan(replace(SWEEP, axes=(Axis("M", (5,)),))).configurations())
    assert [(parameter.name, parameter.value) for parameter in configuration.parameters] == [("N", 64), ("M", 5)]


def test_tie_follows_its_source() -> None:
    sweep = replace(SWEEP, axes=(Axis("N", (7, 9)),), ties=(Tie("M", "N"),))
    assert expanded(sweep) == [{"N": 7, "M": 7}, {"N": 9, "M": 9}]


def test_chained_ties_are_resolved_in_any_order() -> None:
    definition = replace(SCALE, parameters=(*SCALE.parameters, ParameterDefinition("K", (1,))))
    sweep = KernelSweep((replace(SELECTION, definition=definition),), (Axis("K", (3,)),), (Tie("N", "M"), Tie("M", "K")))
    assert expanded(sweep) == [{"N": 3, "M": 3, "K": 3}]


def test_constraint_leaves_configurations_out_and_indexes_stay_dense() -> None:
    chosen = plan(replace(SWEEP, where="N*M >= 192"))
    configurations = list(chosen.configurations())
    assert [dict(one.values) for one in configurations] == [{"N": 64, "M": 3}, {"N": 128, "M": 2}, {"N": 128, "M": 3}]
    assert [one.configuration_index for one in configurations] == [0, 1, 2]
    assert chosen.configuration_count == 3


def test_constraint_may_name_the_block() -> None:
    assert expanded(replace(SWEEP, where="block_x < 128 and M == 1")) == [{"N": 64, "M": 1}]
    assert expanded(replace(SWEEP, where="block_x * block_y == 32 and M == 1", blocks=(Dim3(8, 4),))) == [
        {"N": n, "M": 1} for n in (64, 128)
    ]


def test_block_is_the_requests_or_the_definitions() -> None:
    assert next(plan(SWEEP).configurations()).block == Dim3(64)
    assert next(plan(replace(SWEEP, blocks=(Dim3(16, 16),))).configurations()).block == Dim3(16, 16)


def test_kernels_vary_slowest_and_an_axis_applies_to_those_that_have_it() -> None:
    fill = KernelSource("fill.cu", "__global__ void fill(float *a, int N) { a[0] = N; }")
    other = replace(SCALE, kernel_name="fill", parameters=(ParameterDefinition("N", (1, 2)),), buffers=SCALE.buffers[:1], arguments=())
    other = replace(other, buffers=(replace(SCALE.buffers[1], name="a", shape=("N",)),), launch=LaunchDefinition(("1",), ("N",)))
    sweep = KernelSweep((SELECTION, KernelSelection("fill", fill, other)), (Axis("M", (4,)), Axis("N", (8, 9))))
    found = [(one.kernel.definition.kernel_name, dict(one.values)) for one in plan(sweep).configurations()]
    assert found == [("scale", {"N": 8, "M": 4}), ("scale", {"N": 9, "M": 4}), ("fill", {"N": 8}), ("fill", {"N": 9})]


def test_arguments_of_the_request_replace_those_of_the_definition() -> None:
    kernel = plan(replace(SWEEP, arguments=(ArgumentDefinition("alpha", "N / 2"),))).kernels[0]
    assert kernel.arguments == (ArgumentDefinition("alpha", "N / 2"),)
    assert plan(SWEEP).kernels[0].arguments == (ArgumentDefinition("alpha", "2.0"),)


def test_catalogue_kernels_come_with_source_and_definition() -> None:
    kernel = plan(KernelSweep((KernelSelection("saxpy"),))).kernels[0]
    assert "__global__" in kernel.source.text
    assert kernel.definition.kernel_name == "saxpy"


def test_definition_of_inline_source_is_derived() -> None:
    sweep = KernelSweep((KernelSelection("scale", SOURCE),), (Axis("N", (64,)), Axis("M", (2,))), arguments=SCALE.arguments)
    derived = plan(sweep)
    definition = derived.kernels[0].definition
    assert {buffer.name for buffer in definition.buffers} == {"a", "b"}
    assert derived.kernels[0].arguments == SCALE.arguments
    assert derived.notices  # what was assumed is said


axis_values = st.lists(st.integers(1, 500), min_size=1, max_size=5)


@given(axis_values, axis_values, st.integers(1, 2_000))
def test_count_is_that_of_the_configurations_listed(n_values: list[int], m_values: list[int], bound: int) -> None:
    sweep = replace(SWEEP, axes=(Axis("N", tuple(n_values)), Axis("M", tuple(m_values))), where=f"N*M <= {bound}")
    expected = [{"N": n, "M": m} for n, m in product(n_values, m_values) if n * m <= bound]
    if expected:
        assert expanded(sweep) == expected
        assert plan(sweep).configuration_count == len(expected)
    else:
        with pytest.raises(InvalidParameterError, match="none of"):
            plan(sweep)


def test_what_is_done_or_failed_is_left_out_and_keeps_its_index() -> None:
    chosen = plan(replace(SWEEP, done_configuration_indexes=(0,), failed_configuration_indexes=(4,), process_count=2, order_seed=1))
    left = [planned.configuration_index for process_index in range(2) for planned in chosen.to_measure(process_index)]
    assert sorted(left) == [1, 2, 3, *range(5, 12)]
    assert (chosen.configuration_count, chosen.completed_count(0), chosen.completed_count(1)) == (12, 2, 6)


# ---------------------------------------------------------------- refusals


def test_sweep_over_the_limit_is_refused_at_once_with_limit_and_count() -> None:
    values = tuple(range(1, 10_001))
    start = time.process_time()
    with pytest.raises(TooManyConfigurationsError, match="found 100000000 configurations; expected at most 10000"):
        plan(replace(SWEEP, axes=(Axis("N", values), Axis("M", values))))
    assert time.process_time() - start < 1


def test_limit_itself_is_accepted() -> None:
    assert plan(SWEEP, max_configuration_count=6).configuration_count == 6
    with pytest.raises(TooManyConfigurationsError):
        plan(SWEEP, max_configuration_count=5)


REFUSED: list[tuple[str, KernelSweep, type[KernalyseError], str]] = [
    ("no kernel", KernelSweep(()), InvalidParameterError, "found no kernel"),
    ("kernel twice", KernelSweep((SELECTION, SELECTION)), InvalidParameterError, "the same kernel twice"),
    ("misspelt kernel", KernelSweep((KernelSelection("saxby"),)), UnknownKernelError, "perhaps saxpy"),
    ("unknown kernel", KernelSweep((KernelSelection("q"),)), UnknownKernelError, "one of .*saxpy"),
    ("unknown axis", replace(SWEEP, axes=(Axis("Q", (1,)),)), UnknownParameterError, "axis Q: .*one of M, N"),
    ("axis twice", replace(SWEEP, axes=(Axis("N", (1,)), Axis("N", (2,)))), InvalidParameterError, "axis N: found 2 times"),
    ("axis without values", replace(SWEEP, axes=(Axis("N", ()),)), InvalidParameterError, "parameter N of kernel scale: found no value"),
    ("zero", replace(SWEEP, axes=(Axis("N", (4, 0)),)), InvalidParameterError, "parameter N of kernel scale: found 0; expected at least 1"),
    ("negative", replace(SWEEP, axes=(Axis("M", (-1,)),)), InvalidParameterError, "parameter M of kernel scale: found -1"),
    ("zero by a tie", replace(SWEEP, axes=(Axis("M", (0,)),), ties=(Tie("N", "M"),)), InvalidParameterError, "parameter N .*found 0"),
    ("unknown tie", replace(SWEEP, ties=(Tie("Q", "N"),)), UnknownParameterError, "tie Q"),
    ("tie to the unknown", replace(SWEEP, ties=(Tie("M", "Q"),)), UnknownParameterError, "tie of M to Q"),
    ("tie and axis", replace(SWEEP, axes=(Axis("M", (1,)),), ties=(Tie("M", "N"),)), InvalidParameterError, "both an axis and a tie"),
    ("tie twice", replace(SWEEP, ties=(Tie("M", "N"), Tie("M", "N"))), InvalidParameterError, "tie M: found 2 times"),
    ("tie to itself", replace(SWEEP, ties=(Tie("M", "M"),)), InvalidParameterError, "a circle"),
    ("ties in a circle", replace(SWEEP, ties=(Tie("M", "N"), Tie("N", "M"))), InvalidParameterError, "a circle"),
    ("constraint that is not arithmetic", replace(SWEEP, where="N <"), InvalidExpressionError, "expression 'N <'"),
    ("constraint on the unknown", replace(SWEEP, where="Q > 1"), UnknownParameterError, "Q, which kernel scale does not have"),
    ("constraint that nothing fulfils", replace(SWEEP, where="N > 1000"), InvalidParameterError, "none of 6 configurations"),
    ("constraint that divides by zero", replace(SWEEP, where="N / (M - 1) > 1"), InvalidExpressionError, "division"),
    ("unknown argument", replace(SWEEP, arguments=(ArgumentDefinition("beta", "1"),)), UnknownParameterError, "argument beta"),
    ("argument that is not arithmetic", replace(SWEEP, arguments=(ArgumentDefinition("alpha", "1+"),)), InvalidExpressionError, "1+"),
    ("argument of the unknown", replace(SWEEP, arguments=(ArgumentDefinition("alpha", "Q"),)), UnknownParameterError, "argument alpha.*Q"),
    (
        "macro of a parameter's name",
        replace(SWEEP, macro_axes=(Axis("N", (1,)),)),
        InvalidParameterError,
        "macro N: found the name of a parameter",
    ),
    ("macro of a buffer's name", replace(SWEEP, macro_axes=(Axis("b", (1,)),)), InvalidParameterError, "macro b: found the name"),
    ("macro of the block", replace(SWEEP, macro_axes=(Axis("block_x", (1,)),)), InvalidParameterError, "macro block_x: found the name"),
    ("macro that is no name", replace(SWEEP, macro_axes=(Axis("2X", (1,)),)), InvalidParameterError, "macro 2X"),
    ("macro without values", replace(SWEEP, macro_axes=(Axis("T", ()),)), InvalidParameterError, "macro T"),
    (
        "macro that nothing uses",
        replace(SWEEP, macro_axes=(Axis("T", (1, 2)),)),
        InvalidParameterError,
        "macro T: found a name that nothing",
    ),
    (
        "macro that the source defines",
        replace(
            SWEEP,
            kernels=(replace(SELECTION, source=replace(SOURCE, text=f"#define T 3\n{SOURCE.text}")),),
            macro_axes=(Axis("T", (1, 2)),),
        ),
        InvalidParameterError,
        "macro T: found #define T in line 1 of own.cu, whatever -D says",
    ),
    ("macro twice", replace(SWEEP, macro_axes=(Axis("T", (1,)), Axis("T", (2,)))), InvalidParameterError, "axis T: found 2 times"),
    ("block twice", replace(SWEEP, blocks=(Dim3(8), Dim3(8))), InvalidParameterError, "block 8x1x1: found 2 times"),
    ("block axis of zero", replace(SWEEP, axes=(Axis("block_x", (0,)),)), InvalidParameterError, "axis block_x: found 0"),
    ("compiler option that is none", replace(SWEEP, compiler_options=("fast",)), InvalidParameterError, "compiler option fast"),
    ("budget of nothing", replace(SEARCH, budget_ns=0), InvalidParameterError, "budget_ns: found 0; expected more than 0"),
    (
        "budget without a search",
        replace(SWEEP, budget_ns=10),
        InvalidParameterError,
        "budget_ns: found 10; expected none: the strategy all",
    ),
    ("no process", replace(SWEEP, process_count=0), InvalidParameterError, "process_count: found 0; expected 1 to 100"),
    ("very many processes", replace(SWEEP, process_count=101), InvalidParameterError, "process_count: found 101; expected 1 to 100"),
    ("search in processes", replace(SEARCH, process_count=2), InvalidParameterError, "process_count: found 2; expected 1: a search"),
    ("search in pairs", replace(SEARCH, pairing=Pairing()), InvalidParameterError, "pairing: found the strategy halving"),
    ("few blocks", replace(SWEEP, pairing=Pairing(19)), InvalidParameterError, "pairing.block_count: found 19; expected at least 20"),
    (
        "pairs of three",
        replace(SWEEP, macro_axes=(Axis("T", (1, 2, 3)),), pairing=Pairing(), arguments=(ArgumentDefinition("alpha", "T"),)),
        InvalidParameterError,
        "found 3 configurations",
    ),
    (
        "rival that is not done",
        replace(SEARCH, done_configuration_indexes=(1,), rivals=(Rival(2, 1.0),)),
        InvalidParameterError,
        "rivals: found one that is not done",
    ),
    ("all done", replace(SWEEP, done_configuration_indexes=tuple(range(6))), InvalidParameterError, "found every configuration"),
    (
        "done that are none",
        replace(SWEEP, done_configuration_indexes=(6,)),
        InvalidParameterError,
        "found 6 of 6 configurations; expected some",
    ),
    ("negative order", replace(SWEEP, order_seed=-1), InvalidParameterError, "order_seed: found -1"),
    ("empty block", replace(SWEEP, blocks=(Dim3(16, 0),)), InvalidParameterError, "the block: found 16x0x1"),
]


def test_constants_of_the_source_count_in_expressions_until_a_sweep_sets_them() -> None:
    product = KernelSweep((KernelSelection("matmul_tiled"),), axes=(Axis("M", (64,)), Axis("N", (64,)), Axis("K", (64,))))
    own = plan(product)
    assert [(one.block, one.kernel.grid(one.names), one.variant) for one in own.configurations()] == [(Dim3(16, 16), Dim3(4, 4), "")]
    swept = plan(replace(product, macro_axes=(Axis("TILE", (8, 32)),), where="TILE < 32"))
    assert [(one.block, one.kernel.grid(one.names), one.variant) for one in swept.configurations()] == [(Dim3(8, 8), Dim3(8, 8), "TILE=8")]


@pytest.mark.parametrize(("sweep", "error", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_bad_sweep_is_refused_with_what_is_wrong(sweep: KernelSweep, error: type[KernalyseError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        plan(sweep)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "options",
    [
        MeasuringOptions(min_sample_count=1),
        MeasuringOptions(max_sample_count=1),
        MeasuringOptions(min_duration_ns=-1),
        MeasuringOptions(max_duration_ns=0),
        MeasuringOptions(target_half_width_ratio=0.0),
        MeasuringOptions(target_half_width_ratio=float("nan")),
        MeasuringOptions(warm_up_count=-1),
        MeasuringOptions(seed=-1),
    ],
)
def test_measuring_options_that_nothing_could_use_are_refused(options: MeasuringOptions) -> None:
    with pytest.raises(InvalidParameterError, match="measuring option"):
        plan(replace(SWEEP, measuring=options))


def test_planning_loads_neither_numpy_nor_a_gpu_runtime() -> None:
    code = "import sys, kernalyse.services.profiler.workloads.sweeps.plan; print({'numpy', 'pyopencl', 'pycuda'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
