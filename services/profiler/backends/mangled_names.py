"""The name under which a compiled module carries a kernel: as written after `extern "C"`, else mangled as C++ does."""

from __future__ import annotations

import re

from services.core.errors import UnknownKernelError, UnsupportedConstructError
from services.profiler.backends.kernel_source import SourceFunction

ENTRY = re.compile(rb"\.text\.([A-Za-z_$][\w$.]*)")  # every kernel of a cubin has a code section of its own


def find_entry(cubin: bytes, kernel: SourceFunction, file_name: str) -> str:
    """Return the entry of `kernel` in a cubin.

    Raises:
        UnsupportedConstructError: a template without an instance in the file.
        UnknownKernelError: the module has no such entry, or several overloads.
    """
    entries: list[str] = sorted({name.decode() for name in ENTRY.findall(cubin)})
    if kernel.name in entries:
        return kernel.name
    matching = [entry for entry in entries if _plain_name(entry) == kernel.name]
    if len(matching) == 1:
        return matching[0]
    if kernel.is_template and not matching:
        raise UnsupportedConstructError(
            f"{file_name}, line {kernel.line}",
            found=f"the template kernel {kernel.name}<{', '.join(kernel.template_parameters)}> without an instance",
            expected="its template arguments, or an explicit instance in the file",
            remedy=f"Name the instance, for example {kernel.example_instance}.",
        )
    raise UnknownKernelError(
        f"kernel {kernel.name} of {file_name}",
        found=f"the compiled kernels {', '.join(matching or entries)}",
        expected=f"exactly one {kernel.name}",
        remedy=f"Name the instance, for example {kernel.example_instance}."
        if kernel.is_template
        else 'Put extern "C" before it, or give its overloads names of their own.',
    )


def _plain_name(entry: str) -> str | None:
    """Return the function's own name in an Itanium-mangled one: `_Z5saxpyif` and `_ZN4math5saxpyEif` both give saxpy."""
    if not entry.startswith("_Z"):
        return None
    rest = entry[2:].removeprefix("N")
    name: str | None = None
    while found := re.match(r"\d+", rest):
        length = int(found[0])
        name, rest = rest[found.end() :][:length], rest[found.end() + length :]
    return name
