"""The syntax of requests, on a command line or in a form: sweeps, axes and measuring options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kernalyse.services.core.errors import UsageError
from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.model import (
    ArgumentDefinition,
    Axis,
    BackendName,
    BusyPolicy,
    CacheMode,
    ClockMode,
    Dim3,
    InputDistribution,
    KernelSelection,
    KernelSweep,
    MeasuringOptions,
    Pairing,
    SearchStrategy,
    StoppingCriterion,
    Tie,
    TimingMethod,
)

# ---------------------------------------------------------------- axes
# Values of a parameter:
#
#   N=128,256                 these two
#   M=2**7..2**10             the powers 128, 256, 512, 1024
#   K=32..128:32              from 32 to 128 in steps of 32, both ends included
#   N=1,2**3..2**5,100        any combination

MAX_VALUE_COUNT: Final = 1_000_000
"""Far more than any sweep measures; few enough that a typing error does not fill the memory."""

MAX_POWER_BITS: Final = 63
"""Parameters are 64-bit integers everywhere."""

NAME: Final = re.compile(r"[A-Za-z_]\w*")
INTEGER: Final = re.compile(r"[+-]?\d{1,19}")
POWER: Final = re.compile(r"(\d{1,19})\*\*(\d{1,3})")
POWER_RANGE: Final = re.compile(r"(\d{1,19})\*\*(\d{1,3})\.\.(\d{1,19})\*\*(\d{1,3})")
STEP_RANGE: Final = re.compile(r"([+-]?\d{1,19})\.\.([+-]?\d{1,19}):(\d{1,19})")
VALUES_SYNTAX: Final = "integers, b**e, b**e..b**f or lo..hi:step, separated by commas"


def parse_axes(texts: Sequence[str], flag: str = "-p") -> tuple[Axis, ...]:
    """Return one axis for each occurrence of the option `flag`, in their order.

    Raises:
        UsageError: one cannot be parsed, or a name occurs twice.
    """
    axes = tuple(parse_axis(text, flag) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"option {flag}", found=f"the name {name} {names.count(name)} times", expected="each name once")
    return axes


def parse_axis(text: str, flag: str = "-p") -> Axis:
    """Parse `NAME=VALUES`.

    Raises:
        UsageError: the text has another form, or too many values.
    """
    name, _, values_text = text.partition("=")
    option = f"option {flag} {text}"
    if not NAME.fullmatch(name.strip()) or not values_text.strip():
        raise UsageError(
            option, found=f"'{text}'", expected=f"NAME=VALUES, with VALUES {VALUES_SYNTAX}", remedy=f"For example: {flag} N=128,256"
        )
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
    raise UsageError(option, found=f"'{item}'", expected=VALUES_SYNTAX, remedy="For example: N=128,256 or N=2**7..2**10 or N=32..128:32")


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
    """Parse `M=N`: M always has the value of N.

    Raises:
        UsageError: the text has another form.
    """
    name, source_name = _pair("--tie", text, "M=N")
    if not NAME.fullmatch(source_name):
        raise UsageError(
            f"option --tie {text}", found=f"'{source_name}'", expected="the name of a parameter", remedy="For example: --tie M=N"
        )
    return Tie(name, source_name)


def parse_argument(text: str) -> ArgumentDefinition:
    """Parse `alpha=2.0`: a scalar argument and its value, an expression.

    Raises:
        UsageError: the text has another form.
        InvalidExpressionError: the value is not an expression.
    """
    name, expression = _pair("--arg", text, "alpha=2.0")
    parse_expression(expression)
    return ArgumentDefinition(name, expression)


def parse_buffer(text: str) -> tuple[str, str]:
    """Parse `a=N*K`: a pointer parameter and its element count, an expression.

    Raises:
        UsageError: the text has another form.
        InvalidExpressionError: the count is not an expression.
    """
    name, expression = _pair("--buffer", text, "a=N*K")
    parse_expression(expression)
    return name, expression


def parse_blocks(text: str) -> tuple[Dim3, ...]:
    """Parse `16x16,32x8`: for each block the threads in one to three directions.

    Raises:
        UsageError: the text has another form.
    """
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


# ---------------------------------------------------------------- measuring options

RATIO: Final = re.compile(r"(\d+\.?\d*|\.\d+)\s*(%?)")
MAX_SECONDS: Final = 1e6  # far above any run's time limit; a typing error does not overflow nanoseconds
ZEROS_NOTICE: Final = "All inputs are zero: many GPUs draw less power on zeros, and run faster than on any real data."


@dataclass(frozen=True, slots=True)
class MeasuringArguments:
    """The measuring options as written; None: not given."""

    cache_mode: CacheMode = CacheMode.DEFAULT
    timing_method: TimingMethod = TimingMethod.AUTO
    criterion: StoppingCriterion = StoppingCriterion.CONFIDENCE
    target: str | None = None
    max_sample_count: int | None = None
    min_duration_s: float | None = None
    max_duration_s: float | None = None
    warm_up_count: int | None = None
    input_distribution: InputDistribution = InputDistribution.UNIFORM
    seed: int = 0
    skip_verification: bool = False
    waits_for_idle: bool = False
    refuses_busy: bool = False

    def options(self) -> MeasuringOptions:
        """Return the parsed options.

        Raises:
            UsageError: an option cannot be parsed, or two contradict each other.
        """
        defaults = MeasuringOptions()
        max_count, warm_up_count = self.max_sample_count, self.warm_up_count
        min_duration_ns, max_duration_ns = self._durations_ns(defaults)
        options = MeasuringOptions(
            cache_mode=self.cache_mode,
            min_sample_count=defaults.min_sample_count if max_count is None else min(defaults.min_sample_count, max_count),
            max_sample_count=max_count,
            min_duration_ns=min_duration_ns,
            max_duration_ns=max_duration_ns,
            warm_up_count=defaults.warm_up_count if warm_up_count is None else warm_up_count,
            skip_verification=self.skip_verification,
            seed=self.seed,
            timing_method=self.timing_method,
            stopping_criterion=self.criterion,
            input_distribution=self.input_distribution,
            busy_policy=self._busy_policy(),
        )
        if self.target is None:
            return options
        ratio = parse_ratio("--target", self.target)
        match self.criterion:
            case StoppingCriterion.CONFIDENCE:
                return replace(options, target_half_width_ratio=ratio)
            case StoppingCriterion.NOISE:
                return replace(options, target_noise_ratio=ratio)
            case _:
                raise UsageError(
                    f"option --target {self.target}",
                    found="a criterion that has no target",
                    expected="--stop confidence or --stop noise",
                    remedy="Leave one of them out.",
                )

    def notices(self) -> Iterator[str]:
        """Yield what the user should know about the selected options."""
        if self.input_distribution is InputDistribution.ZEROS:
            yield ZEROS_NOTICE

    def _durations_ns(self, defaults: MeasuringOptions) -> tuple[int, int]:
        """Return the shortest and the longest duration; the one that is not given adapts to the other."""
        low, high = self.min_duration_s, self.max_duration_s
        for option, seconds, is_good, expected in (
            ("--min-time", low, low is None or 0 <= low < MAX_SECONDS, "seconds, 0 or more"),
            ("--max-time", high, high is None or 0 < high < MAX_SECONDS, "seconds, more than 0"),
        ):
            if not is_good:
                raise UsageError(f"option {option}", found=str(seconds), expected=expected)
        if low is not None and high is not None and low > high:
            raise UsageError(
                f"option --min-time {low:g}", found=f"more than --max-time {high:g}", expected="at most that", remedy="Change one of them."
            )
        min_duration_ns = defaults.min_duration_ns if low is None else int(low * 1e9)
        max_duration_ns = defaults.max_duration_ns if high is None else max(1, int(high * 1e9))
        if low is None:
            return min(min_duration_ns, max_duration_ns), max_duration_ns
        return min_duration_ns, max(min_duration_ns, max_duration_ns)

    def _busy_policy(self) -> BusyPolicy:
        if self.waits_for_idle and self.refuses_busy:
            raise UsageError("options --wait-idle and --refuse-busy", found="both", expected="one of them", remedy="Leave one of them out.")
        return BusyPolicy.WAIT if self.waits_for_idle else BusyPolicy.REFUSE if self.refuses_busy else BusyPolicy.RECORD


def parse_ratio(option: str, text: str) -> float:
    """Parse `1%` or `0.01`.

    Raises:
        UsageError: the text is not a fraction above 0 and below 1.
    """
    found = RATIO.fullmatch(text.strip())
    ratio = math.nan if found is None else float(found[1]) / (100 if found[2] else 1)
    if not 0 < ratio < 1:
        raise UsageError(
            f"option {option} {text}", found=f"'{text}'", expected="a fraction above 0 and below 1", remedy=f"For example: {option} 1%"
        )
    return ratio


# ---------------------------------------------------------------- search options


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The search options as written: how much of the sweep is measured, and how often. None: not given."""

    is_shuffled: bool = True
    strategy: SearchStrategy = SearchStrategy.ALL
    budget_s: float | None = None
    process_count: int = 1
    is_paired: bool = False
    paired_block_count: int | None = None
    with_counters: bool = False
    is_confirmed: bool = True

    def budget_ns(self) -> int | None:
        """Return the budget in ns; None: not given.

        Raises:
            UsageError: the budget is not positive, or the strategy has no use for one.
        """
        budget_ns = parse_budget(self.budget_s)
        if budget_ns is not None and self.strategy is SearchStrategy.ALL:
            raise UsageError(
                f"option --budget {self.budget_s:g}",
                found="the strategy all, which measures everything however long it takes",
                expected="a search that can leave something out",
                remedy="Add --strategy halving or --strategy random, or leave the budget out.",
            )
        return budget_ns

    def pairing(self) -> Pairing | None:
        """Return how pairs are measured; None: not in pairs."""
        if self.paired_block_count is not None:
            return Pairing(self.paired_block_count)
        return Pairing() if self.is_paired else None


def parse_budget(budget_s: float | None) -> int | None:
    """Return the budget in ns; None: not given.

    Raises:
        UsageError: it is not positive, or far too long.
    """
    if budget_s is None:
        return None
    if not 0 < budget_s < MAX_SECONDS:
        raise UsageError(
            f"option --budget {budget_s:g}", found=f"{budget_s:g}", expected="seconds, more than 0", remedy="For example: --budget 60"
        )
    return max(1, int(budget_s * 1e9))


# ---------------------------------------------------------------- sweeps


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """A sweep as written, without its kernels: the options of `kernalyse bench`, the fields of the dashboard's form."""

    parameters: tuple[str, ...] = ()
    macros: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    where: str = ""
    arguments: tuple[str, ...] = ()
    blocks: str | None = None
    compiler_options: tuple[str, ...] = ()
    backend: BackendName = BackendName.AUTO
    device_id: str | None = None
    measuring: MeasuringArguments = field(default_factory=MeasuringArguments)
    search: SearchOptions = field(default_factory=SearchOptions)
    clock_mode: ClockMode = ClockMode.AS_IS

    def parsed_arguments(self) -> tuple[ArgumentDefinition, ...]:
        """Return the scalar arguments.

        Raises:
            UsageError: one has another form than NAME=VALUE.
            InvalidExpressionError: a value is not an expression.
        """
        return tuple(map(parse_argument, self.arguments))

    def macro_axes(self) -> tuple[Axis, ...]:
        """Return one axis for each macro.

        Raises:
            UsageError: one cannot be parsed.
        """
        return parse_axes(self.macros, "-D")

    def sweep(self, kernels: tuple[KernelSelection, ...]) -> KernelSweep:
        """Return the sweep over these kernels.

        Raises:
            UsageError: an option cannot be parsed, or two contradict each other.
            InvalidExpressionError: a constraint or a value is not an expression.
        """
        if self.where:
            parse_expression(self.where)
        return KernelSweep(
            kernels=kernels,
            axes=parse_axes(self.parameters),
            ties=tuple(map(parse_tie, self.ties)),
            where=self.where,
            arguments=self.parsed_arguments(),
            blocks=() if self.blocks is None else parse_blocks(self.blocks),
            backend=self.backend,
            device_id=self.device_id,
            measuring=self.measuring.options(),
            macro_axes=self.macro_axes(),
            compiler_options=self.compiler_options,
            order_seed=self.measuring.seed if self.search.is_shuffled else None,
            strategy=self.search.strategy,
            budget_ns=self.search.budget_ns(),
            process_count=self.search.process_count,
            pairing=self.search.pairing(),
            with_counters=self.search.with_counters,
            skip_confirmation=not self.search.is_confirmed,
            clock_mode=self.clock_mode,
        )
