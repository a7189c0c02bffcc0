"""The entry of compiled code that is the requested instance of a template.

The source gets a variable that holds the instance's address. So the compiler makes the instance, and its PTX names it in
that variable's initial value, whatever aliases or constant expressions the request wrote its arguments with.
"""

from __future__ import annotations

import re
from typing import Final

VARIABLE: Final = "kernalyse_instance"
VARIABLE_LINE: Final = re.compile(rf"^.*\.global\b.*\b{VARIABLE}\b\s*=\s*([\w$.]+)\s*;.*$\n?", re.MULTILINE)


def with_instance(text: str, instance: str) -> str:
    """Return the source with a variable that holds the address of `instance`; errors in it name the instance, not a line."""
    escaped = instance.replace("\\", "\\\\").replace('"', '\\"')
    return f'{text}\n#line 1 "instance {escaped}"\nextern "C" __device__ const void *const {VARIABLE} = (const void *)&{instance};\n'


def instance_entry(ptx: str) -> str | None:
    """Return the entry whose address the variable holds; None: the PTX has no such variable."""
    found = VARIABLE_LINE.search(ptx)
    return found[1] if found else None


def without_variable(ptx: str) -> str:
    """Return the PTX as it would be had nobody asked for the address."""
    return VARIABLE_LINE.sub("", ptx)
