"""The preparation of an ONNX model: prompt, input tensors and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from tokenizers import Tokenizer

from kernalyse.services.core.errors import InvalidModelError, InvalidParameterError
from kernalyse.services.core.model import BUILT_IN_ONNX_MODEL, LogLevel, LogLines, ModelRun
from kernalyse.services.profiler.workloads.events import EventSink
from kernalyse.services.profiler.workloads.onnx.bert import stored_bert
from kernalyse.services.profiler.workloads.onnx.model_file import TOKENS_INPUT, ModelFile, ModelInput, read_model_file
from kernalyse.services.profiler.workloads.sweeps.configuration import RECHECK_SEED_STEP

# ---------------------------------------------------------------- prompt

PADDING_TOKENS: Final = ("[PAD]", "<pad>")
OWN_TOKENIZER: Final = Path(__file__).with_name("tokenizer.json")
"""1024 word pieces of English. What is not of it falls to pieces or, of other alphabets, to [UNK]."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a prompt. All fields have the sequence length. mask: 0 for padding, else 1.

    dropped_count: over the model's maximum. padding_count: at the end, where the model takes no shorter sequence.
    """

    ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    mask: tuple[int, ...]
    texts: tuple[str, ...]
    dropped_count: int
    padding_count: int


def read_tokenizer(path: Path, name: str) -> Tokenizer:
    """Read the tokenizer. Raises InvalidModelError: it is not there, or not what the tokenizers library writes."""
    if not path.is_file():
        raise InvalidModelError(
            f"tokenizer file {name}", found="no such file in the bundle", expected="a tokenizer.json", remedy="Upload it with the model."
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no class of its own
        raise InvalidModelError(
            f"tokenizer file {name}",
            found=str(error),
            expected="a file of the tokenizers library",
            remedy="Save it with Tokenizer.save or save_pretrained.",
        ) from error


def check_vocabulary(tokenizer: Tokenizer, tokenizer_name: str, token_count: int | None, model_name: str) -> None:
    """Raise InvalidModelError for a tokenizer with more tokens than the model's vocabulary. token_count: the model's; None: unknown."""
    size = tokenizer.get_vocab_size()
    if token_count is not None and size > token_count:
        raise InvalidModelError(
            f"vocabulary of {tokenizer_name}",
            found=f"{size} tokens",
            expected=f"at most {token_count}, the vocabulary size of {model_name}",
            remedy="Give the tokenizer that the model was trained with.",
        )


def tokenize(tokenizer: Tokenizer, prompt: str, max_count: int | None, fixed_count: int | None = None) -> Tokens:
    """Return the prompt's tokens with the tokenizer's special tokens, cut to max_count; the last special token stays.

    Args:
        fixed_count: of a model that takes sequences of this length alone: what is missing is padding.

    Raises InvalidParameterError: nothing of the prompt becomes a token.
    """
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encoding = tokenizer.encode(prompt)
    if all(encoding.special_tokens_mask):
        raise InvalidParameterError("prompt", found="text that the tokenizer drops", expected="words", remedy="Give some text.")
    full_count = len(encoding.ids)
    most = min((count for count in (max_count, fixed_count) if count is not None), default=None)
    if most is not None and full_count > most:
        tokenizer.enable_truncation(most)
        encoding = tokenizer.encode(prompt)
    token_count = len(encoding.ids)
    if fixed_count is not None:
        padding = next((token for token in PADDING_TOKENS if tokenizer.token_to_id(token) is not None), None)
        encoding.pad(fixed_count, pad_id=(padding and tokenizer.token_to_id(padding)) or 0, pad_token=padding or PADDING_TOKENS[0])
    return Tokens(
        ids=tuple(encoding.ids),
        type_ids=tuple(encoding.type_ids),
        mask=tuple(encoding.attention_mask),
        texts=tuple(encoding.tokens),
        dropped_count=full_count - token_count,
        padding_count=len(encoding.ids) - token_count,
    )


# ---------------------------------------------------------------- input tensors
# Arrays for all inputs of a model: tokens where it takes them, seeded random numbers elsewhere.

Feeds = Mapping[str, npt.NDArray[Any]]

DEFAULT_TOKEN_COUNT: Final = 1000
"""Limit of random tokens for a model whose vocabulary size is not found: every vocabulary in use is larger."""


@dataclass(frozen=True, slots=True)
class OpenDimensions:
    """The sizes of the open dimensions."""

    batch: int
    sequence: int


def takes_tokens(model: ModelFile) -> bool:
    """Return whether the model has an input for tokens."""
    return any(part.name == TOKENS_INPUT for part in model.inputs)


def resolve_dimensions(work: ModelRun, model: ModelFile, tokens: Tokens | None) -> OpenDimensions:
    """Return the sizes that the model's file fixes, else those that were requested.

    Raises InvalidParameterError: a sequence longer than the model's position table.
    """
    length = len(tokens.ids) if tokens is not None else model.sequence_length or work.sequence_length
    if takes_tokens(model) and model.position_count is not None and length > model.position_count:
        raise InvalidParameterError(
            f"sequence_length of model {work.model_name}",
            found=str(length),
            expected=f"at most {model.position_count}, the positions that it knows",
            remedy="Choose a shorter one.",
        )
    return OpenDimensions(model.batch_size or work.batch_size, length)


def make_feeds(work: ModelRun, model: ModelFile, size: OpenDimensions, tokens: Tokens | None) -> Feeds:
    """Return the input arrays by name. Raises InvalidModelError for an input of an unsupported kind."""
    random = np.random.default_rng(work.seed)
    return {part.name: _values(part, model, size, tokens, random) for part in model.inputs}


def _values(
    part: ModelInput, model: ModelFile, size: OpenDimensions, tokens: Tokens | None, random: np.random.Generator
) -> npt.NDArray[Any]:
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


def _shape(part: ModelInput, size: OpenDimensions) -> tuple[int, ...]:
    """Return the shape of an input: an open first dimension is the batch, any other one the sequence."""
    return tuple(
        given if isinstance(given, int) and given > 0 else size.batch if place == 0 else size.sequence
        for place, given in enumerate(part.shape)
    )


# ---------------------------------------------------------------- preparation
# The model file is found or built, the prompt tokenized, and the inputs filled.

BUILT_DIRECTORY: Final = "models"
MAX_SHOWN_COUNT: Final = 40  # tokens in the log: a line that can still be read


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model with its inputs. feeds: arrays by input name."""

    name: str
    file: ModelFile
    feeds: Feeds
    dimensions: OpenDimensions


def prepare(work: ModelRun, directory: Path, cache_directory: Path | None, sink: EventSink) -> PreparedModel:
    """Prepare a model. directory: of the run, with its bundle. cache_directory: where a built model is stored; None: the run's directory.

    Raises InvalidModelError and InvalidParameterError: what of the files and the prompt cannot be used.
    """
    bundle = None if work.bundle_digest is None else (directory / "bundles" / work.bundle_digest.removeprefix("sha256:")).resolve()
    file = read_model_file(_path(work, bundle, cache_directory or directory), work.model_name)
    tokens = _tokens(work, bundle, file, sink) if work.prompt else None
    size = resolve_dimensions(work, file, tokens)
    _report_fixed(work, size, sink)
    return PreparedModel(work.model_name, file, make_feeds(work, file, size, tokens), size)


def fresh_feeds(work: ModelRun, model: PreparedModel) -> Feeds:
    """Return inputs of the same shapes that the model has not seen: random tokens, whatever the prompt."""
    return make_feeds(replace(work, seed=work.seed + RECHECK_SEED_STEP), model.file, model.dimensions, None)


def _report_fixed(work: ModelRun, size: OpenDimensions, sink: EventSink) -> None:
    """Log requested sizes that the file overrides, so that they are not mistaken for the measured ones."""
    if size.batch != work.batch_size:
        text = f"The model's file fixes the batch at {size.batch}: {work.batch_size} is not what runs."
        sink.write(LogLines(LogLevel.WARNING, "worker", (text,)))
    if not work.prompt and size.sequence != work.sequence_length:
        text = f"The model's file fixes the sequence at {size.sequence} tokens: {work.sequence_length} is not what runs."
        sink.write(LogLines(LogLevel.INFO, "worker", (text,)))


def _path(work: ModelRun, bundle: Path | None, cache_directory: Path) -> Path:
    if work.model_name == BUILT_IN_ONNX_MODEL:
        return stored_bert(cache_directory / BUILT_DIRECTORY, work.vocabulary_size, work.seed)
    assert bundle is not None  # the service has checked it
    return bundle / work.model_name


def _tokens(work: ModelRun, bundle: Path | None, file: ModelFile, sink: EventSink) -> Tokens:
    if not takes_tokens(file):
        raise InvalidParameterError(
            f"prompt for model {work.model_name}",
            found=f"a model with the inputs {', '.join(part.name for part in file.inputs)}",
            expected=f"one that takes tokens as {TOKENS_INPUT}",
            remedy="Leave the prompt out: the inputs are filled with random numbers then.",
        )
    is_own = bundle is None or not work.tokenizer_file_name
    name = "the project's small vocabulary" if is_own else f"tokenizer file {work.tokenizer_file_name}"
    path = OWN_TOKENIZER if bundle is None or is_own else bundle / work.tokenizer_file_name
    tokenizer = read_tokenizer(path, work.tokenizer_file_name or path.name)
    check_vocabulary(tokenizer, name, file.token_count, work.model_name)
    tokens = tokenize(tokenizer, work.prompt, file.position_count, file.sequence_length)
    token_count = len(tokens.ids) - tokens.padding_count
    lines = [f"Prompt, {token_count} tokens of {name}: {' '.join(tokens.texts[: min(token_count, MAX_SHOWN_COUNT)])}"]
    if token_count > MAX_SHOWN_COUNT:
        lines[0] += " …"
    if tokens.padding_count:
        lines.append(f"The model takes sequences of {len(tokens.ids)} tokens alone: {tokens.padding_count} behind the prompt are padding.")
    sink.write(LogLines(LogLevel.INFO, "worker", tuple(lines)))
    if tokens.dropped_count:
        text = (
            f"The prompt has {len(tokens.ids) + tokens.dropped_count} tokens, the model takes {len(tokens.ids)}: "
            f"the last {tokens.dropped_count} are left out."
        )
        sink.write(LogLines(LogLevel.WARNING, "worker", (text,)))
    return tokens
