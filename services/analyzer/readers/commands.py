"""Reads commands.json: a list of operations of an accelerator with their shapes, data type and time.

An operation becomes a configuration with one measurement. Its work is what the user's registry of operations says, else the
formula of its type, else not known: then it is drawn as a star.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from services.analyzer.readers.command_work import CATEGORIES, UNKNOWN_WORK, OperationWork, built_in_work
from services.analyzer.readers.dtypes import dtype_of
from services.analyzer.readers.json_document import JsonObject, is_count, read_objects
from services.analyzer.readers.nvbench_state import as_line
from services.analyzer.readers.op_registry import OpRegistry
from services.analyzer.readers.result_rows import ResultRows, Row
from services.analyzer.readers.roofline_config import RooflineConfig, roofline_config
from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.core.errors import InvalidSettingError, InvalidTraceError

FORMAT: Final = "commands"
DEVICE_ID: Final = "npu"
"""The file names no device, but all of it is of one."""

OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+\[\s*\{")
TIME_MEMBERS: Final = {"time_ns": 1.0, "time_us": 1e3}
"""With their nanoseconds. Older files have microseconds."""

HELD_MEMBERS: Final = ("type", "name", "data_type", *TIME_MEMBERS)


class CommandsReader:
    format = FORMAT
    description = "commands.json (operations with shapes and times)"

    def matches(self, head: bytes) -> bool:
        is_timed = any(f'"{name}"'.encode() in head for name in TIME_MEMBERS)
        return OPENING.match(head) is not None and b'"type"' in head and is_timed

    def read(self, files: TraceFiles) -> ImportedTables:
        operations = read_objects(files)
        config = roofline_config(files)
        with closing(_Reading(files, config)) as reading:
            for index, operation in enumerate(operations):
                reading.add(index, operation)
        if config is not None:
            reading.rows.ceilings = config.ceilings(DEVICE_ID, reading.dtypes())
            reading.rows.thresholds = config.thresholds(DEVICE_ID)
        return ImportedTables(frames=reading.rows.frames(files.file_name), notes="\n".join(reading.notes()), device_id=DEVICE_ID, tags=())


class _Reading:
    def __init__(self, files: TraceFiles, config: RooflineConfig | None) -> None:
        self.rows = ResultRows(FORMAT, files.arrived_unix_ns, DEVICE_ID)
        self._files = files
        self._config = config
        self._unknown_types: Counter[str] = Counter()
        self._registry = self._loaded_registry()

    def _loaded_registry(self) -> OpRegistry | None:
        if self._files.op_registry_folder is None:
            return None
        try:
            return OpRegistry(self._files.op_registry_folder)
        except InvalidSettingError as error:
            self.rows.add_problem(error.message)
            return None

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()

    def add(self, index: int, operation: JsonObject) -> None:
        operation_type = operation.text("type")
        name = operation.optional_text("name") or f"#{index}"
        source = JsonObject(f"file {self._files.file_name}, operation {index} ({name}, {operation_type})", operation.members)
        dtype = dtype_of(source.optional_text("data_type"))
        work = self._work(source, f"{index} ({name}, {operation_type})", None if dtype is None else dtype.element_bytes)
        parameters, variant = _shape_texts(source)
        configuration: Row = {
            "kernel_name": operation_type,
            "label": f"{name} {operation_type}",
            "parameters": parameters,
            "variant": variant,
            "category": CATEGORIES.get(operation_type, "other"),
            "dtype": None if dtype is None else dtype.name,
            "path": "fma",
            "flop": work.flop,
            "bytes": work.bytes,
            "symbol": work.symbol,
        }
        self.rows.add_line(as_line(f"operation {index}", operation.members))
        duration_ns = _duration_ns(source)
        if duration_ns is None:
            self.rows.add_unmeasured(configuration, "The operation has no time.")
        else:
            self.rows.add(configuration, {"duration_mean_ns": duration_ns})

    def _work(self, operation: JsonObject, operation_name: str, element_bytes: int | None) -> OperationWork:
        if element_bytes is None:
            found = operation.members.get("data_type")
            self.rows.add_problem(
                f"{operation.place}: data type {found or 'not stated'}: its bytes are not known, so it has no place on the roofline."
            )
            return UNKNOWN_WORK
        try:
            told = None if self._registry is None else self._registry.work(operation_name, operation.members, element_bytes)
            work = built_in_work(operation, element_bytes) if told is None else told
        except (InvalidSettingError, InvalidTraceError) as error:
            self.rows.add_problem(error.message)
            return UNKNOWN_WORK
        if work is None:
            self._unknown_types[operation.text("type")] += 1
        return work or UNKNOWN_WORK

    def dtypes(self) -> list[str]:
        """Those that occur."""
        return list(dict.fromkeys(row["dtype"] for row in self.rows.configurations if row["dtype"] is not None))

    def notes(self) -> Iterator[str]:
        yield f"{len(self.rows.configurations)} operations, {len(self.rows.failures)} of them without a time."
        yield "Times as the file has them, one for each operation: table measurements has them as means."
        if self._config is None:
            yield "There is no roofline_config.json beside it, so nothing is known of what the device can do."
        else:
            yield from self._config.notes
        if self._unknown_types:
            types = ", ".join(f"{name} ({count})" for name, count in sorted(self._unknown_types.items()))
            yield f"Work not known, for neither a formula nor a registry of operations knows the type: {types}."
        yield from self.rows.problem_notes()


def _duration_ns(operation: JsonObject) -> float | None:
    for name, factor in TIME_MEMBERS.items():
        time = operation.optional_number(name)
        if time is not None:
            return time * factor if 0 < time * factor < float("inf") else operation.refuse(name, "a time over zero")
    return None


def _shape_texts(operation: JsonObject) -> tuple[dict[str, int], str]:
    """Whole numbers as parameters; shapes and all else in words."""
    parameters: dict[str, int] = {}
    words: list[str] = []
    for name, value in operation.members.items():
        if name in HELD_MEMBERS or value is None:
            continue
        if is_count(value):
            parameters[name] = value
        elif isinstance(value, list):
            words.append(f"{name}={'x'.join(map(_word, value))}")
        else:
            words.append(f"{name}={_word(value)}")
    return parameters, " ".join(words)


def _word(value: Any) -> str:
    return str(value)
