"""Reports of ptxas on each kernel with `-v`: registers, spills, shared and constant memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

ENTRY: Final = re.compile(r"ptxas info\s*: Compiling entry function '([^']+)'")
PROPERTIES: Final = re.compile(r"ptxas info\s*: Function properties for (\S+)")
SPILLS: Final = re.compile(r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED: Final = re.compile(r"ptxas info\s*: Used (\d+) registers")
MEMORY: Final = re.compile(r"(\d+) bytes (smem|cmem\[\d+\])")


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """Usage of one kernel. None: the report does not say."""

    register_count: int | None = None  # per thread
    stack_bytes: int | None = None  # per thread, spills included
    spill_store_bytes: int | None = None  # per thread
    spill_load_bytes: int | None = None
    shared_memory_bytes: int | None = None  # per block, static
    constant_memory_bytes: int | None = None  # all banks together


NOTHING: Final = KernelUsage()


def split_report(output: str) -> tuple[str, str]:
    """Return what ptxas reports with `-v`, and what else nvcc said: its warnings."""
    report, remarks = list[str](), list[str]()
    for line in output.splitlines():
        is_report = line.startswith("ptxas info") or SPILLS.fullmatch(line) is not None
        (report if is_report else remarks).append(line)
    return "\n".join(report), "\n".join(remarks).strip()


def read_report(report: str) -> Mapping[str, KernelUsage]:
    """Read usage by entry name, as the cubin has it. Device functions that were not inlined have their stack and spills in it too."""
    usages: dict[str, KernelUsage] = {}
    entry = function = ""
    for line in report.splitlines():
        if found := ENTRY.match(line):
            entry = found[1]
        elif found := PROPERTIES.match(line):
            function = found[1]
        elif found := SPILLS.match(line):
            stack, stores, loads = (int(number) for number in found.groups())
            usages[function] = replace(usages.get(function, NOTHING), stack_bytes=stack, spill_store_bytes=stores, spill_load_bytes=loads)
        elif found := USED.match(line):
            amounts = MEMORY.findall(line)
            constant_bytes = [int(number) for number, where in amounts if where != "smem"]
            usages[entry] = replace(
                usages.get(entry, NOTHING),
                register_count=int(found[1]),
                shared_memory_bytes=sum(int(number) for number, where in amounts if where == "smem"),  # without any it names none
                constant_memory_bytes=sum(constant_bytes) if constant_bytes else None,  # for new devices it names no bank at all
            )
    return usages
