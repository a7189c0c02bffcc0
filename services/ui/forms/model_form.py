"""The forms for whole models: one by name or of a file, and an ONNX model by the text of a prompt."""

from __future__ import annotations

import re
from typing import Final

import param

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.ml_models import ARCHITECTURES
from kernalyse.services.core.model import BUILT_IN_ONNX_MODEL, ONNX_ENDING, ModelRun, RunSpec
from kernalyse.services.ui.forms.form import (
    FIELD_OF_OPTION,
    S_PER_NS,
    BuiltForm,
    Choice,
    Choices,
    Form,
    Group,
    Place,
    PlacedForm,
    Problems,
    TimeFields,
    Values,
    Words,
    backend_of,
    count_of,
    measuring_options,
    measuring_words,
    option,
    option_of_each,
    place_options,
    text_of,
)
from kernalyse.services.ui.uploads.given_files import GivenFile

MAX_DURATION_S: Final = 6.0  # of sampling whole passes: somebody waits, and on a noisy machine the limit is what ends the run
PROMPT_DURATION_S: Final = 5.0
LAUNCHES_SHARE: Final = 4 / 3  # launch by launch for a third of the time besides
VARIANTS: Final = (("baseline", "baseline"), ("fused", "fused"), ("baseline,fused", "both in turns, compared"))
MODELS: Final = (
    *((one.model_name, f"{one.model_name}: {one.layer_count} blocks, width {one.width}") for one in ARCHITECTURES),
    (BUILT_IN_ONNX_MODEL, f"{BUILT_IN_ONNX_MODEL}: a small BERT, ONNX Runtime"),
)
FILES_HINT: Final = ".onnx, with its weights and tokenizer.json where it has them."
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


class ModelForm(PlacedForm, TimeFields):
    """The model, its input, and how long to measure it."""

    key = "model"
    heading = "Model"

    model = Choice("Model", MODELS, is_wide=True)
    batch_size = Words("Batch size", "4", "Sequences of one pass.", is_number=True)
    sequence_length = Words("Sequence length", "64", "Tokens of each.", is_number=True)
    variants = Choice("Variant", VARIANTS, "fused", "One kernel an operation, or tiled and fused ones.")
    vocabulary_size = Words("Vocabulary", "1024", is_number=True)
    max_time = Words("Longest sampling, s", f"{MAX_DURATION_S:g}", "Of whole passes.", is_number=True)
    backend = Choice("Backend", tuple((name, name) for name in ("auto", "pycuda", "opencl")), "auto")
    files = param.List(default=[], item_type=str, label="Own model")

    def groups(self, place: Place) -> tuple[Group, ...]:
        is_onnx = _model_file(place) is not None or self.model == BUILT_IN_ONNX_MODEL
        of_gpt = () if is_onnx else ("variants", "vocabulary_size")
        return (
            Group("Model", ("model", "files", "batch_size", "sequence_length", *of_gpt)),
            Group("How to measure", self.OF_TIME),
            Group("Where", (*self.PLACE, "title")),
        )

    def choices(self, place: Place) -> dict[str, Choices]:
        file = _model_file(place)
        return {**super().choices(place), "model": MODELS if file is None else (("", f"{file.name}: your file"), *MODELS)}

    def hint_of(self, name: str, place: Place) -> str:
        return FILES_HINT if name == "files" else super().hint_of(name, place)

    def take(self, file: GivenFile, given: tuple[GivenFile, ...]) -> None:
        super().take(file, given)
        if file.name.endswith(ONNX_ENDING):
            self.model = ""

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


class PromptForm(Form):
    """The text, and the model that it is for."""

    key = "prompt"
    heading = "Prompt"

    prompt = Words("Text", "The quick brown fox", is_wide=True, line_count=4, max_length=8_000)
    files = param.List(default=[], item_type=str, label="Own model")

    def groups(self, place: Place) -> tuple[Group, ...]:
        file = _model_file(place)
        note = f"{file.name if file else 'A small BERT'} runs on this text under ONNX Runtime's profiler; its nodes stream as layers."
        return (Group("Prompt", ("prompt", "files"), note=note), Group("Where", ("node", "title")))

    def hint_of(self, name: str, place: Place) -> str:
        return FILES_HINT if name == "files" else super().hint_of(name, place)

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


def _field_of(error: KernalyseError) -> str:
    if found := re.match(r"measuring option (\w+)", error.subject):
        return FIELD_OF_OPTION.get(found[1], "")
    return FIELD_OF_SUBJECT.get(error.subject.partition(" ")[0], "")
