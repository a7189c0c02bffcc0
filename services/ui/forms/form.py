"""What every form of the page has: fields, what stands in them, what is wrong with it beside the field, and how to measure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import param

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import (
    BackendName,
    CacheMode,
    InputDistribution,
    KernelDefinition,
    KernelSource,
    KernelSweep,
    MeasuringOptions,
    Node,
    RunSpec,
)
from kernalyse.services.core.request_syntax import MeasuringArguments, parse_ratio
from kernalyse.services.ui.uploads.given_files import GivenFile

FormName = Literal["sweep", "command", "model", "prompt", "ceilings"]
Choices = tuple[tuple[str, str], ...]
"""Value and title each."""

Values = Mapping[str, str]
"""What stands in the fields that are shown, by their names; a box that is not ticked is left out."""


class Words(param.String[Any]):
    """What is typed into a field: a line, or several.

    Args:
        hint: what to write, one sentence.
    """

    __slots__ = ["hint", "is_number", "is_wide", "line_count", "max_length", "placeholder"]

    def __init__(
        self,
        label: str,
        placeholder: str = "",
        hint: str = "",
        *,
        is_number: bool = False,
        is_wide: bool = False,
        line_count: int = 1,
        max_length: int = 500,
    ) -> None:
        super().__init__(default="", label=label)
        self.placeholder, self.hint = placeholder, hint
        self.is_number, self.is_wide, self.line_count, self.max_length = is_number, is_wide, line_count, max_length


class Choice(param.Selector[Any]):
    """One of several values.

    Args:
        is_of_place: the place has further ones, which are chosen of as soon as they are known.
    """

    __slots__ = ["choices", "hint", "is_of_place", "is_wide"]

    def __init__(
        self, label: str, choices: Choices, default: str = "", hint: str = "", *, is_of_place: bool = False, is_wide: bool = False
    ) -> None:
        super().__init__(objects=options_of(choices), default=default, check_on_set=False, label=label)
        self.choices, self.hint, self.is_of_place, self.is_wide = choices, hint, is_of_place, is_wide


def options_of(choices: Choices) -> dict[str, str]:
    """Return the values by their titles, each of which is another one."""
    options: dict[str, str] = {}
    for value, title in choices:
        options[f"{title} ({value})" if title in options else title] = value
    return options


@dataclass(frozen=True, slots=True)
class Group:
    """Fields that belong together, by their names."""

    title: str
    fields: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class SourceKernels:
    """A kernel source that was given, and what the node says of its kernels."""

    source: KernelSource
    kernels: tuple[KernelDefinition, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a form's run would go, and what was given to it. node: None while the analyzer has not told of any."""

    nodes: tuple[Node, ...] = ()
    node: Node | None = None
    kernels: tuple[KernelDefinition, ...] = ()  # of the node's catalogue
    source: SourceKernels | None = None
    files: tuple[GivenFile, ...] = ()
    observers: tuple[Node, ...] = ()  # on which nothing is run


@dataclass(frozen=True, slots=True)
class BuiltForm:
    """What a form says.

    spec: None while something is wrong or missing. problems: sentences by the name of the field, "" for the whole form.
    command: the same on the command line. max_duration_s: of sampling one configuration. bundle: files to send to the node
    before, whose digest goes into the work.
    """

    spec: RunSpec | None
    problems: Mapping[str, str]
    command: tuple[str, ...] = ()
    bundle: tuple[GivenFile, ...] = ()
    max_duration_s: float | None = None
    notices: tuple[str, ...] = ()

    @property
    def command_line(self) -> str:
        return shlex.join(self.command)

    @property
    def is_checkable(self) -> bool:
        """The node can say what would become of it before its files are there."""
        return self.spec is not None and (not self.bundle or isinstance(self.spec.work, KernelSweep))


class Form(param.Parameterized):
    """Fields as parameters. The same that stands in them is the same run at the same place."""

    key: ClassVar[FormName]
    heading: ClassVar[str]

    node = Choice("Node", (("", "first that serves"),), is_of_place=True)
    title = Words("Title", "what lists call it", max_length=200)
    files = param.List(default=[], item_type=str, label="Files that go with it", doc="Ids of the files that were given.")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all that is kept of the form."""
        return tuple(name for name in cls.param if name != "name")

    def groups(self, place: Place) -> tuple[Group, ...]:
        """Return the fields as they are for what stands in them."""
        raise NotImplementedError

    def build(self, values: Values, place: Place) -> BuiltForm:
        """Return the run that the values stand for."""
        raise NotImplementedError

    def field_of(self, error: KernalyseError) -> str:
        """Return the field that the service's refusal is about; "" for none."""
        raise NotImplementedError

    def choices(self, place: Place) -> dict[str, Choices]:
        """Return what there is to choose at the place, by the name of the field; what is not known yet is left out."""
        return {"node": (("", "first that serves"), *((node.node_id, node.hostname) for node in place.nodes))} if place.nodes else {}

    def placeholder_of(self, name: str, place: Place) -> str:
        """Return what the field says while nothing stands in it."""
        return str(getattr(self.param[name], "placeholder", ""))

    def hint_of(self, name: str, place: Place) -> str:
        """Return what to write into the field; of the node which ones are not offered, and why."""
        if name == "node" and place.observers:
            names = ", ".join(node.hostname for node in place.observers)
            return f"Not offered, as nothing is run there (observe_only): {names}."
        return str(getattr(self.param[name], "hint", ""))

    def text(self, name: str) -> str:
        """Return what stands in the field; of a box "on" or nothing."""
        value = getattr(self, name)
        return ("on" if value else "") if isinstance(value, bool) else str(value)

    def take(self, file: GivenFile, given: tuple[GivenFile, ...]) -> None:
        """Add a file. given: those of before that are still there."""
        self.files = [*(one.file_id for one in given), file.file_id]

    def values(self, place: Place) -> dict[str, str]:
        """Return what stands in the fields that are shown."""
        shown = (name for group in self.groups(place) for name in group.fields if name != "files")
        return {name: text for name in shown if (text := self.text(name))}

    def built(self, place: Place) -> BuiltForm:
        """Return the run that the form stands for."""
        return self.build(self.values(place), place)

    def settle(self, place: Place) -> None:
        """Offer what there is to choose at the place; what is chosen and there no longer gives way to the first."""
        known = self.choices(place)
        for name in self.names():
            parameter, value = self.param[name], getattr(self, name)
            if not isinstance(parameter, Choice):
                continue
            options = options_of(known.get(name, parameter.choices))
            if value not in options.values():
                if parameter.is_of_place and name not in known:
                    options[value] = value
                else:
                    default = parameter.default
                    setattr(self, name, default if default in options.values() else next(iter(options.values()), ""))
            if dict(parameter.names or {}) != options:
                parameter.objects = options


@dataclass(slots=True)
class Problems:
    """Collected field by field: everything that is wrong is said at once."""

    found: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What is raised inside is about that field."""
        try:
            yield
        except KernalyseError as error:
            self.say(name, sentence(error))

    def say(self, name: str, text: str) -> None:
        self.found.setdefault(name, text)


def sentence(error: KernalyseError) -> str:
    """An error beside its field, which need not be named again."""
    found = error.found if error.found.endswith(".") else f"{error.found}."
    text = f"Found {error.found}; expected {error.expected}." if error.expected else found[:1].upper() + found[1:]
    return f"{text} {error.remedy}".rstrip()


def text_of(values: Values, name: str) -> str:
    return values.get(name, "").strip()


def lines_of(values: Values, name: str) -> tuple[str, ...]:
    """Lines that are not empty."""
    return tuple(line.strip() for line in values.get(name, "").splitlines() if line.strip())


def number_of(values: Values, name: str, problems: Problems, *, is_whole: bool = False, smallest: float = 0) -> float | None:
    """None: nothing stands there, or no number, which is said."""
    text = text_of(values, name)
    if not text:
        return None
    try:
        number = float(int(text)) if is_whole else float(text)
    except (ValueError, OverflowError):
        number = float("nan")
    if not smallest <= number < 2**32:
        kind = "a whole number" if is_whole else "a number"
        problems.say(name, f"Found '{text[:40]}'; expected {kind}, {smallest:g} or more.")
        return None
    return number


def count_of(values: Values, name: str, problems: Problems, default: int) -> int:
    number = number_of(values, name, problems, is_whole=True, smallest=1)
    return default if number is None else int(number)


def option(flag: str, value: str) -> tuple[str, ...]:
    """For the command line; nothing for no value."""
    return (flag, value) if value else ()


def option_of_each(flag: str, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in (flag, value))


# ---------------------------------------------------------------- where to run


class PlacedForm(Form):
    """A form for work that a backend does on a device."""

    PLACE: ClassVar = ("node", "backend", "device")

    backend = Choice("Backend", tuple((name, name) for name in ("auto", "pycuda", "nvcc", "opencl")), "auto")
    device = Choice("Device", (("", "first of the backend"),), is_of_place=True)

    def choices(self, place: Place) -> dict[str, Choices]:
        if not place.nodes:
            return {}
        devices = place.node.devices if place.node else ()
        of_backend = tuple((device.device_id, f"{device.device_id} · {device.name}") for device in devices)
        return {**super().choices(place), "device": (("", "first of the backend"), *of_backend)}


def backend_of(values: Values) -> BackendName:
    return BackendName(values.get("backend", "auto").upper())


def place_options(values: Values, place: Place) -> tuple[str, ...]:
    """Of the command line."""
    backend = text_of(values, "backend")
    hostname = next((node.hostname for node in place.nodes if node.node_id == values.get("node")), "")
    return (
        *option("--backend", "" if backend == "auto" else backend),
        *option("--device", text_of(values, "device")),
        *option("--node", hostname),
    )


CACHES: Final = (
    ("default", "cold on GPUs, hot on CPUs"),
    ("cold", "cold: flushed before each sample"),
    ("hot", "hot"),
    ("both", "both, one after the other"),
)
INPUTS: Final = (("uniform", "uniform"), ("normal", "normal"), ("zeros", "zeros"))
DEFAULTS: Final = MeasuringOptions()
S_PER_NS: Final = 1e-9


class TimeFields(param.Parameterized):
    """For how long to measure."""

    OF_TIME: ClassVar = ("max_time", "min_time", "target", "samples")

    max_time = Words("Longest sampling, s", f"{DEFAULTS.max_duration_ns * S_PER_NS:g}", "Of one configuration.", is_number=True)
    min_time = Words("Shortest sampling, s", f"{DEFAULTS.min_duration_ns * S_PER_NS:g}", is_number=True)
    target = Words("Interval to reach", "0.5 % on GPUs, 2 % on CPUs", "Half-width of the median's 95 % interval.")
    samples = Words("Most samples", "no limit", "Of one configuration.", is_number=True)


class MethodFields(param.Parameterized):
    """How to measure."""

    OF_METHOD: ClassVar = ("cache", "input", "warm_up", "seed", "no_verify")

    cache = Choice("Cache", CACHES, "default")
    input = Choice("Input data", INPUTS, "uniform")
    warm_up = Words("Warm-up launches", f"{DEFAULTS.warm_up_count}", is_number=True)
    seed = Words("Seed", "0", "Of input data and order.", is_number=True)
    no_verify = param.Boolean(default=False, label="Do not compare results with the reference")


FIELD_OF_OPTION: Final = {
    "min_sample_count": "samples",
    "max_sample_count": "samples",
    "min_duration_ns": "min_time",
    "max_duration_ns": "max_time",
    "target_half_width_ratio": "target",
    "warm_up_count": "warm_up",
    "seed": "seed",
}
"""Fields by the names that the service has for them."""


def measuring_words(values: Values, problems: Problems, max_duration_s: float | None = None) -> MeasuringArguments:
    """max_duration_s: where nothing is said."""
    target = text_of(values, "target")
    if target:
        with problems.of("target"):
            parse_ratio("--target", target)
    counts = {
        name: number_of(values, name, problems, is_whole=True, smallest=low) for name, low in (("samples", 2), ("warm_up", 0), ("seed", 0))
    }
    shortest, longest = number_of(values, "min_time", problems), number_of(values, "max_time", problems)
    words = MeasuringArguments(
        cache_mode=CacheMode(values.get("cache", "default").upper()),
        target=target if "target" not in problems.found and target else None,
        max_sample_count=None if counts["samples"] is None else int(counts["samples"]),
        min_duration_s=shortest,
        max_duration_s=max_duration_s if longest is None and shortest is None else longest,
        warm_up_count=None if counts["warm_up"] is None else int(counts["warm_up"]),
        input_distribution=InputDistribution(values.get("input", "uniform").upper()),
        seed=int(counts["seed"] or 0),
        skip_verification="no_verify" in values,
    )
    try:
        words.options()
    except KernalyseError as error:
        problems.say("min_time" if "--min-time" in error.subject else "max_time", f"Found {error.found}; expected {error.expected}.")
        return MeasuringArguments()
    return words


def measuring_options(values: Values) -> tuple[str, ...]:
    """Of the command line."""
    cache, given = text_of(values, "cache"), text_of(values, "input")
    return (
        *option("--cache", "" if cache == "default" else cache),
        *option("--max-time", text_of(values, "max_time")),
        *option("--min-time", text_of(values, "min_time")),
        *option("--target", text_of(values, "target")),
        *option("--samples", text_of(values, "samples")),
        *option("--warm-up", text_of(values, "warm_up")),
        *option("--input", "" if given == "uniform" else given),
        *option("--seed", text_of(values, "seed")),
        *(("--no-verify",) if "no_verify" in values else ()),
    )
