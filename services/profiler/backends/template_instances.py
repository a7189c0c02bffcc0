"""Instances of template kernels: "scale<float, 4>" names one, and the compiler is asked for exactly that one.

The source gets a variable that holds the instance's address. So the compiler makes the instance, and its PTX names it in
that variable's initial value, whatever aliases or constant expressions the request wrote its arguments with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "kernalyse_instance"
VARIABLE_LINE: Final = re.compile(rf"^.*\.global\b.*\b{VARIABLE}\b\s*=\s*([\w$.]+)\s*;.*$\n?", re.MULTILINE)
OPENING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A kernel as a request names it: "saxpy", "scale<float, 4>" or "math::scale<float, 4>"."""

    plain: str  # "scale"
    scope: str  # "math::", or empty
    arguments: tuple[str, ...] | None  # of the template; None: none are given

    @classmethod
    def read(cls, text: str) -> FunctionName:
        head, bracket, rest = text.strip().partition("<")
        scope, _, plain = head.strip().rpartition("::")
        arguments = _split(rest.rstrip().removesuffix(">")) if bracket and rest.rstrip().endswith(">") else None
        if bracket and arguments is None:  # no end: nothing that a kernel could be called
            plain = text.strip()
        return cls(plain.strip(), f"{scope.strip()}::" if scope.strip() else "", arguments)


def bind_arguments(parameters: Sequence[str], arguments: Sequence[str]) -> dict[str, str]:
    """What each template parameter stands for: ("typename T", "int N = 2") with ("float",) gives T: float, N: 2."""
    bound: dict[str, str] = {}
    for index, parameter in enumerate(parameters):
        declared, _, default = parameter.partition("=")
        names = re.findall(r"\w+", declared)
        value = arguments[index] if index < len(arguments) else default.strip()
        if names and value:
            bound[names[-1]] = value
    return bound


def with_instance(text: str, instance: str) -> str:
    """The source with a variable that holds the address of `instance`; errors in it name the instance instead of a line of the file."""
    escaped = instance.replace("\\", "\\\\").replace('"', '\\"')
    return f'{text}\n#line 1 "instance {escaped}"\nextern "C" __device__ const void *const {VARIABLE} = (const void *)&{instance};\n'


def instance_entry(ptx: str) -> str | None:
    """The entry whose address the variable holds; None: the PTX has no such variable."""
    found = VARIABLE_LINE.search(ptx)
    return found[1] if found else None


def without_variable(ptx: str) -> str:
    """The PTX as it would be had nobody asked for the address."""
    return VARIABLE_LINE.sub("", ptx)


def _split(text: str) -> tuple[str, ...]:
    """At the commas outside all brackets."""
    parts, open_brackets, start = [], list[str](), 0
    for index, letter in enumerate(text):
        if letter in OPENING:
            open_brackets.append(OPENING[letter])
        elif open_brackets and letter == open_brackets[-1]:
            open_brackets.pop()
        elif letter == "," and not open_brackets:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return tuple(" ".join(part.split()) for part in parts if part.strip())
