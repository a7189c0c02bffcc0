"""What every form of the page has: fields, what stands in them, and what is wrong with it, beside the field."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import BackendName, KernelDefinition, KernelSource, KernelSweep, Node, RunSpec
from kernalyse.services.ui.uploads.given_files import GivenFile

FormName = Literal["sweep", "command", "model", "prompt", "ceilings"]
FieldKind = Literal["text", "number", "select", "check", "lines", "files"]
Values = Mapping[str, str]
"""What stands in the fields, by their names; a box that is not ticked is left out."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    choices: value and title each, of a select. hint: what to write, one sentence. accept: endings of files.
    """

    name: str
    title: str
    kind: FieldKind = "text"
    choices: tuple[tuple[str, str], ...] = ()
    hint: str = ""
    placeholder: str = ""
    is_wide: bool = False
    accept: str = ""
    default: str = ""
    max_length: int = 500


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    fields: tuple[Field, ...]
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


class Form(Protocol):
    """Pure: the same values at the same place are the same run."""

    name: FormName
    title: str

    def groups(self, values: Values, place: Place) -> tuple[Group, ...]:
        """Its fields, as they are for what stands in them."""

    def build(self, values: Values, place: Place) -> BuiltForm:
        """What stands in them, as a run."""

    def field_of(self, error: KernalyseError) -> str:
        """The field that the service's refusal is about; "" for none."""


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


TITLE: Final = Field("title", "Title", placeholder="what lists call it", max_length=200)


def place_fields(place: Place, backends: tuple[str, ...] = ("auto", "pycuda", "nvcc", "opencl")) -> tuple[Field, ...]:
    """Node, backend and device."""
    devices = tuple((device.device_id, f"{device.device_id} · {device.name}") for device in (place.node.devices if place.node else ()))
    return (
        node_field(place),
        Field("backend", "Backend", "select", tuple((name, name) for name in backends), default="auto"),
        Field("device", "Device", "select", (("", "first of the backend"), *devices)),
    )


def node_field(place: Place) -> Field:
    return Field("node", "Node", "select", (("", "first that serves"), *((node.node_id, node.hostname) for node in place.nodes)))


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
