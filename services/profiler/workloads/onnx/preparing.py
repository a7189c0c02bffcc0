"""A model made ready: its file found or built, the prompt turned into tokens, its inputs filled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from services.core.errors import InvalidParameterError
from services.core.model import BUILT_IN_ONNX_MODEL, LogLevel, LogLines, ModelRun
from services.profiler.workloads.configuration_run import RECHECK_SEED_STEP
from services.profiler.workloads.events import EventSink
from services.profiler.workloads.onnx.bert import stored_bert
from services.profiler.workloads.onnx.feeds import Extents, Feeds, extents, make_feeds, takes_tokens
from services.profiler.workloads.onnx.model_file import WORDS_INPUT, ModelFile, read_model_file
from services.profiler.workloads.onnx.prompt import OWN_TOKENIZER, Tokens, check_vocabulary, read_tokenizer, tokenize

BUILT_FOLDER: Final = "models"
MAX_SHOWN_COUNT: Final = 40  # tokens in the log: a line that can still be read


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model with its inputs. feeds: arrays by input name."""

    name: str
    file: ModelFile
    feeds: Feeds
    extents: Extents


def prepare(work: ModelRun, folder: Path, cache_folder: Path | None, sink: EventSink) -> PreparedModel:
    """Prepare a model. folder: of the run, with its bundle. cache_folder: where a built model is stored; None: the run's folder.

    Raises InvalidModelError and InvalidParameterError: what of the files and the prompt cannot be used.
    """
    bundle = None if work.bundle_digest is None else (folder / "bundles" / work.bundle_digest.removeprefix("sha256:")).resolve()
    file = read_model_file(_path(work, bundle, cache_folder or folder), work.model_name)
    tokens = _tokens(work, bundle, file, sink) if work.prompt else None
    size = extents(work, file, tokens)
    _report_fixed(work, size, sink)
    return PreparedModel(work.model_name, file, make_feeds(work, file, size, tokens), size)


def fresh_feeds(work: ModelRun, model: PreparedModel) -> Feeds:
    """Return inputs of the same shapes that the model has not seen: random tokens, whatever the prompt."""
    return make_feeds(replace(work, seed=work.seed + RECHECK_SEED_STEP), model.file, model.extents, None)


def _report_fixed(work: ModelRun, size: Extents, sink: EventSink) -> None:
    """Report requested sizes that the file does not allow, not to be taken for what was measured."""
    if size.batch != work.batch_size:
        text = f"The model's file fixes the batch at {size.batch}: {work.batch_size} is not what runs."
        sink.write(LogLines(LogLevel.WARNING, "worker", (text,)))
    if not work.prompt and size.sequence != work.sequence_length:
        text = f"The model's file fixes the sequence at {size.sequence} tokens: {work.sequence_length} is not what runs."
        sink.write(LogLines(LogLevel.INFO, "worker", (text,)))


def _path(work: ModelRun, bundle: Path | None, cache_folder: Path) -> Path:
    if work.model_name == BUILT_IN_ONNX_MODEL:
        return stored_bert(cache_folder / BUILT_FOLDER, work.vocabulary_size, work.seed)
    assert bundle is not None  # the service has checked it
    return bundle / work.model_name


def _tokens(work: ModelRun, bundle: Path | None, file: ModelFile, sink: EventSink) -> Tokens:
    if not takes_tokens(file):
        raise InvalidParameterError(
            f"prompt for model {work.model_name}",
            found=f"a model with the inputs {', '.join(part.name for part in file.inputs)}",
            expected=f"one that takes tokens as {WORDS_INPUT}",
            remedy="Leave the prompt out: the inputs are filled with random numbers then.",
        )
    is_own = bundle is None or not work.tokenizer_file_name
    name = "the project's small vocabulary" if is_own else f"tokenizer file {work.tokenizer_file_name}"
    path = OWN_TOKENIZER if bundle is None or is_own else bundle / work.tokenizer_file_name
    tokenizer = read_tokenizer(path, work.tokenizer_file_name or path.name)
    check_vocabulary(tokenizer, name, file.token_count, work.model_name)
    tokens = tokenize(tokenizer, work.prompt, file.place_count, file.sequence_length)
    told_count = len(tokens.ids) - tokens.padding_count
    lines = [f"Prompt, {told_count} tokens of {name}: {' '.join(tokens.texts[: min(told_count, MAX_SHOWN_COUNT)])}"]
    if told_count > MAX_SHOWN_COUNT:
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
