"""Measuring options: how long to measure, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from kernalyse.errors import call_error
from kernalyse.v1 import run_pb2

NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """Options of stopping and timing. None: the default of the device, which docs/measuring.md explains.

    Attributes:
        cache: state of the last-level cache before each sample: "cold" flushes it, "hot" leaves it, "both" measures twice
            (sweeps only), "default" is cold on GPUs and hot on CPUs.
        timing: "single" launches, "batched" (many between two events) or "graph"; "auto" chooses by the duration of a launch.
        stop: what ends sampling before the limits: "confidence" (interval of the median), "noise", "entropy" or "samples".
        target_half_width_ratio: half the width of the median's 95 % interval over the median; None: 0.005, on CPUs 0.02.
        target_noise_ratio: standard deviation over mean, for stop="noise"; None: 0.005, on CPUs 0.05.
        min_sample_count: None: 10.
        max_sample_count: None: 50,000; with stop="samples" 100.
        min_duration_s: of sampling, before anything but a limit may stop it. None: 0.5.
        max_duration_s: of sampling. None: 15.
        warm_up_count: launches before the first sample. None: 1.
        skip_verification: leave results unchecked.
        seed: of random inputs.
        inputs: their distribution: "uniform", "normal" or "zeros".
        when_busy: "record" other programs on the device, "wait" for them to end, or "refuse" to measure.
    """

    cache: Literal["default", "cold", "hot", "both"] = "default"
    timing: Literal["auto", "single", "batched", "graph"] = "auto"
    stop: Literal["confidence", "noise", "entropy", "samples"] = "confidence"
    target_half_width_ratio: float | None = None
    target_noise_ratio: float | None = None
    min_sample_count: int | None = None
    max_sample_count: int | None = None
    min_duration_s: float | None = None
    max_duration_s: float | None = None
    warm_up_count: int | None = None
    skip_verification: bool = False
    seed: int = 0
    inputs: Literal["uniform", "normal", "zeros"] = "uniform"
    when_busy: Literal["record", "wait", "refuse"] = "record"

    def message(self) -> run_pb2.MeasuringOptions:
        """Return the message of the contract.

        Raises:
            RequestError: names the option that cannot be used.
        """
        return run_pb2.MeasuringOptions(
            cache_mode=choice("cache", self.cache, run_pb2.CacheMode, "CACHE_MODE"),
            timing_method=choice("timing", self.timing, run_pb2.TimingMethod, "TIMING_METHOD"),
            stopping_criterion=choice(
                "stop", "sample_count" if self.stop == "samples" else self.stop, run_pb2.StoppingCriterion, "STOPPING_CRITERION"
            ),
            target_half_width_ratio=self.target_half_width_ratio,
            target_noise_ratio=self.target_noise_ratio,
            min_sample_count=self.min_sample_count,
            max_sample_count=self.max_sample_count,
            min_duration_ns=nanoseconds("min_duration_s", self.min_duration_s),
            max_duration_ns=nanoseconds("max_duration_s", self.max_duration_s),
            warm_up_count=self.warm_up_count,
            skip_verification=self.skip_verification,
            seed=self.seed,
            input_distribution=choice("inputs", self.inputs, run_pb2.InputDistribution, "INPUT_DISTRIBUTION"),
            busy_policy=choice("when_busy", self.when_busy, run_pb2.BusyPolicy, "BUSY_POLICY"),
        )


DEFAULT_MEASURING: Final = Measuring()


def choice(argument: str, value: str, enum: EnumTypeWrapper, prefix: str) -> str:
    """Return the name of the enum's member.

    Raises:
        RequestError: there is no such member; names those there are.
    """
    known = [name.removeprefix(f"{prefix}_") for name, number in enum.items() if number != 0]  # 0: UNSPECIFIED
    if value.upper() not in known:
        raise call_error(f"argument {argument}", found=repr(value), expected=", ".join(known).lower())
    return f"{prefix}_{value.upper()}"


def nanoseconds(argument: str, seconds: float | None) -> int | None:
    """Return seconds as nanoseconds.

    Raises:
        RequestError: the duration is negative or too large.
    """
    if seconds is None:
        return None
    if not 0 <= seconds <= 1e9:
        raise call_error(f"argument {argument}", found=repr(seconds), expected="seconds, from 0 on")
    return round(seconds * NS_PER_S)
