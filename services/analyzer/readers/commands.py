"""Reads commands.json: a list of operations of an accelerator with their shapes, data type and time.

An operation becomes a configuration with one measurement. Its work is what the user's registry of operations says, else the
formula of its type, else not known: then it is drawn as a star.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from services.analyzer.readers.command_work import OPERATION_TYPES, STATED_WORK_FIELDS, UNKNOWN_WORK, OperationWork, built_in_work
from services.analyzer.readers.dtypes import DTYPE_NAMES, dtype_of
from services.analyzer.readers.json_document import JsonObject, is_count, read_objects
from services.analyzer.readers.nvbench_state import as_line
from services.analyzer.readers.registry_answers import Operation, RegistryAnswers, ask_registry, sent_answers
from services.analyzer.readers.result_rows import ResultRows, Row
from services.analyzer.readers.roofline_config import RooflineConfig, roofline_config
from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.core.errors import InvalidTraceError

FORMAT: Final = "commands"
DEVICE_ID: Final = "npu"
"""The file names no device, but all of it is of one."""

OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+\[\s*\{")
TIME_MEMBERS: Final = {"time_ns": 1.0, "time_us": 1e3}
"""With their nanoseconds. Older files have microseconds."""

HELD_MEMBERS: Final = ("type", "name", "data_type", *TIME_MEMBERS)

NO_TIME: Final = f"neither {' nor '.join(TIME_MEMBERS)}"


class CommandsReader:
    format = FORMAT
    description = "commands.json (operations with shapes and times)"

    def matches(self, head: bytes) -> bool:
        is_timed = any(f'"{name}"'.encode() in head for name in TIME_MEMBERS)
        return OPENING.match(head) is not None and b'"type"' in head and is_timed

    def read(self, files: TraceFiles) -> ImportedTables:
        operations = operations_of(files)
        config = roofline_config(files)
        reading = _Reading(files, config, _registry_answers(files, operations))
        for operation in operations:
            reading.add(operation)
        reading.tell_unknown_types()
        if config is not None:
            reading.rows.ceilings = config.ceilings(DEVICE_ID, reading.dtypes())
            reading.rows.thresholds = config.thresholds(DEVICE_ID)
        return ImportedTables(frames=reading.rows.frames(files.file_name), notes="\n".join(reading.notes()), device_id=DEVICE_ID, tags=())


def operations_of(files: TraceFiles) -> list[Operation]:
    """Return the operations of a list. Raise InvalidTraceError for what is no list of operations."""
    return [_operation(files, index, listed) for index, listed in enumerate(read_objects(files))]


def _operation(files: TraceFiles, index: int, listed: JsonObject) -> Operation:
    operation_type = listed.text("type")
    name = listed.optional_text("name") or f"#{index}"
    place = f"file {files.file_name}, operation {index} ({name}, {operation_type})"
    source = JsonObject(place, listed.members, remedy=_remedy(operation_type))
    return Operation(index, name, operation_type, dtype_of(source.optional_text("data_type")), source)


def _remedy(operation_type: str) -> str:
    """What helps where a field is missing or does not fit."""
    known = OPERATION_TYPES.get(operation_type)
    if known is None:
        return "Correct the operation."
    optional = f", and may have {' and '.join(known.optional)}" if known.optional else ""
    return f"An {operation_type} needs {', '.join(known.required)}{optional}."


def _registry_answers(files: TraceFiles, operations: Sequence[Operation]) -> RegistryAnswers:
    """Those that came with the list; else what the registry of the analyzer's own settings says."""
    sent = sent_answers(files, operations)
    if sent is not None:
        return sent
    return RegistryAnswers() if files.op_registry_folder is None else ask_registry(files.op_registry_folder, operations)


class _Reading:
    def __init__(self, files: TraceFiles, config: RooflineConfig | None, registry: RegistryAnswers) -> None:
        self.rows = ResultRows(FORMAT, files.arrived_unix_ns, DEVICE_ID)
        self._config = config
        self._registry = registry
        self._unknown_types: Counter[str] = Counter()
        if registry.problem:
            self.rows.add_problem(registry.problem)

    def add(self, operation: Operation) -> None:
        source, dtype = operation.source, operation.dtype
        work = self._work(operation)
        parameters, variant = _shape_texts(source)
        known = OPERATION_TYPES.get(operation.type)
        configuration: Row = {
            "kernel_name": operation.type,
            "label": f"{operation.name} {operation.type}",
            "parameters": parameters,
            "variant": variant,
            "category": "other" if known is None else known.category,
            "dtype": None if dtype is None else dtype.name,
            "path": "fma",
            "flop": work.flop,
            "bytes": work.bytes,
            "symbol": work.symbol,
        }
        self.rows.add_line(as_line(f"operation {operation.index}", source.members))
        duration_ns = _duration_ns(source)
        if duration_ns is None:
            self.rows.add_problem(f"{source.place}: {NO_TIME}, so it has no place on the roofline.")
            self.rows.add_unmeasured(configuration, f"The operation has {NO_TIME}.")
        else:
            self.rows.add(configuration, {"duration_mean_ns": duration_ns})

    def _work(self, operation: Operation) -> OperationWork:
        source, dtype = operation.source, operation.dtype
        if dtype is None:
            stated = source.members.get("data_type") or "not stated"
            self.rows.add_problem(
                f"{source.place}: data type {stated}: the bytes of a number are not known, so it has no place on the roofline. "
                f"Known are {', '.join(DTYPE_NAMES)}."
            )
            return UNKNOWN_WORK
        told = self._registry.of(operation)
        if isinstance(told, str):
            self.rows.add_problem(told)
            return UNKNOWN_WORK
        if told is not None:
            return told
        try:
            work = built_in_work(source, dtype.element_bytes)
        except InvalidTraceError as error:
            self.rows.add_problem(error.message)
            return UNKNOWN_WORK
        if work is None:
            self._unknown_types[operation.type] += 1
        return work or UNKNOWN_WORK

    def tell_unknown_types(self) -> None:
        """One problem for each type: a list may have thousands of one."""
        for name, count in sorted(self._unknown_types.items()):
            self.rows.add_problem(
                f"Type {name} ({count}): neither a formula nor a registry of operations knows its work, so it has no place on the "
                f"roofline. State {' and '.join(STATED_WORK_FIELDS)}, or tell them in an op_registry.py."
            )

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
