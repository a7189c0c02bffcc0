"""Checks of a sweep request before its kernels are resolved."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from kernalyse.services.core.errors import InvalidParameterError, UnknownParameterError
from kernalyse.services.core.expressions import Expression, parse_expression
from kernalyse.services.core.model import Dim3, KernelDefinition, KernelSweep, MeasuringOptions, Pairing, SearchStrategy, StoppingCriterion
from kernalyse.services.profiler.kernel_sources.definitions import BLOCK_NAMES

MAX_PROCESS_COUNT: Final = 100  # each opens the device anew, which takes a second; more is a typing error
MIN_BLOCK_COUNT: Final = 20  # of a pairing: fewer blocks mistake drift for an effect (5 of 100 same-vs-same comparisons)
IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def check_sweep(sweep: KernelSweep) -> None:
    """Raise InvalidParameterError that names the option that makes a sweep impossible."""
    _check_options(sweep.measuring)
    _check_search(sweep)
    for block in sweep.blocks:
        _check_block(block)
    for axis in sweep.macro_axes:
        if not IDENTIFIER.fullmatch(axis.name) or not axis.values:
            raise InvalidParameterError(
                f"macro {axis.name}", found="a name or a list that cannot be used", expected="-D NAME=1,2", remedy="Correct it."
            )
    for option in sweep.compiler_options:
        if not option.startswith("-"):
            raise InvalidParameterError(
                f"compiler option {option}", found="no option", expected="a word that begins with -", remedy="Write --option=value."
            )


def check_names(sweep: KernelSweep, definitions: list[KernelDefinition]) -> None:
    """Raise UnknownParameterError for names that no kernel has, InvalidParameterError for those given twice."""
    parameters = {parameter.name for definition in definitions for parameter in definition.parameters}
    arguments = {argument.name for definition in definitions for argument in definition.arguments}
    kernels = ", ".join(definition.kernel_name for definition in definitions)
    for axis in sweep.axes:
        if axis.name in BLOCK_NAMES:
            _check_block_axis(axis.name, axis.values)
        else:
            _check_known("axis", axis.name, parameters, kernels)
    for tie in sweep.ties:
        _check_known("tie", tie.name, parameters, kernels)
        _check_known(f"tie of {tie.name} to", tie.source_name, parameters, kernels)
    for argument in sweep.arguments:
        _check_known("argument", argument.name, arguments, kernels)
    _check_once("axis", [axis.name for axis in (*sweep.axes, *sweep.macro_axes)])
    _check_once("tie", [tie.name for tie in sweep.ties])
    _check_once("argument", [argument.name for argument in sweep.arguments])
    _check_once("block", [str(block) for block in sweep.blocks])
    both = {axis.name for axis in sweep.axes} & {tie.name for tie in sweep.ties}
    if both:
        raise InvalidParameterError(
            f"parameter {min(both)}",
            found="both an axis and a tie",
            expected="one of the two",
            remedy="Leave out the axis to let it follow, or the tie to vary it alone.",
        )
    buffers = {buffer.name for definition in definitions for buffer in definition.buffers}
    shadowed = (parameters | arguments | buffers | set(BLOCK_NAMES)) & {axis.name for axis in sweep.macro_axes}
    if shadowed:
        raise InvalidParameterError(
            f"macro {min(shadowed)}",
            found="the name of a parameter of the kernel, or of the block",
            expected="a name that the signature does not use",
            remedy="Rename the one or the other.",
        )


def parse_where(sweep: KernelSweep, kernels: Sequence[tuple[KernelDefinition, Mapping[str, int]]]) -> Expression | None:
    """Return the constraint, over kernels with the constants of their sources.

    Raises:
        InvalidExpressionError: not arithmetic.
        UnknownParameterError: a name that a kernel does not have.
    """
    if not sweep.where.strip():
        return None
    where = parse_expression(sweep.where)
    macros = {axis.name for axis in sweep.macro_axes}
    for definition, constants in kernels:
        known = {parameter.name for parameter in definition.parameters} | constants.keys() | macros | set(BLOCK_NAMES)
        unknown = where.names - known
        if unknown:
            raise UnknownParameterError(
                f"constraint '{sweep.where}'",
                found=f"{', '.join(sorted(unknown))}, which kernel {definition.kernel_name} does not have",
                expected=f"names out of {', '.join(sorted(known))}",
                remedy="Check the spelling, or sweep that kernel by itself.",
            )
    return where


def check_pairing(problems: Sequence[tuple[object, ...]]) -> None:
    """Raise InvalidParameterError unless each problem is there twice. problems: of every configuration."""
    for problem, count in Counter(problems).items():
        if count != 2:
            values = ", ".join(f"{name}={value}" for name, value in problem[0])  # type: ignore[attr-defined]
            raise InvalidParameterError(
                "a paired comparison",
                found=f"{count} configuration{'s' if count > 1 else ''} of the problem {values or 'without parameters'}",
                expected="two of each: two kernels with the same parameters, or one kernel with two blocks or macros",
                remedy="Name two kernels, or give one axis of blocks or macros two values.",
            )


def _check_known(what: str, name: str, known: set[str], kernels: str) -> None:
    if name not in known:
        close = get_close_matches(name, sorted(known), n=3)
        raise UnknownParameterError(
            f"{what} {name}",
            found=f"no such name in {kernels}",
            expected=f"perhaps {' or '.join(close)}" if close else f"one of {', '.join(sorted(known)) or 'none, for they have none'}",
            remedy="Check the spelling.",
        )


def _check_once(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidParameterError(f"{what} {name}", found=f"{names.count(name)} times", expected="once", remedy="Give it once.")


def _check_block(block: Dim3) -> None:
    if min(block.x, block.y, block.z) < 1:
        raise InvalidParameterError("the block", found=str(block), expected="at least 1 in every dimension", remedy="Write 256 or 16x16.")


def _check_block_axis(name: str, values: tuple[int, ...]) -> None:
    if min(values, default=0) < 1:
        found = "no value" if not values else str(min(values))
        raise InvalidParameterError(f"axis {name}", found=found, expected="at least 1", remedy="Choose larger values.")


def _check_search(sweep: KernelSweep) -> None:
    is_search = sweep.strategy is not SearchStrategy.ALL
    pairing = sweep.pairing or Pairing()
    process_count, done = sweep.process_count, frozenset(sweep.done_configuration_indexes)
    correct = "Correct it, or leave it out."
    for subject, found, is_good, expected, remedy in (
        ("budget_ns", sweep.budget_ns, sweep.budget_ns is None or sweep.budget_ns > 0, "more than 0", correct),
        (
            "budget_ns",
            sweep.budget_ns,
            sweep.budget_ns is None or is_search,
            "none: the strategy all measures everything",
            "Choose a search by random or halving, or leave the budget out.",
        ),
        ("process_count", process_count, 1 <= process_count <= MAX_PROCESS_COUNT, f"1 to {MAX_PROCESS_COUNT}", correct),
        (
            "process_count",
            process_count,
            process_count == 1 or not is_search,
            "1: a search runs in one process",
            "Search first, then measure the best few in several processes.",
        ),
        (
            "pairing",
            f"the strategy {sweep.strategy.lower()}",
            sweep.pairing is None or not is_search,
            "the strategy all",
            "Leave out one of them: a search compares its best two in pairs by itself.",
        ),
        ("pairing.block_count", pairing.block_count, pairing.block_count >= MIN_BLOCK_COUNT, f"at least {MIN_BLOCK_COUNT}", correct),
        ("order_seed", sweep.order_seed, sweep.order_seed is None or sweep.order_seed >= 0, "at least 0", correct),
        (
            "rivals",
            "one that is not done, or without a duration",
            all(one.configuration_index in done and 0 < one.duration_median_ns < math.inf for one in sweep.rivals),
            "configurations that an earlier run has measured",
            "Take them from the table best of the run that is to be continued.",
        ),
    ):
        if not is_good:
            raise InvalidParameterError(f"sweep option {subject}", found=str(found), expected=expected, remedy=remedy)


def _check_options(options: MeasuringOptions) -> None:
    max_count = options.max_sample_count
    ratios = (("target_half_width_ratio", options.target_half_width_ratio), ("target_noise_ratio", options.target_noise_ratio))
    for subject, found, is_good, expected in (
        ("min_sample_count", options.min_sample_count, options.min_sample_count >= 2, "at least 2, for one sample has no spread"),
        ("max_sample_count", max_count, max_count is None or max_count >= 2, "at least 2, for one sample has no spread"),
        ("min_duration_ns", options.min_duration_ns, options.min_duration_ns >= 0, "at least 0"),
        ("max_duration_ns", options.max_duration_ns, options.max_duration_ns > 0, "more than 0"),
        *(
            (name, ratio, ratio is None or (math.isfinite(ratio) and ratio > 0), "a ratio above 0, for example 0.01")
            for name, ratio in ratios
        ),
        (
            "target_noise_ratio",
            options.target_noise_ratio,
            options.target_noise_ratio is None or options.stopping_criterion is StoppingCriterion.NOISE,
            "none: the noise is not what ends sampling",
        ),
        ("warm_up_count", options.warm_up_count, options.warm_up_count >= 0, "at least 0"),
        ("seed", options.seed, options.seed >= 0, "at least 0"),
    ):
        if not is_good:
            raise InvalidParameterError(
                f"measuring option {subject}", found=str(found), expected=expected, remedy="Correct it, or leave it out."
            )
