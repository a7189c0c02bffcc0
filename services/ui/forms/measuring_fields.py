"""How to measure: the fields, and the words that they hold."""

from __future__ import annotations

from typing import ClassVar, Final

import param

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import CacheMode, InputDistribution, MeasuringOptions
from kernalyse.services.core.request_syntax import MeasuringArguments, parse_ratio
from kernalyse.services.ui.forms.form import Choice, Problems, Values, Words, number_of, option, text_of

CACHES: Final = (
    ("default", "cold on GPUs, hot on CPUs"),
    ("cold", "cold: flushed before each sample"),
    ("hot", "hot"),
    ("both", "both, one after the other"),
)
INPUTS: Final = (("uniform", "uniform"), ("normal", "normal"), ("zeros", "zeros"))
DEFAULTS: Final = MeasuringOptions()
S_PER_NS: Final = 1e-9


class TimeFields(param.Parameterized):
    """For how long to measure."""

    OF_TIME: ClassVar = ("max_time", "min_time", "target", "samples")

    max_time = Words("Longest sampling, s", f"{DEFAULTS.max_duration_ns * S_PER_NS:g}", "Of one configuration.", is_number=True)
    min_time = Words("Shortest sampling, s", f"{DEFAULTS.min_duration_ns * S_PER_NS:g}", is_number=True)
    target = Words("Interval to reach", "0.5 % on GPUs, 2 % on CPUs", "Half-width of the median's 95 % interval.")
    samples = Words("Most samples", "no limit", "Of one configuration.", is_number=True)


class MethodFields(param.Parameterized):
    """How to measure."""

    OF_METHOD: ClassVar = ("cache", "input", "warm_up", "seed", "no_verify")

    cache = Choice("Cache", CACHES, "default")
    input = Choice("Input data", INPUTS, "uniform")
    warm_up = Words("Warm-up launches", f"{DEFAULTS.warm_up_count}", is_number=True)
    seed = Words("Seed", "0", "Of input data and order.", is_number=True)
    no_verify = param.Boolean(default=False, label="Do not compare results with the reference")


FIELD_OF_OPTION: Final = {
    "min_sample_count": "samples",
    "max_sample_count": "samples",
    "min_duration_ns": "min_time",
    "max_duration_ns": "max_time",
    "target_half_width_ratio": "target",
    "warm_up_count": "warm_up",
    "seed": "seed",
}
"""Fields by the names that the service has for them."""


def measuring_words(values: Values, problems: Problems, max_duration_s: float | None = None) -> MeasuringArguments:
    """max_duration_s: where nothing is said."""
    target = text_of(values, "target")
    if target:
        with problems.of("target"):
            parse_ratio("--target", target)
    counts = {
        name: number_of(values, name, problems, is_whole=True, smallest=low) for name, low in (("samples", 2), ("warm_up", 0), ("seed", 0))
    }
    shortest, longest = number_of(values, "min_time", problems), number_of(values, "max_time", problems)
    words = MeasuringArguments(
        cache_mode=CacheMode(values.get("cache", "default").upper()),
        target=target if "target" not in problems.found and target else None,
        max_sample_count=None if counts["samples"] is None else int(counts["samples"]),
        min_duration_s=shortest,
        max_duration_s=max_duration_s if longest is None and shortest is None else longest,
        warm_up_count=None if counts["warm_up"] is None else int(counts["warm_up"]),
        input_distribution=InputDistribution(values.get("input", "uniform").upper()),
        seed=int(counts["seed"] or 0),
        skip_verification="no_verify" in values,
    )
    try:
        words.options()
    except KernalyseError as error:
        problems.say("min_time" if "--min-time" in error.subject else "max_time", f"Found {error.found}; expected {error.expected}.")
        return MeasuringArguments()
    return words


def measuring_options(values: Values) -> tuple[str, ...]:
    """Of the command line."""
    cache, given = text_of(values, "cache"), text_of(values, "input")
    return (
        *option("--cache", "" if cache == "default" else cache),
        *option("--max-time", text_of(values, "max_time")),
        *option("--min-time", text_of(values, "min_time")),
        *option("--target", text_of(values, "target")),
        *option("--samples", text_of(values, "samples")),
        *option("--warm-up", text_of(values, "warm_up")),
        *option("--input", "" if given == "uniform" else given),
        *option("--seed", text_of(values, "seed")),
        *(("--no-verify",) if "no_verify" in values else ()),
    )
