"""Reference of a GPT's logits: the same weights and tokens in float64, and how far the device's logits are from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from services.core.model import Verification, VerificationState
from services.profiler.measuring.transformer_references import attention_of, gelu_of, layernorm_of
from services.profiler.workloads.gpt.operations import Problem
from services.profiler.workloads.gpt.weights import Array

EPSILON: Final = 1e-5  # of layer norms: the catalogue's
LOGITS: Final = "logits"
TOLERANCE: Final = 1e-4  # max|difference| / max|reference|: float32 sums in another order stay at 1e-6, a wrong kernel far above
CHUNK_ROWS: Final = 4_096  # of activations at once, at least one sequence: what float64 takes of memory, and how often it tells


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
        attended = attention_of(qkv.reshape(*tokens.shape, 3, *heads), 1 / math.sqrt(architecture.head_width))
        x = x + _linear(weights, f"{block}.attn.proj", attended.reshape(x.shape))
        hidden = gelu_of(_linear(weights, f"{block}.mlp.fc", _norm(weights, f"{block}.ln2", x)))
        x = x + _linear(weights, f"{block}.mlp.proj", hidden)
    logits: Array = _norm(weights, "ln_f", x) @ weights["logits.weight"]
    return logits


def _linear(weights: Mapping[str, Array], path: str, x: Array) -> Array:
    product: Array = x @ weights[f"{path}.weight"] + weights[f"{path}.bias"]
    return product


def _norm(weights: Mapping[str, Array], path: str, x: Array) -> Array:
    return layernorm_of(x, weights[f"{path}.gamma"], weights[f"{path}.beta"], EPSILON)


class LogitsCheck:
    """Distance of logits from the reference, added up chunk by chunk."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._scale = 0.0

    def add(self, logits: Array, reference: Array) -> None:
        """Add logits and reference of one shape. A logit that is not finite is infinitely far away."""
        deviation = float(np.abs(logits - reference).max()) if np.isfinite(logits).all() else math.inf
        self._worst = max(self._worst, deviation)
        self._scale = max(self._scale, float(np.abs(reference).max()))

    def verification(self) -> Verification:
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
