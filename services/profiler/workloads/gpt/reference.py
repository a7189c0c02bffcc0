"""The reference for a GPT's logits in float64, from the same weights and tokens, and the memory that a run needs."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil

from kernalyse.services.core.errors import KernalyseError, LaunchLimitError, MemoryLimitError
from kernalyse.services.core.model import CacheMode, Device, DeviceKind, RunLimits, Verification, VerificationState
from kernalyse.services.profiler.backends.base import check_launch
from kernalyse.services.profiler.measuring.references import apply_causal_attention, apply_gelu, apply_layernorm
from kernalyse.services.profiler.workloads.gpt.operations import PlannedPass, Problem, plan_pass

# ---------------------------------------------------------------- weights

Array = npt.NDArray[Any]

TOKENS: Final = "tokens"
WEIGHT_DEVIATION: Final = 0.1  # of biases, and of the layer norms' factors around 1: large enough that a kernel that forgets them shows


def random_tokens(problem: Problem, seed: int) -> Array:
    """Return tokens, int32, shape (batch, sequence), uniform over the vocabulary."""
    shape = (problem.batch_size, problem.sequence_length)
    return _generator(seed, TOKENS).integers(0, problem.vocabulary_size, shape, np.int32)


def random_weights(problem: Problem, seed: int) -> Mapping[str, Array]:
    """Return float32 weights by the names that `operations` gives them.

    Matrices are (in, out), normal with variance 1 / in, so that activations keep their size from layer to layer and every
    operation shows in the logits.
    """
    return {name: _values(shape, seed, name) for name, shape in weight_shapes(problem)}


def weight_shapes(problem: Problem) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every weight."""
    architecture = problem.architecture
    width, mlp_width = architecture.width, architecture.mlp_width
    yield "embed.token_table", (problem.vocabulary_size, width)
    yield "embed.position_table", (problem.sequence_length, width)
    for index in range(architecture.layer_count):
        block = f"blocks.{index}"
        for path, shape in (
            ("attn.qkv", (width, 3 * width)),
            ("attn.proj", (width, width)),
            ("mlp.fc", (width, mlp_width)),
            ("mlp.proj", (mlp_width, width)),
        ):
            yield f"{block}.{path}.weight", shape
            yield f"{block}.{path}.bias", shape[1:]
        for norm in ("ln1", "ln2"):
            yield f"{block}.{norm}.gamma", (width,)
            yield f"{block}.{norm}.beta", (width,)
    yield "ln_f.gamma", (width,)
    yield "ln_f.beta", (width,)
    yield "logits.weight", (width, problem.vocabulary_size)


def parameter_count(problem: Problem) -> int:
    """Return the number of weights of the model."""
    return sum(math.prod(shape) for _, shape in weight_shapes(problem))


def _values(shape: tuple[int, ...], seed: int, name: str) -> Array:
    values = _generator(seed, name).standard_normal(shape, np.float32)
    if name.endswith(".weight"):
        values /= np.float32(math.sqrt(shape[0]))
    elif name.endswith((".bias", ".beta", ".gamma")):
        values *= np.float32(WEIGHT_DEVIATION)
    if name.endswith(".gamma"):
        values += np.float32(1)
    return values


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng((seed, zlib.crc32(name.encode())))


# ---------------------------------------------------------------- reference

EPSILON: Final = 1e-5  # of layer norms, as in the catalog
LOGITS: Final = "logits"
TOLERANCE: Final = 1e-4  # max|difference| / max|reference|: float32 sums in another order stay at 1e-6, a wrong kernel far above
CHUNK_ROWS: Final = 4_096  # of activations at once, at least one sequence: more take more float64 memory, fewer report progress more often


def reference_logits(problem: Problem, weights: Mapping[str, Array], tokens: Array) -> Iterator[tuple[slice, Array]]:
    """Yield slices of sequences and their logits, float64, shape (sequences, sequence, vocabulary)."""
    exact = {name: values.astype(np.float64) for name, values in weights.items()}
    step = max(1, CHUNK_ROWS // problem.sequence_length)
    for first in range(0, problem.batch_size, step):
        chosen = slice(first, min(first + step, problem.batch_size))
        yield chosen, _forward(problem, exact, tokens[chosen])


def _forward(problem: Problem, weights: Mapping[str, Array], tokens: Array) -> Array:
    """Compute a pre-norm decoder. Radford et al., "Language Models are Unsupervised Multitask Learners", section 2.3."""
    architecture = problem.architecture
    heads = (architecture.head_count, architecture.head_width)
    x = weights["embed.token_table"][tokens] + weights["embed.position_table"]
    for index in range(architecture.layer_count):
        block = f"blocks.{index}"
        qkv = _linear(weights, f"{block}.attn.qkv", _norm(weights, f"{block}.ln1", x))
        attended = apply_causal_attention(qkv.reshape(*tokens.shape, 3, *heads), 1 / math.sqrt(architecture.head_width))
        x = x + _linear(weights, f"{block}.attn.proj", attended.reshape(x.shape))
        hidden = apply_gelu(_linear(weights, f"{block}.mlp.fc", _norm(weights, f"{block}.ln2", x)))
        x = x + _linear(weights, f"{block}.mlp.proj", hidden)
    logits: Array = _norm(weights, "ln_f", x) @ weights["logits.weight"]
    return logits


def _linear(weights: Mapping[str, Array], path: str, x: Array) -> Array:
    product: Array = x @ weights[f"{path}.weight"] + weights[f"{path}.bias"]
    return product


def _norm(weights: Mapping[str, Array], path: str, x: Array) -> Array:
    return apply_layernorm(x, weights[f"{path}.gamma"], weights[f"{path}.beta"], EPSILON)


class LogitsCheck:
    """The distance of logits from the reference, accumulated chunk by chunk."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._scale = 0.0

    def add(self, logits: Array, reference: Array) -> None:
        """Add logits and reference of one shape. A logit that is not finite is infinitely far away."""
        deviation = float(np.abs(logits - reference).max()) if np.isfinite(logits).all() else math.inf
        self._worst = max(self._worst, deviation)
        self._scale = max(self._scale, float(np.abs(reference).max()))

    def verification(self) -> Verification:
        """Return the verdict on all logits that were added."""
        relative = self._worst / self._scale if self._scale else math.inf
        has_passed = relative <= TOLERANCE
        is_known = math.isfinite(relative)
        return Verification(
            state=VerificationState.PASSED if has_passed else VerificationState.FAILED,
            max_absolute_error=self._worst if is_known else None,
            max_relative_error=relative if is_known else None,
            relative_tolerance=TOLERANCE,
            buffer_name=LOGITS,
            message="" if has_passed else f"Logits differ by {relative:.3g} of the largest; tolerance {TOLERANCE:g}.",
        )


# ---------------------------------------------------------------- memory need
# Device and host memory of a GPT run, and the largest input that fits.

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
    """Raise MemoryLimitError, before anything is allocated, for a run that device or host cannot hold.

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
    """Return the largest fitting dimensions, each by itself, or the longest single sequence; empty where not one token fits."""

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
    """Return the largest fitting value by bisection; the need grows with the value."""
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
