"""Random weights and tokens of a GPT, from a seed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.profiler.workloads.gpt.operations import Problem

Array = npt.NDArray[Any]

TOKENS: Final = "tokens"
SPREAD: Final = 0.1  # of biases, and of the layer norms' factors around 1: large enough that a kernel that forgets them shows


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
        values *= np.float32(SPREAD)
    if name.endswith(".gamma"):
        values += np.float32(1)
    return values


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng((seed, zlib.crc32(name.encode())))
