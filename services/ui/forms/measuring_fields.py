"""How to measure: the fields, and the words that they hold."""

from __future__ import annotations

from typing import Final

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import CacheMode, InputDistribution, MeasuringOptions
from kernalyse.services.core.request_syntax import MeasuringArguments, parse_ratio
from kernalyse.services.ui.forms.form import Field, Problems, Values, number_of, option, text_of

CACHES: Final = (
    ("default", "cold on GPUs, hot on CPUs"),
    ("cold", "cold: flushed before each sample"),
    ("hot", "hot"),
    ("both", "both, one after the other"),
)
INPUTS: Final = (("uniform", "uniform"), ("normal", "normal"), ("zeros", "zeros"))
DEFAULTS: Final = MeasuringOptions()
S_PER_NS: Final = 1e-9

OF_TIME: Final = (
    Field(
        "max_time", "Longest sampling, s", "number", hint="Of one configuration.", placeholder=f"{DEFAULTS.max_duration_ns * S_PER_NS:g}"
    ),
    Field("min_time", "Shortest sampling, s", "number", placeholder=f"{DEFAULTS.min_duration_ns * S_PER_NS:g}"),
    Field("target", "Interval to reach", hint="Half-width of the median's 95 % interval.", placeholder="0.5 % on GPUs, 2 % on CPUs"),
    Field("samples", "Most samples", "number", hint="Of one configuration.", placeholder="no limit"),
)
OF_METHOD: Final = (
    Field("cache", "Cache", "select", CACHES, default="default"),
    Field("input", "Input data", "select", INPUTS, default="uniform"),
    Field("warm_up", "Warm-up launches", "number", placeholder=f"{DEFAULTS.warm_up_count}"),
    Field("seed", "Seed", "number", hint="Of input data and order.", placeholder="0"),
    Field("no_verify", "Do not compare results with the reference", "check"),
)
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
