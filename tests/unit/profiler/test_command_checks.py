"""Which commands a node takes on: by their fields, and by its owner's patterns."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest

from kernalyse.services.core.errors import ForbiddenError, InvalidParameterError
from kernalyse.services.core.model import CommandProfile, EnvironmentVariable, NodePolicy, RunSpec
from kernalyse.services.profiler.collectors.preflight import check_command
from kernalyse.services.profiler.runs.admission import CPU_QUEUE, Admission, NodeLimits

GIVEN = EnvironmentVariable("A", "1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"collector": "perf"}, "collector of the command: found 'perf'; expected one of nsys, ncu, kineto, proton"),
        ({"arguments": ()}, "arguments of the command: found no program"),
        ({"arguments": ("a\0b",)}, "argument 0 with a NUL"),
        ({"arguments": ("a", "b" * 200_000)}, "argument 1 with 200000 characters; expected up to 131071 bytes"),
        ({"environment": (EnvironmentVariable("A B", "1"),)}, "found 'A B'; expected a name of letters"),
        ({"environment": (GIVEN, GIVEN)}, "A twice"),
        ({"capture_range": "cudaProfilerAPI"}, "expected cudaProfilerApi, nvtx:RANGE or nvtx:RANGE@DOMAIN"),
        ({"capture_range": "nvtx:"}, "capture_range of the command"),
        ({"max_duration_ns": 0}, "max_duration_ns of the command: found 0; expected more than 0"),
        ({"kernel_filter": "gemm"}, "kernel_filter of the command: found gemm with collector nsys; expected collector ncu with it"),
        ({"collector": "kineto", "capture_range": "nvtx:step"}, "expected collector nsys or ncu with it"),
        ({"collector": "ncu", "kernel_filter": "("}, "kernel_filter of the command: found '('"),
        ({"collector": "ncu", "max_launch_count": 0}, "max_launch_count"),
        ({"step_count": 3}, "step_count of the command: found 3 with collector nsys; expected collector kineto"),
        ({"collector": "proton", "with_cpu_sampling": True}, "with_cpu_sampling"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_a_field_that_no_run_could_use_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        check_command(CommandProfile(**{"arguments": ("true",), "collector": "nsys", **changes}))
    assert words in caught.value.message
    assert caught.value.remedy


def test_options_of_a_collector_are_taken() -> None:
    check_command(CommandProfile(("./train", ""), "nsys", (GIVEN,), capture_range="nvtx:step 1@torch", with_cpu_sampling=True))
    check_command(CommandProfile(("./train",), "ncu", kernel_filter="gemm|sm90_.*", launch_skip_count=2, max_launch_count=5))
    check_command(CommandProfile(("python", "train.py"), "kineto", step_count=3, max_duration_ns=1))


def admission(*patterns: str) -> Admission:
    limits = NodeLimits(10**12, 10**10, 100)
    nothing = cast(Any, None)  # a command without a bundle asks neither catalogue nor bundles
    return Admission(NodePolicy(), limits, (), (), nothing, nothing, patterns)


def test_a_node_without_devices_takes_commands() -> None:
    placement = admission().check(RunSpec(CommandProfile(("true",), "nsys")))
    assert (placement.queue_name, placement.device_id) == (CPU_QUEUE, None)
    assert placement.spec.limits.time_limit_ns == 10**12


def test_only_commands_like_the_owners_patterns_are_taken() -> None:
    allowed = admission("/opt/bench/run --size [0-9]*", "python -m bench")
    allowed.check(RunSpec(CommandProfile(("/opt/bench/run", "--size", "64"), "nsys")))
    allowed.check(RunSpec(CommandProfile(("python", "-m", "bench"), "kineto")))
    for arguments in (("python", "-m", "bench", "--evil"), ("/opt/bench/run", "--size", "x"), (sys.executable,), ("python -m bench",)):
        with pytest.raises(ForbiddenError, match="allowed_commands"):
            allowed.check(RunSpec(CommandProfile(arguments, "nsys")))
    with pytest.raises(ForbiddenError, match="variables and bundles for commands: switched off"):
        allowed.check(RunSpec(CommandProfile(("python", "-m", "bench"), "nsys", (EnvironmentVariable("LD_PRELOAD", "/tmp/x.so"),))))
