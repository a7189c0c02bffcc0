"""The C++ text of a program that measures one kernel.

The kernel's file is included as it is, so that the compiler's lines are its own; what follows tells the measuring part, which
is compiled apart, where the kernel is and what it takes. Macros of the kernel's file therefore never meet other code. Device
code alone may print without a header; as a whole program it needs one, which comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from services.core.model import KernelSource
from services.profiler.backends.kernel_source import SourceFunction, parse_kernel_source
from services.profiler.backends.template_instances import compiled_name, without_arguments

MAIN_FILE: Final = "kernalyse_program.cu"
DEFAULT_FILE: Final = "kernel.cu"
MEASURING_FOLDER: Final = Path(__file__).parent / "device_code" / "measuring_program"
ENTRY_FILE: Final = "kernel_entry.h"

TEMPLATE: Final = """\
#include <cstdio>
#define main kernalyse_main_of_the_source
#include "{file_name}"
#undef main

{entry}
extern "C" const kernalyse_kernel_entry* kernalyse_find_kernel() {{ return kernalyse_entry_of(&{kernel}); }}
"""


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """A kernel as a program: its files by name, all for one folder, and the signature that it is launched with."""

    main_text: str
    source_file_name: str
    source: KernelSource = field(repr=False)
    signature: SourceFunction = field(repr=False)


def write_program(source: KernelSource, function_name: str) -> KernelProgram:
    """Return the program for a kernel, or for an instance of a template ("scale<float, 4>").

    Raises:
        InvalidSourceError, UnknownKernelError: no such kernel in the file.
        UnsupportedConstructError: a template of which no instance is named.
    """
    kernel = parse_kernel_source(source).kernel(function_name)
    if kernel.is_template:
        raise without_arguments(kernel, source.file_name)
    file_name = _includable_name(source.file_name)
    return KernelProgram(
        main_text=TEMPLATE.format(file_name=file_name, entry=_entry_text(), kernel=f"::{compiled_name(kernel)}"),
        source_file_name=file_name,
        source=source,
        signature=kernel,
    )


def _includable_name(file_name: str) -> str:
    name = Path(file_name).name
    return name if name and name != MAIN_FILE and not set(name) & set('"\\\n') else DEFAULT_FILE


@lru_cache(maxsize=1)
def _entry_text() -> str:
    return (MEASURING_FOLDER / ENTRY_FILE).read_text(encoding="utf-8")
