"""Inputs of a model: arrays for all of them, of tokens where it takes some, else of seeded random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from services.core.errors import InvalidModelError, InvalidParameterError
from services.core.model import ModelRun
from services.profiler.workloads.onnx.model_file import WORDS_INPUT, ModelFile, ModelInput
from services.profiler.workloads.onnx.prompt import Tokens

Feeds = Mapping[str, npt.NDArray[Any]]

DEFAULT_TOKEN_COUNT: Final = 1000
"""Random tokens of a model whose table of words is not found are below it: every vocabulary in use is larger."""


@dataclass(frozen=True, slots=True)
class Extents:
    """Sizes of the open dimensions."""

    batch: int
    sequence: int


def takes_tokens(model: ModelFile) -> bool:
    """Return whether the model has an input for tokens."""
    return any(part.name == WORDS_INPUT for part in model.inputs)


def extents(work: ModelRun, model: ModelFile, tokens: Tokens | None) -> Extents:
    """Return the sizes that the model's file fixes, else those that were requested.

    Raises InvalidParameterError: a sequence longer than the model has places for.
    """
    length = len(tokens.ids) if tokens is not None else model.sequence_length or work.sequence_length
    if takes_tokens(model) and model.place_count is not None and length > model.place_count:
        raise InvalidParameterError(
            f"sequence_length of model {work.model_name}",
            found=str(length),
            expected=f"at most {model.place_count}, the places that it knows",
            remedy="Choose a shorter one.",
        )
    return Extents(model.batch_size or work.batch_size, length)


def make_feeds(work: ModelRun, model: ModelFile, size: Extents, tokens: Tokens | None) -> Feeds:
    """Return arrays by input name. Raises InvalidModelError: an input of a kind that nothing is known to feed."""
    random = np.random.default_rng(work.seed)
    return {part.name: _values(part, model, size, tokens, random) for part in model.inputs}


def _values(part: ModelInput, model: ModelFile, size: Extents, tokens: Tokens | None, random: np.random.Generator) -> npt.NDArray[Any]:
    dtype = _dtype(part, model)
    shape = _shape(part, size)
    match part.name:
        case "input_ids" if tokens is not None:
            return _repeated(tokens.ids, shape, dtype)
        case "token_type_ids" | "segment_ids":
            return np.zeros(shape, dtype) if tokens is None else _repeated(tokens.type_ids, shape, dtype)
        case "attention_mask" | "input_mask":
            if tokens is not None and tokens.padding_count:
                return _repeated(tokens.mask, shape, dtype)
            return np.ones(shape, dtype)
        case "position_ids":
            return _repeated(range(shape[-1]), shape, dtype)
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, model.token_count or DEFAULT_TOKEN_COUNT, shape).astype(dtype)
    return random.random(shape).astype(dtype) if np.issubdtype(dtype, np.floating) else np.ones(shape, dtype)


def _repeated(values: Sequence[int], shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the same sequence for all of the batch."""
    return np.broadcast_to(np.array(values, dtype), shape).copy()


def _dtype(part: ModelInput, model: ModelFile) -> np.dtype[Any]:
    dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(part.element_type) if part.element_type else np.dtype(object)
    if dtype.kind not in "fiub":
        raise InvalidModelError(
            f"input {part.name} of model file {model.path.name}",
            found=onnx.TensorProto.DataType.Name(part.element_type).lower(),
            expected="numbers",
            remedy="Leave the part of the model out that takes it, or profile a program of your own that runs it.",
        )
    return dtype


def _shape(part: ModelInput, size: Extents) -> tuple[int, ...]:
    """Return the shape of an input: an open first dimension is the batch, any other one the sequence."""
    return tuple(
        given if isinstance(given, int) and given > 0 else size.batch if place == 0 else size.sequence
        for place, given in enumerate(part.shape)
    )
