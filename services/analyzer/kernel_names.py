"""Names of one kernel as different tools write them: with or without parameters, template arguments, namespaces, mangled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

UNNAMED: Final = re.compile(r"\(anonymous namespace\)::|<?unnamed>::|_GLOBAL__N_\w*::")
"""The namespace without a name; one report has it cut to "unnamed>::"."""

CAST: Final = re.compile(r"\((?:[\w:]|\s|\*)+\)(?=-?[\d(])")
LITERAL_ENDING: Final = re.compile(r"(?<=\d)(?:ul|ull|u|l|ll)\b", re.IGNORECASE)
FLAGS: Final = (("true", "1"), ("false", "0"))
CONST: Final = re.compile(r"\bconst\b")
SPACE: Final = re.compile(r"\s+")
CLONE: Final = re.compile(r"\s*\[clone [^\]]*\]")
MANGLED: Final = re.compile(r"_ZL?(N)?[VK]*")
IDENTIFIER: Final = re.compile(r"L?(\d{1,4})")


@dataclass(frozen=True, slots=True)
class KernelForms:
    """A name from its finest form to its coarsest.

    signature: all of it, written one way; instance: without parameters; function: without template arguments, namespaces and
    return type too. Mangled names tell the function alone.
    """

    signature: str
    instance: str
    function: str

    @classmethod
    def of(cls, name: str) -> Self:
        plain = CLONE.sub("", name).strip()
        if plain.startswith("_Z"):
            return cls(plain, plain, _mangled_function(plain))
        plain = UNNAMED.sub("", plain).removeprefix("void ")  # kernels return nothing: some tools say so
        without_parameters = _without_group(plain, "(", ")")
        function = _last_word(_without_group(without_parameters, "<", ">")) or base_name(plain)
        return cls(_one_way(plain), _one_way(without_parameters), function)

    @property
    def finest_first(self) -> tuple[str, str, str]:
        return self.signature, self.instance, self.function


def base_name(name: str) -> str:
    """Without return type, namespaces, template arguments and parameters, of a name that may be cut anywhere behind them."""
    return _last_word(UNNAMED.sub("", name).partition("(")[0].partition("<")[0])


def _last_word(text: str) -> str:
    return (text.rpartition("::")[2].split() or [""])[-1]


def _without_group(text: str, opening: str, closing: str) -> str:
    """The text without the bracketed group that it ends with; as it is where there is none."""
    if not text.endswith(closing):
        return text
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        if text[index] == closing and text[index - 1 : index + 1] != "->":
            depth += 1
        elif text[index] == opening:
            depth -= 1
            if depth == 0:
                return text[:index]
    return text


def _one_way(text: str) -> str:
    """Constants of template arguments without casts and endings, no qualifiers, no blanks."""
    for word, digit in FLAGS:
        text = re.sub(rf"\b{word}\b", digit, text)
    return SPACE.sub("", CONST.sub("", LITERAL_ENDING.sub("", CAST.sub("", text))))


def _mangled_function(name: str) -> str:
    """Last identifier of the (nested) name, by the Itanium C++ ABI, 5.1: lengths before words."""
    opening = MANGLED.match(name)
    position = 0 if opening is None else opening.end()
    is_nested = opening is not None and opening[1] is not None
    found = ""
    while (length := IDENTIFIER.match(name, position)) is not None:
        end = length.end() + int(length[1])
        if end > len(name):
            break
        found, position = name[length.end() : end], end
        if not is_nested:
            break
    return found or name
