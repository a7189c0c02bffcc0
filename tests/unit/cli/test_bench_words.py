"""From the words of `kernalyse bench` to a sweep: what they mean, and how they are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.cli.bench_request import KernelOptions, SweepRequest, build_sweep, split_file_and_function
from kernalyse.services.core.errors import InvalidCatalogError, InvalidExpressionError, UnknownKernelError, UsageError
from kernalyse.services.core.model import (
    Axis,
    BusyPolicy,
    CacheMode,
    Dim3,
    InputDistribution,
    KernelSelection,
    MeasuringOptions,
    Pairing,
    SearchStrategy,
    StoppingCriterion,
    TimingMethod,
)
from kernalyse.services.core.request_syntax import ZEROS_NOTICE, MeasuringArguments, SearchOptions, parse_ratio

SAXPY = SweepRequest(kernels=KernelOptions(("saxpy",)))
OWN = """#include "factor.h"
template <typename T, int TIMES> __global__ void grow(const T* a, T* b, T start, int N) { b[0] = start; }
__global__ void plain(const float* a, float* b, int N) { b[0] = a[0]; }
"""


def swept(**changes: Any) -> Any:
    return build_sweep(replace(SAXPY, **changes)).sweep


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("saxpy", None),
        ("dir/k.cu:k", ("dir/k.cu", "k")),
        ("k.cu:ns::k", ("k.cu", "ns::k")),
        ("k.cu:ns::k<a::b, 4>", ("k.cu", "ns::k<a::b, 4>")),
        ("k.cu:k<a::b>", ("k.cu", "k<a::b>")),
        ("od:d/k.cu:k<float>", ("od:d/k.cu", "k<float>")),
        ("k.cu:::k", ("k.cu", "::k")),
    ],
)
def test_file_and_function_are_told_apart(word: str, parts: tuple[str, str] | None) -> None:
    assert split_file_and_function(word) == parts


def test_axes_of_macros_and_blocks_options_and_search_reach_the_sweep() -> None:
    sweep = swept(
        parameters=("N=1,2", "block_x=32,64"),
        macros=("TILE=2**3..2**4",),
        blocks="16x16,32x8",
        compiler_options=("--use_fast_math",),
        search=SearchOptions(
            strategy=SearchStrategy.HALVING, budget_s=1.5, process_count=2, paired_block_count=30, with_counters=True, is_confirmed=False
        ),
        measuring=MeasuringArguments(seed=7),
    )
    assert sweep.axes == (Axis("N", (1, 2)), Axis("block_x", (32, 64)))
    assert sweep.macro_axes == (Axis("TILE", (8, 16)),)
    assert sweep.blocks == (Dim3(16, 16), Dim3(32, 8))
    assert sweep.compiler_options == ("--use_fast_math",)
    assert (sweep.strategy, sweep.budget_ns, sweep.process_count) == (SearchStrategy.HALVING, 1_500_000_000, 2)
    assert (sweep.pairing, sweep.with_counters, sweep.skip_confirmation, sweep.order_seed) == (Pairing(30), True, True, 7)


def test_the_order_is_shuffled_unless_told_not_to_and_nothing_is_paired_unless_told_to() -> None:
    assert (swept().order_seed, swept().pairing) == (0, None)
    assert swept(search=SearchOptions(is_shuffled=False, is_paired=True)).order_seed is None
    assert swept(search=SearchOptions(is_paired=True)).pairing == Pairing()


def test_the_method_reaches_the_sweep() -> None:
    words = MeasuringArguments(
        cache_mode=CacheMode.BOTH,
        timing_method=TimingMethod.BATCHED,
        criterion=StoppingCriterion.NOISE,
        target="2.5 %",
        max_sample_count=5,
        min_duration_s=0.0,
        max_duration_s=3.0,
        warm_up_count=0,
        input_distribution=InputDistribution.NORMAL,
        seed=3,
        skip_verification=True,
        waits_for_idle=True,
    )
    assert words.options() == MeasuringOptions(
        cache_mode=CacheMode.BOTH,
        min_sample_count=5,
        max_sample_count=5,
        min_duration_ns=0,
        max_duration_ns=3_000_000_000,
        warm_up_count=0,
        skip_verification=True,
        seed=3,
        timing_method=TimingMethod.BATCHED,
        stopping_criterion=StoppingCriterion.NOISE,
        target_noise_ratio=0.025,
        input_distribution=InputDistribution.NORMAL,
        busy_policy=BusyPolicy.WAIT,
    )
    assert MeasuringArguments().options() == MeasuringOptions()
    assert MeasuringArguments(target="0.01").options().target_half_width_ratio == 0.01
    assert MeasuringArguments(refuses_busy=True).options().busy_policy is BusyPolicy.REFUSE


def test_a_limit_of_time_gives_way_to_the_one_that_was_given() -> None:
    assert MeasuringArguments(max_duration_s=0.1).options().min_duration_ns == 100_000_000
    assert MeasuringArguments(min_duration_s=60.0).options().max_duration_ns == 60_000_000_000


def test_zeros_are_said_aloud() -> None:
    built = build_sweep(replace(SAXPY, measuring=MeasuringArguments(input_distribution=InputDistribution.ZEROS)))
    assert built.notices == (ZEROS_NOTICE,)
    assert build_sweep(SAXPY).notices == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (MeasuringArguments(target="1", criterion=StoppingCriterion.NOISE), "option --target 1: found '1'; expected a fraction above 0"),
        (MeasuringArguments(target="0%"), "option --target 0%"),
        (MeasuringArguments(target="100%"), "option --target 100%"),
        (MeasuringArguments(target="one"), "option --target one"),
        (MeasuringArguments(target="1%", criterion=StoppingCriterion.ENTROPY), "found a criterion that has no target"),
        (MeasuringArguments(target="1%", criterion=StoppingCriterion.SAMPLE_COUNT), "--stop confidence or --stop noise"),
        (MeasuringArguments(max_duration_s=0.0), "option --max-time: found 0"),
        (MeasuringArguments(max_duration_s=float("nan")), "option --max-time: found nan"),
        (MeasuringArguments(min_duration_s=-1.0), "option --min-time: found -1"),
        (MeasuringArguments(min_duration_s=2.0, max_duration_s=1.0), "option --min-time 2: found more than --max-time 1"),
        (MeasuringArguments(waits_for_idle=True, refuses_busy=True), "options --wait-idle and --refuse-busy: found both"),
    ],
)
def test_words_on_the_method_that_cannot_be_are_refused(words: MeasuringArguments, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        words.options()


@pytest.mark.parametrize(("text", "ratio"), [("1%", 0.01), (" 0.5 % ", 0.005), (".02", 0.02), ("0.01", 0.01)])
def test_a_share_is_a_number_or_a_percentage(text: str, ratio: float) -> None:
    assert parse_ratio("--target", text) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"macros": ("TILE",)}, UsageError, r"option -D TILE: found 'TILE'; expected NAME=VALUES"),
        ({"macros": ("TILE=",)}, UsageError, r"option -D TILE=: found 'TILE='"),
        ({"macros": ("TILE=a",)}, UsageError, r"option -D TILE=a: found 'a'"),
        ({"macros": ("TILE=1", "TILE=2")}, UsageError, r"option -D: found the name TILE 2 times"),
        ({"parameters": ("N=2*x",)}, UsageError, r"option -p N=2\*x: found '2\*x'"),
        ({"blocks": "16x16,nonsense"}, UsageError, r"option --block 16x16,nonsense: found 'nonsense'"),
        ({"blocks": ""}, UsageError, r"option --block : found ''; expected one to three positive integers"),
        ({"blocks": "16,,32"}, UsageError, r"option --block 16,,32: found ''"),
        ({"ties": ("M=2*N",)}, UsageError, r"option --tie M=2\*N: found '2\*N'; expected the name of a parameter"),
        ({"search": SearchOptions(budget_s=5.0)}, UsageError, r"option --budget 5: found the strategy all.*--strategy halving"),
        ({"search": SearchOptions(strategy=SearchStrategy.RANDOM, budget_s=0.0)}, UsageError, r"option --budget 0: found 0"),
        ({"search": SearchOptions(strategy=SearchStrategy.RANDOM, budget_s=float("nan"))}, UsageError, r"option --budget nan"),
        ({"search": SearchOptions(strategy=SearchStrategy.RANDOM, budget_s=float("inf"))}, UsageError, r"option --budget inf"),
        ({"where": "N <"}, InvalidExpressionError, r"expression 'N <'"),
        ({"where": "__import__('os')"}, InvalidExpressionError, r"expression '__import__"),
    ],
)
def test_words_on_the_sweep_that_cannot_be_are_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        swept(**changes)


# ---------------------------------------------------------------- kernels of one's own


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "src" / "own.cu").write_text(OWN)
    (tmp_path / "include" / "factor.h").write_text("#define FACTOR 2\n")
    return tmp_path / "src" / "own.cu"


def test_an_instance_is_described_with_its_own_types_and_may_use_macros(own: Path) -> None:
    words = KernelOptions((f"{own}:grow<double,TIMES>",), buffers=("a=N*TIMES", "b=N"))
    built = build_sweep(replace(SAXPY, kernels=words, macros=("TIMES=1,2",), arguments=("start=0.5",)))
    (selection,) = built.sweep.kernels
    assert selection.kernel_name == "grow<double, TIMES>"
    assert selection.definition is not None
    assert [buffer.dtype.value for buffer in selection.definition.buffers] == ["float64", "float64"]
    assert selection.definition.buffers[0].shape == ("N*TIMES",)
    assert built.sweep.arguments[0].name == "start"


def test_headers_travel_with_the_kernels_that_include_them(own: Path) -> None:
    words = KernelOptions((f"{own}:plain", f"{own}:grow<float,2>", "saxpy"), include_directories=(own.parents[1] / "include",))
    built = build_sweep(replace(SAXPY, kernels=words))
    (bundle,) = built.bundles
    assert bundle.header_names == ("include/factor.h",)
    assert [selection.bundle_digest for selection in built.sweep.kernels] == [bundle.digest, bundle.digest, None]
    without = build_sweep(replace(SAXPY, kernels=KernelOptions((f"{own}:plain",))))
    assert (without.bundles, without.sweep.kernels[0].bundle_digest) == ((), None)


def test_a_definition_file_may_use_macros_and_describe_a_template_for_its_instances(own: Path) -> None:
    (own.parent / "own.toml").write_text(
        '["grow<float, 2>"]\nsource = "own.cu"\nparameters = { N = [64] }\nblock = ["TILE"]\ngrid = ["1"]\narguments = { start = "1" }\n'
        '["grow<float, 2>".buffers]\na = { shape = ["N"], role = "INPUT" }\nb = { shape = ["N"], role = "OUTPUT" }\n'
        '[plain]\nsource = "own.cu"\nparameters = { N = [64] }\nblock = [32]\ngrid = ["1"]\n'
        '[plain.buffers]\na = { shape = ["N*TILE"], role = "INPUT" }\nb = { shape = ["N"], role = "OUTPUT" }\n'
    )
    words = KernelOptions(
        (f"{own}:grow<float,2>", "plain"), file=own.parent / "own.toml", include_directories=(own.parents[1] / "include",)
    )
    built = build_sweep(replace(SAXPY, kernels=words, macros=("TILE=32",)))
    assert [selection.kernel_name for selection in built.sweep.kernels] == ["grow<float, 2>", "plain"]
    assert {selection.bundle_digest for selection in built.sweep.kernels} == {built.bundles[0].digest}
    with pytest.raises(InvalidCatalogError, match="the name TILE"):
        build_sweep(replace(SAXPY, kernels=words))


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (KernelOptions(("{own}:grow<float>",)), UnknownKernelError, "found 1 template argument; expected 2: typename T, int TIMES"),
        (KernelOptions(("{own}:plain<float>",)), UnknownKernelError, "plain, which is no template"),
        (KernelOptions(("{own}:plain",), include_directories=(Path("nowhere"),)), UsageError, "option -I nowhere: found no such directory"),
        (KernelOptions(("saxpy",), include_directories=(Path("/"),)), UsageError, "option -I /: found no kernel whose headers"),
        (KernelOptions(("{own}",)), UsageError, r"expected FILE\.cu:KERNEL"),
        (KernelOptions(("saxpy",), flop="N"), UsageError, "option --flop: found no kernel that it could describe"),
    ],
)
def test_words_on_kernels_that_cannot_be_are_refused(own: Path, words: KernelOptions, error: type[Exception], message: str) -> None:
    names = tuple(name.format(own=own) for name in words.names)
    with pytest.raises(error, match=message):
        build_sweep(replace(SAXPY, kernels=replace(words, names=names)))


def test_a_catalogue_name_stays_a_name() -> None:
    assert swept().kernels == (KernelSelection("saxpy"),)
