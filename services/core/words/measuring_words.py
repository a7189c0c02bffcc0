"""How to measure, as the command line says it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from services.core.model import (
    BusyPolicy,
    CacheMode,
    InputDistribution,
    MeasuringOptions,
    StoppingCriterion,
    TimingMethod,
)
from services.core.words.usage import UsageError

RATIO: Final = re.compile(r"(\d+\.?\d*|\.\d+)\s*(%?)")
MAX_SECONDS: Final = 1e6  # far above any run's time limit; a slip of the finger does not overflow nanoseconds
ZEROS_NOTICE: Final = "All inputs are zero: many GPUs draw less power on zeros, and run faster than on any real data."


@dataclass(frozen=True, slots=True)
class MeasuringWords:
    """The options as they were written. None: not given."""

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
        """Raises UsageError for words that cannot be read or do not go together."""
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
        """What has to be said aloud."""
        if self.input_distribution is InputDistribution.ZEROS:
            yield ZEROS_NOTICE

    def _durations_ns(self, defaults: MeasuringOptions) -> tuple[int, int]:
        """Shortest and longest. The one that is not given gives way to the other."""
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
            raise UsageError(
                "options --wait-idle and --refuse-busy", found="both", expected="one of them", remedy="Say what to do about other programs."
            )
        return BusyPolicy.WAIT if self.waits_for_idle else BusyPolicy.REFUSE if self.refuses_busy else BusyPolicy.RECORD


def parse_ratio(option: str, text: str) -> float:
    """`1%` or `0.01`. Raises UsageError for anything but a share over 0 and below 1."""
    found = RATIO.fullmatch(text.strip())
    ratio = math.nan if found is None else float(found[1]) / (100 if found[2] else 1)
    if not 0 < ratio < 1:
        raise UsageError(
            f"option {option} {text}", found=f"'{text}'", expected="a share over 0 and below 1", remedy=f"For example: {option} 1%"
        )
    return ratio
