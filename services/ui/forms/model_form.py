"""The forms for whole models: one by name or of a file, and an ONNX model by the text of a prompt."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.ml_models import ARCHITECTURES
from kernalyse.services.core.model import BUILT_IN_ONNX_MODEL, ONNX_ENDING, ModelRun, RunSpec
from kernalyse.services.ui.forms.form import (
    TITLE,
    BuiltForm,
    Field,
    FormName,
    Group,
    Place,
    Problems,
    Values,
    backend_of,
    count_of,
    node_field,
    option,
    option_of_each,
    place_fields,
    place_options,
    text_of,
)
from kernalyse.services.ui.forms.measuring_fields import FIELD_OF_OPTION, OF_TIME, S_PER_NS, measuring_options, measuring_words
from kernalyse.services.ui.uploads.given_files import GivenFile

MAX_DURATION_S: Final = 6.0  # of sampling whole passes: somebody waits, and on a noisy machine the limit is what ends the run
PROMPT_DURATION_S: Final = 5.0
LAUNCHES_SHARE: Final = 4 / 3  # launch by launch for a third of the time besides
VARIANTS: Final = (("baseline", "baseline"), ("fused", "fused"), ("baseline,fused", "both in turns, compared"))
MODELS: Final = (
    *((one.model_name, f"{one.model_name}: {one.layer_count} blocks, width {one.width}") for one in ARCHITECTURES),
    (BUILT_IN_ONNX_MODEL, f"{BUILT_IN_ONNX_MODEL}: a small BERT, ONNX Runtime"),
)
FILES: Final = Field(
    "files",
    "Own model",
    "files",
    hint=".onnx, with its weights and tokenizer.json where it has them.",
    accept=".onnx,.onnx_data,.data,.json",
)
FIELD_OF_SUBJECT: Final = {
    "batch_size": "batch_size",
    "sequence_length": "sequence_length",
    "vocabulary_size": "vocabulary_size",
    "variant": "variants",
    "variants": "variants",
    "prompt": "prompt",
    "tokenizer_file_name": "files",
    "bundle_digest": "files",
    "backend": "backend",
    "device": "device",
    "model": "model",
}


class ModelForm:
    name: FormName = "model"
    title = "Model"

    def groups(self, values: Values, place: Place) -> tuple[Group, ...]:
        is_onnx = _model_file(place) is not None or text_of(values, "model") == BUILT_IN_ONNX_MODEL
        own = (("", f"{file.name}: your file"),) if (file := _model_file(place)) is not None else ()
        of_gpt = (
            Field("variants", "Variant", "select", VARIANTS, default="fused", hint="One kernel an operation, or tiled and fused ones."),
            Field("vocabulary_size", "Vocabulary", "number", placeholder="1024"),
        )
        work = (
            Field("model", "Model", "select", (*own, *MODELS), default=own[0][0] if own else MODELS[0][0], is_wide=True),
            FILES,
            Field("batch_size", "Batch size", "number", placeholder="4", hint="Sequences of one pass."),
            Field("sequence_length", "Sequence length", "number", placeholder="64", hint="Tokens of each."),
            *(() if is_onnx else of_gpt),
        )
        backends = ("auto", "pycuda", "opencl")
        return (
            Group("Model", work),
            Group("How to measure", _short(OF_TIME, MAX_DURATION_S)),
            Group("Where", (*place_fields(place, backends), TITLE)),
        )

    def build(self, values: Values, place: Place) -> BuiltForm:
        problems = Problems()
        model_name = _model_name(values, place)
        is_own = model_name.endswith(ONNX_ENDING)
        is_onnx = is_own or model_name == BUILT_IN_ONNX_MODEL
        variants = () if is_onnx else tuple((text_of(values, "variants") or "fused").split(","))
        words = measuring_words(values, problems, MAX_DURATION_S)
        batch_size = count_of(values, "batch_size", problems, 4)
        sequence_length = count_of(values, "sequence_length", problems, 64)
        vocabulary_size = count_of(values, "vocabulary_size", problems, 1024)
        work = ModelRun(
            model_name=model_name,
            variants=variants,
            batch_size=batch_size,
            sequence_length=sequence_length,
            backend=backend_of(values),
            device_id=text_of(values, "device") or None,
            vocabulary_size=vocabulary_size,
            seed=words.seed,
            measuring=words.options(),
        )
        command = (
            *("kernalyse", "model", model_name),
            *(_bundle_option(place) if is_own else ()),
            *option_of_each("--variant", variants),
            *option("--batch-size", text_of(values, "batch_size")),
            *option("--seq-len", text_of(values, "sequence_length")),
            *option("--vocab-size", "" if is_onnx else text_of(values, "vocabulary_size")),
            *measuring_options(values),
            *place_options(values, place),
            *option("--title", text_of(values, "title")),
        )
        return BuiltForm(
            None if problems.found else RunSpec(work, title=text_of(values, "title")),
            problems.found,
            command=command,
            bundle=place.files if is_own else (),
            max_duration_s=words.options().max_duration_ns * S_PER_NS * max(1, len(variants)) * LAUNCHES_SHARE,
        )

    def field_of(self, error: KernalyseError) -> str:
        return _field_of(error)


class PromptForm:
    name: FormName = "prompt"
    title = "Prompt"

    def groups(self, values: Values, place: Place) -> tuple[Group, ...]:
        file = _model_file(place)
        note = f"{file.name if file else 'A small BERT'} runs on this text under ONNX Runtime's profiler; its nodes stream as layers."
        work = (
            Field("prompt", "Text", "lines", placeholder="The quick brown fox", is_wide=True, max_length=8_000),
            FILES,
        )
        return (Group("Prompt", work, note=note), Group("Where", (node_field(place), TITLE)))

    def build(self, values: Values, place: Place) -> BuiltForm:
        problems = Problems()
        prompt = text_of(values, "prompt")
        if not prompt:
            problems.say("prompt", "Write some words: they become the model's tokens.")
        words = measuring_words({}, problems, PROMPT_DURATION_S)
        file = _model_file(place)
        tokenizer = next((one for one in place.files if one.name.endswith(".json")), None) if file is not None else None
        work = ModelRun(
            model_name=BUILT_IN_ONNX_MODEL if file is None else file.name,
            prompt=prompt,
            measuring=words.options(),
            tokenizer_file_name="" if tokenizer is None else tokenizer.name,
        )
        command = (
            *("kernalyse", "profile", "--prompt", prompt),
            *option("--model", "" if file is None else file.name),
            *option("--tokenizer", "" if tokenizer is None else tokenizer.name),
            *(() if file is None else _bundle_option(place, tokenizer)),
            *place_options({"node": values.get("node", "")}, place),
            *option("--title", text_of(values, "title")),
        )
        return BuiltForm(
            None if problems.found else RunSpec(work, title=text_of(values, "title")),
            problems.found,
            command=command,
            bundle=place.files if file is not None else (),
            max_duration_s=2 * PROMPT_DURATION_S,
        )

    def field_of(self, error: KernalyseError) -> str:
        return _field_of(error)


def _model_file(place: Place) -> GivenFile | None:
    return next((file for file in place.files if file.name.endswith(ONNX_ENDING)), None)


def _bundle_option(place: Place, *named: GivenFile | None) -> tuple[str, ...]:
    """For the command line, which takes along what it names and weights that are called as their model is."""
    model = _model_file(place)
    others = [file for file in place.files if file not in named and model is not None and not file.name.startswith(model.name)]
    return option("--bundle", "." if others else "")


def _model_name(values: Values, place: Place) -> str:
    """What is chosen; where nothing is, a file that was given comes before the built-in ones."""
    chosen, file = text_of(values, "model"), _model_file(place)
    if any(chosen == name for name, _ in MODELS):
        return chosen
    return file.name if file is not None else MODELS[0][0]


def _short(fields: tuple[Field, ...], seconds: float) -> tuple[Field, ...]:
    return tuple(replace(one, placeholder=f"{seconds:g}", hint="Of whole passes.") if one.name == "max_time" else one for one in fields)


def _field_of(error: KernalyseError) -> str:
    if found := re.match(r"measuring option (\w+)", error.subject):
        return FIELD_OF_OPTION.get(found[1], "")
    return FIELD_OF_SUBJECT.get(error.subject.partition(" ")[0], "")
