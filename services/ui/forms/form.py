"""What every form of the page has: fields, what stands in them, and what is wrong with it, beside the field."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import param

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import BackendName, KernelDefinition, KernelSource, KernelSweep, Node, RunSpec
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
        """Return what to write into the field."""
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
