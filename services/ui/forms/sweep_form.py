"""The forms for a sweep of kernels, of the node's catalogue or of a dropped source, and for a measurement of ceilings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import param

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.model import CeilingMeasurement, ClockMode, KernelDefinition, KernelSelection, RunSpec, SearchStrategy
from kernalyse.services.core.request_syntax import (
    SearchOptions,
    SweepOptions,
    parse_argument,
    parse_axes,
    parse_axis,
    parse_blocks,
    parse_buffer,
    parse_tie,
)
from kernalyse.services.ui.forms.form import (
    FIELD_OF_OPTION,
    S_PER_NS,
    BuiltForm,
    Choice,
    Choices,
    Group,
    MethodFields,
    Place,
    PlacedForm,
    Problems,
    TimeFields,
    Values,
    Words,
    backend_of,
    count_of,
    lines_of,
    measuring_options,
    measuring_words,
    number_of,
    option,
    option_of_each,
    place_options,
    text_of,
)
from kernalyse.services.ui.uploads.given_files import GivenFile

SOURCE_ENDING: Final = ".cu"
PARAMETER: Final = "p."
"""Begins the names of fields of parameters."""

STRATEGIES: Final = (("all", "everything"), ("random", "at random until the budget is spent"), ("halving", "the faster half goes on"))
CLOCKS: Final = {"asis": ClockMode.AS_IS, "base": ClockMode.BASE, "max": ClockMode.MAX}
CLOCK_TITLES: Final = (("asis", "as they are"), ("base", "locked to the base clock"), ("max", "locked to the highest"))
VALUES_HINT: Final = "1024,2048 or 2**7..2**10 or 32..128:32"
FIELDS_OF_SUBJECTS: Final = (
    (re.compile(r"(?:axis|parameter) (block_[xyz])\b"), "blocks"),
    (re.compile(r"(?:axis|parameter) (\w+)"), PARAMETER),
    (re.compile(r"(?:values? of|value) parameter (\w+)"), PARAMETER),
    (re.compile(r"constraint "), "where"),
    (re.compile(r"macro "), "macros"),
    (re.compile(r"tie "), "ties"),
    (re.compile(r"argument "), "arguments"),
    (re.compile(r"buffer "), "buffers"),
    (re.compile(r"compiler option "), "compiler_options"),
    (re.compile(r"(?:the )?block"), "blocks"),
    (re.compile(r"backend "), "backend"),
    (re.compile(r"device "), "device"),
    (re.compile(r"sweep option budget_ns"), "budget"),
    (re.compile(r"sweep option process_count"), "processes"),
    (re.compile(r"sweep option strategy"), "strategy"),
    (re.compile(r"(?:sweep option pairing|a paired comparison)"), "paired"),
    (re.compile(r"kernel "), "kernel"),
)


class SweepForm(PlacedForm, TimeFields, MethodFields):
    """Kernels, values of their parameters, and how to search them."""

    key = "sweep"
    heading = "Kernel sweep"

    kernel = Choice("Kernel", (), is_of_place=True)
    other_kernel = Choice("And", (("", "no other"),), is_of_place=True)
    instance = Words("Or by name", "scale<float,16>", "An instance of a template.")
    parameters = param.Dict(default={}, doc="Texts of the kernels' parameters, by their names.")
    blocks = Words("Threads per block", "16x16,32x8", "Several are swept.")
    ties = Words("Ties", "M=N, K=N", "M always has the value of N.")
    where = Words("Only where", "block_x*block_y <= 1024", "Leaves out what this is false for.")
    macros = Words("Macros", "TILE=8,16,32", "Compile-time constants, one a line.", line_count=2)
    arguments = Words("Scalar arguments", "alpha=2.0", "One a line.", line_count=2)
    compiler_options = Words("Compiler options", "--use_fast_math", "One a line.", line_count=2)
    buffers = Words("Elements behind pointers", "a=N*K", "One a line; else the product of the two largest.", line_count=2)
    flop = Words("Flop of a launch", "2*N", "An FMA is two. Without, it has no place under the roofline.")
    bytes = Words("Bytes of a launch", "12*N", "To and from device memory.")
    strategy = Choice("Strategy", STRATEGIES, "all")
    budget = Words("Budget, s", "", "Of a search: random or halving.", is_number=True)
    processes = Words("Processes", "1", "Everything in each, one after the other.", is_number=True)
    clocks = Choice("GPU clocks", CLOCK_TITLES, "asis", "While it measures; where the driver permits no lock, measurements say so.")
    paired = param.Boolean(default=False, label="Alternate two kernels, block by block, and judge them")
    unconfirmed = param.Boolean(default=False, label="Best ones uncompared with their runners-up")
    counters = param.Boolean(default=False, label="Once more under ncu, for hardware counters")
    in_order = param.Boolean(default=False, label="In order, not shuffled")

    def groups(self, place: Place) -> tuple[Group, ...]:
        is_own = place.source is not None
        names = (f"{PARAMETER}{name}" for name in self._parameters(place))
        of_all = ("blocks", "ties", "where", "macros", "arguments", "compiler_options")
        return (
            Group("Kernel", ("kernel", "other_kernel", *(("instance",) if is_own else ()))),
            Group("Parameters", (*names, *of_all), note=f"Values: {VALUES_HINT}."),
            *((Group("Of your source", ("buffers", "flop", "bytes")),) if is_own else ()),
            Group("How to measure", (*self.OF_TIME, *self.OF_METHOD, "clocks")),
            Group("How much", ("strategy", "budget", "processes", "paired", "unconfirmed", "counters", "in_order")),
            Group("Where", (*self.PLACE, "title")),
        )

    def choices(self, place: Place) -> dict[str, Choices]:
        names = tuple((kernel.kernel_name, kernel.kernel_name) for kernel in _kernels_of(place))
        return {**super().choices(place), **({"kernel": names, "other_kernel": (("", "no other"), *names)} if names else {})}

    def text(self, name: str) -> str:
        return str(self.parameters.get(name.removeprefix(PARAMETER), "")) if name.startswith(PARAMETER) else super().text(name)

    def placeholder_of(self, name: str, place: Place) -> str:
        if not name.startswith(PARAMETER):
            return super().placeholder_of(name, place)
        return ",".join(map(str, self._parameters(place).get(name.removeprefix(PARAMETER), ()))) or "1024,4096"

    def hint_of(self, name: str, place: Place) -> str:
        if name == "kernel":
            chosen = _chosen({"kernel": self.kernel}, place)
            return "" if chosen is None else chosen.description
        if not name.startswith(PARAMETER):
            return super().hint_of(name, place)
        return "" if self._parameters(place).get(name.removeprefix(PARAMETER)) else "Needs values: nothing is known of it."

    def take(self, file: GivenFile, given: tuple[GivenFile, ...]) -> None:
        """A second kernel source takes the place of the first."""
        is_source = file.name.endswith(SOURCE_ENDING)
        super().take(file, tuple(one for one in given if not (is_source and one.name.endswith(SOURCE_ENDING))))

    def _parameters(self, place: Place) -> dict[str, tuple[int, ...]]:
        return dict(_parameters_of({"kernel": self.kernel, "other_kernel": self.other_kernel}, place))

    def build(self, values: Values, place: Place) -> BuiltForm:
        problems = Problems()
        names = self._kernel_names(values, place)
        if not names:
            problems.say("kernel", "Choose one, or drop a .cu file on the page.")
        words = _words(values, place, problems)
        kernels = tuple(_selection(name, values, place, words, problems) for name in names)
        spec = None
        if not problems.found:
            try:
                spec = RunSpec(words.sweep(kernels), title=text_of(values, "title"))
            except KernalyseError as error:
                problems.say(self.field_of(error), error.message)
        return BuiltForm(
            spec,
            problems.found,
            command=_command(names, words, values, place),
            bundle=tuple(file for file in place.files if not file.name.endswith(SOURCE_ENDING)) if place.source is not None else (),
            max_duration_s=words.measuring.options().max_duration_ns * S_PER_NS,
            notices=tuple(words.measuring.notices()),
        )

    def field_of(self, error: KernalyseError) -> str:
        if found := re.match(r"measuring option (\w+)", error.subject):
            return FIELD_OF_OPTION.get(found[1], "")
        for pattern, name in FIELDS_OF_SUBJECTS:
            if found := pattern.match(error.subject):
                return f"{PARAMETER}{found[1]}" if name == PARAMETER else name
        return "where" if error.subject.startswith("expression") else ""

    def _kernel_names(self, values: Values, place: Place) -> tuple[str, ...]:
        first = text_of(values, "instance") if place.source is not None else ""
        chosen = _chosen(values, place)
        first = first or (chosen.kernel_name if chosen is not None else "")
        other = text_of(values, "other_kernel")
        known = {kernel.kernel_name for kernel in _kernels_of(place)}
        return tuple(name for name in (first, other if other in known else "") if name)


def _kernels_of(place: Place) -> tuple[KernelDefinition, ...]:
    return place.kernels if place.source is None else place.source.kernels


def _chosen(values: Values, place: Place) -> KernelDefinition | None:
    """The kernel of that name, else the first there is."""
    kernels = _kernels_of(place)
    name = text_of(values, "kernel")
    return next((kernel for kernel in kernels if kernel.kernel_name == name), next(iter(kernels), None))


def _parameters_of(values: Values, place: Place) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and default values, of all kernels that are chosen, each once."""
    others = [kernel for kernel in _kernels_of(place) if kernel.kernel_name == text_of(values, "other_kernel")]
    seen: dict[str, tuple[int, ...]] = {}
    for kernel in (_chosen(values, place), *others):
        for parameter in kernel.parameters if kernel is not None else ():
            seen.setdefault(parameter.name, parameter.default_values)
    yield from seen.items()


def _words(values: Values, place: Place, problems: Problems) -> SweepOptions:
    """Each field by itself, so that everything that is wrong is said beside it."""
    parameters = tuple(f"{name}={text}" for name, _ in _parameters_of(values, place) if (text := text_of(values, f"{PARAMETER}{name}")))
    tied = {tie.partition("=")[0].strip() for tie in _ties(values)}
    for name, defaults in _parameters_of(values, place):
        text = text_of(values, f"{PARAMETER}{name}")
        if text:
            with problems.of(f"{PARAMETER}{name}"):
                parse_axis(f"{name}={text}")
        elif not defaults and name not in tied:
            problems.say(f"{PARAMETER}{name}", f"Give it values: {VALUES_HINT}.")
    with problems.of("macros"):
        parse_axes(lines_of(values, "macros"), "-D")
    with problems.of("ties"):
        for tie in _ties(values):
            parse_tie(tie)
    with problems.of("arguments"):
        for argument in lines_of(values, "arguments"):
            parse_argument(argument)
    with problems.of("blocks"):
        if text_of(values, "blocks"):
            parse_blocks(text_of(values, "blocks"))
    with problems.of("where"):
        if text_of(values, "where"):
            parse_expression(text_of(values, "where"))
    search = _search(values, problems)
    with problems.of("budget"):
        search.budget_ns()
    return SweepOptions(
        parameters=parameters,
        macros=lines_of(values, "macros"),
        ties=_ties(values),
        where=text_of(values, "where"),
        arguments=lines_of(values, "arguments"),
        blocks=text_of(values, "blocks") or None,
        compiler_options=lines_of(values, "compiler_options"),
        backend=backend_of(values),
        device_id=text_of(values, "device") or None,
        measuring=measuring_words(values, problems),
        search=search,
        clock_mode=CLOCKS[values.get("clocks", "asis")],
    )


def _ties(values: Values) -> tuple[str, ...]:
    return tuple(part.strip() for part in text_of(values, "ties").split(",") if part.strip())


def _search(values: Values, problems: Problems) -> SearchOptions:
    budget_s = number_of(values, "budget", problems)
    strategy = SearchStrategy(values.get("strategy", "all").upper())
    return SearchOptions(
        is_shuffled="in_order" not in values,
        strategy=strategy,
        budget_s=budget_s,
        process_count=count_of(values, "processes", problems, 1),
        is_paired="paired" in values,
        with_counters="counters" in values,
        is_confirmed="unconfirmed" not in values,
    )


def _selection(name: str, values: Values, place: Place, words: SweepOptions, problems: Problems) -> KernelSelection:
    """Of a source with the definition that was derived of it, and what the form says besides."""
    if place.source is None:
        return KernelSelection(name)
    definition = next((kernel for kernel in place.source.kernels if kernel.kernel_name == name), None)
    if definition is None:
        return KernelSelection(name, place.source.source)
    for field_name in ("flop", "bytes"):
        with problems.of(field_name):
            if text_of(values, field_name):
                parse_expression(text_of(values, field_name))
    counts: dict[str, str] = {}
    with problems.of("buffers"):
        counts = dict(map(parse_buffer, lines_of(values, "buffers")))
        unknown = counts.keys() - {buffer.name for buffer in definition.buffers}
        if unknown:
            known = ", ".join(buffer.name for buffer in definition.buffers)
            problems.say("buffers", f"Found {min(unknown)}, no pointer of {name}; expected one of {known}.")
    arguments = {}
    with problems.of("arguments"):
        arguments = {argument.name: argument for argument in words.parsed_arguments()}
    described = replace(
        definition,
        flop=text_of(values, "flop") or None,
        bytes=text_of(values, "bytes") or None,
        buffers=tuple(
            replace(buffer, shape=(counts[buffer.name], *buffer.shape[1:])) if buffer.name in counts else buffer
            for buffer in definition.buffers
        ),
        arguments=tuple(arguments.get(argument.name, argument) for argument in definition.arguments),
    )
    return KernelSelection(name, place.source.source, described)


def _command(names: tuple[str, ...], words: SweepOptions, values: Values, place: Place) -> tuple[str, ...]:
    file_name = "" if place.source is None else f"{place.source.source.file_name}:"
    of_source = () if place.source is None else option_of_each("--buffer", lines_of(values, "buffers"))
    formulas = () if place.source is None else (*option("--flop", text_of(values, "flop")), *option("--bytes", text_of(values, "bytes")))
    search = words.search
    return (
        *("kernalyse", "bench", *(f"{file_name}{name}" for name in names)),
        *option_of_each("-p", words.parameters),
        *option_of_each("-D", words.macros),
        *option("--block", words.blocks or ""),
        *option_of_each("--tie", words.ties),
        *option("--where", words.where),
        *option_of_each("--arg", words.arguments),
        *of_source,
        *formulas,
        *(f"--option={one}" for one in words.compiler_options),
        *measuring_options(values),
        *(option("--clocks", values["clocks"]) if values.get("clocks", "asis") != "asis" else ()),
        *(("--strategy", search.strategy.lower()) if search.strategy is not SearchStrategy.ALL else ()),
        *option("--budget", text_of(values, "budget")),
        *option("--processes", text_of(values, "processes")),
        *(("--paired",) if search.is_paired else ()),
        *(("--counters",) if search.with_counters else ()),
        *(() if search.is_confirmed else ("--no-confirm",)),
        *(() if search.is_shuffled else ("--no-shuffle",)),
        *place_options(values, place),
        *option("--title", text_of(values, "title")),
    )


class CeilingsForm(PlacedForm):
    """Backend and device."""

    key = "ceilings"
    heading = "Ceilings"

    def groups(self, place: Place) -> tuple[Group, ...]:
        note = "Memory levels, multiply-adds and tensor cores, as the device itself reaches them. Rooflines use them from then on."
        return (Group("Where", self.PLACE, note=note),)

    def build(self, values: Values, place: Place) -> BuiltForm:
        work = CeilingMeasurement(backend_of(values), text_of(values, "device") or None)
        return BuiltForm(RunSpec(work), {}, command=("kernalyse", "ceilings", *place_options(values, place)))

    def field_of(self, error: KernalyseError) -> str:
        return "device" if error.subject.startswith("device ") else "backend"
