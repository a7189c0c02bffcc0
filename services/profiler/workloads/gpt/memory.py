"""Device and host memory of a GPT run, and the largest input that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psutil

from services.core.errors import KernalyseError, LaunchLimitError, MemoryLimitError
from services.core.model import CacheMode, Device, DeviceKind, RunLimits
from services.profiler.backends.base import check_launch
from services.profiler.workloads.gpt.launches import PlannedPass, plan_pass
from services.profiler.workloads.gpt.operations import Problem
from services.profiler.workloads.gpt.reference import CHUNK_ROWS
from services.profiler.workloads.gpt.weights import parameter_count

WORKER_BYTES: Final = 512 * 2**20  # interpreter, NumPy and a runtime with its compiler, on Intel's the largest
MAX_ELEMENT_COUNT: Final = 2**31 - 1  # of a tensor: the kernels index with int
FLOAT32_BYTES: Final = 4
FLOAT64_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Device and host memory that a run needs."""

    device_bytes: int  # of all tensors, those that variants share once
    largest_tensor: str
    largest_bytes: int
    host_bytes: int  # weights, logits, and what the reference takes


def memory_need(problem: Problem, passes: Sequence[PlannedPass]) -> MemoryNeed:
    """Return the memory that a run needs. passes: the variants of the run."""
    sizes = {name: size_bytes for one in passes for name, size_bytes in one.tensor_bytes().items()}
    largest = max(sizes, key=lambda name: sizes[name])
    return MemoryNeed(sum(sizes.values()), largest, sizes[largest], _host_bytes(problem, len(passes)))


def check_memory(problem: Problem, variants: Sequence[str], device: Device, limits: RunLimits) -> MemoryNeed:
    """Refuse what neither device nor host can hold, before anything is allocated.

    Raises:
        MemoryLimitError, LaunchLimitError: names the largest batch and the largest sequence that fit, with the rest as it is.
    """
    try:
        return _check(problem, variants, device, limits)
    except (MemoryLimitError, LaunchLimitError) as error:
        fitting = _fitting(problem, lambda smaller: _check(smaller, variants, device, limits))
        remedy = f"What fits: {fitting}." if fitting else "Not even one token fits: choose a smaller model or vocabulary."
        raise type(error)(error.subject, found=error.found, expected=error.expected, remedy=remedy) from error


def _check(problem: Problem, variants: Sequence[str], device: Device, limits: RunLimits) -> MemoryNeed:
    passes = [plan_pass(problem, variant, 0, CacheMode.HOT, ()) for variant in variants]
    need = memory_need(problem, passes)
    subject = f"{problem.architecture.model_name} with batch {problem.batch_size} and sequence {problem.sequence_length}"
    tensor = f"tensor {need.largest_tensor} of {subject}"
    if need.largest_bytes > MAX_ELEMENT_COUNT * FLOAT32_BYTES:
        raise MemoryLimitError(tensor, found=f"{need.largest_bytes} bytes", expected=f"at most {MAX_ELEMENT_COUNT} elements of 4 bytes")
    if device.max_buffer_bytes is not None and need.largest_bytes > device.max_buffer_bytes:
        raise MemoryLimitError(
            tensor, found=f"{need.largest_bytes} bytes", expected=f"at most {device.max_buffer_bytes} in one buffer of {device.name}"
        )
    if device.memory_bytes is not None and need.device_bytes > device.memory_bytes:
        raise MemoryLimitError(
            subject, found=f"{need.device_bytes} bytes on the device", expected=f"at most the {device.memory_bytes} of {device.name}"
        )
    host_bytes = need.host_bytes + (need.device_bytes if device.kind is DeviceKind.CPU else 0)
    available = int(psutil.virtual_memory().available)
    allowed = available if limits.memory_limit_bytes is None else min(available, limits.memory_limit_bytes - WORKER_BYTES)
    if host_bytes > allowed:
        raise MemoryLimitError(
            subject, found=f"{host_bytes} bytes on the host, the reference included", expected=f"at most {max(0, allowed)} in this run"
        )
    for one in passes:
        for step in one.steps:
            check_launch(device, f"{step.operation.kernel_name} for {step.operation.layer_path}", step.plan.launch)
    return need


def _host_bytes(problem: Problem, variant_count: int) -> int:
    """Return weights twice (float32 and float64), logits of each variant, and the reference's activations at their largest."""
    architecture, length = problem.architecture, problem.sequence_length
    chunk_rows = min(problem.row_count, max(CHUNK_ROWS, length))
    widest = max(3 * architecture.head_count * length, 4 * architecture.mlp_width, 2 * problem.vocabulary_size)
    return (
        parameter_count(problem) * (FLOAT32_BYTES + FLOAT64_BYTES)
        + variant_count * problem.row_count * problem.vocabulary_size * FLOAT32_BYTES
        + chunk_rows * (widest + 8 * architecture.width) * FLOAT64_BYTES
    )


def _fitting(problem: Problem, check: Callable[[Problem], object]) -> str:
    """Name the largest extents, each by itself, or the longest single sequence. Empty: not even one token fits."""

    def fits_batch(value: int) -> bool:
        return _passes(check, replace(problem, batch_size=value))

    def fits_sequence(value: int) -> bool:
        return _passes(check, replace(problem, sequence_length=value))

    def fits_alone(value: int) -> bool:
        return _passes(check, replace(problem, batch_size=1, sequence_length=value))

    largest = {
        "batch_size": _largest(problem.batch_size, fits_batch),
        "sequence_length": _largest(problem.sequence_length, fits_sequence),
    }
    alone = " or ".join(f"{name} up to {value}" for name, value in largest.items() if value > 0)
    if alone:
        return f"with the rest as it is, {alone}"
    length = _largest(problem.sequence_length, fits_alone)
    return f"batch_size 1 with sequence_length up to {length}" if length > 0 else ""


def _largest(too_large: int, fits: Callable[[int], bool]) -> int:
    """Find the largest value by halving: what a value takes grows with it."""
    low, high = 0, too_large
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _passes(check: Callable[[Problem], object], problem: Problem) -> bool:
    try:
        check(problem)
    except KernalyseError:
        return False
    return True
