"""Read lists of operations (commands.json), with a user's op_registry."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.documents import DTYPE_NAMES, Dtype, JsonObject, dtype_of, is_count, read_document, read_objects
from kernalyse.services.analyzer.readers.nvbench import as_line
from kernalyse.services.analyzer.readers.op_registry_process import FUNCTION_NAME
from kernalyse.services.analyzer.readers.operation_costs import (
    FLOP_PER_MAC,
    OPERATION_TYPES,
    STATED_WORK_FIELDS,
    UNKNOWN_WORK,
    OperationWork,
    built_in_work,
)
from kernalyse.services.analyzer.readers.result_rows import ResultRows, RooflineConfig, Row, roofline_config
from kernalyse.services.core.errors import InvalidSettingError, InvalidTraceError

# ---------------------------------------------------------------- commands
# Reads commands.json: a list of operations of an accelerator with their shapes, data type and time.
#
# An operation becomes a configuration with one measurement. Its work is what the user's registry of operations says, else the formula
# of its type, else not known: then it is drawn as a star.

FORMAT: Final = "commands"
DEVICE_ID: Final = "npu"
"""The file names no device, but all of it is of one."""

OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+\[\s*\{")
TIME_MEMBERS: Final = {"time_ns": 1.0, "time_us": 1e3}
"""With their nanoseconds. Older files have microseconds."""

HELD_MEMBERS: Final = ("type", "name", "data_type", *TIME_MEMBERS)

NO_TIME: Final = f"neither {' nor '.join(TIME_MEMBERS)}"


class CommandsReader:
    """Reader of commands.json."""

    format = FORMAT
    description = "commands.json (operations with shapes and times)"

    def matches(self, head: bytes) -> bool:
        """Return whether a file begins as one of this format."""
        is_timed = any(f'"{name}"'.encode() in head for name in TIME_MEMBERS)
        return OPENING.match(head) is not None and b'"type"' in head and is_timed

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the file. Raises InvalidTraceError."""
        operations = operations_of(files)
        config = roofline_config(files)
        reading = _Reading(files, config, _registry_answers(files, operations))
        for operation in operations:
            reading.add(operation)
        reading.tell_unknown_types()
        if config is not None:
            reading.rows.ceilings = config.ceilings(DEVICE_ID, reading.dtypes())
            reading.rows.thresholds = config.thresholds(DEVICE_ID)
        return ReadResult(frames=reading.rows.frames(files.file_name), notes="\n".join(reading.notes()), device_id=DEVICE_ID, tags=())


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
    return RegistryAnswers() if files.op_registry_directory is None else ask_registry(files.op_registry_directory, operations)


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


# ---------------------------------------------------------------- op registry
# A user's own formulas for operations: op_registry.py with get_custom_metrics(cmd, dt_size) -> (macs, bytes, symbol).
#
# It is code, and runs with this user's rights, in a process of its own that may be ended: only a directory that the settings or the
# command line name is looked at.

REGISTRY_FILE_NAME: Final = "op_registry.py"
PROCESS_MODULE: Final = "kernalyse.services.analyzer.readers.op_registry_process"
EXPECTED: Final = "(macs, bytes, symbol), two numbers not below zero and a name"

ANSWER_LIMIT_S: Final = 20.0
"""For loading it and for each operation. A formula takes microseconds, but a registry may load a large library on a busy machine;
with more, somebody would wait for one that never answers."""

ANSWER_BYTES: Final = 65536


class OpRegistry:
    """The registry of a directory, loaded. `close` ends it.

    Raises:
        InvalidSettingError: there is none, or loading it fails; names its file and, where it has one, the line.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / REGISTRY_FILE_NAME
        if not self._path.is_file():
            raise InvalidSettingError(
                f"registry of operations {self._path}",
                found="No such file",
                expected=f"a file with the function {FUNCTION_NAME}(cmd, dt_size)",
                remedy="Correct op_registry_directory of the analyzer, or --op-registry.",
            )
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-P", "-m", PROCESS_MODULE, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._answer("")
        except InvalidSettingError:
            self.close()
            raise

    def work(self, operation_name: str, operation: Mapping[str, Any], element_bytes: float) -> OperationWork | None:
        """What it says of an operation; None: nothing, as None, or no MACs and no bytes. One that did not answer is not asked again.

        Args:
            operation_name: for errors.
            operation: as it stands in the file; the registry gets a copy.

        Raises:
            InvalidSettingError: the registry fails, or answers something else; names file, line and operation.
        """
        if self._process is None:
            return None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps({"operation": dict(operation), "element_bytes": element_bytes}).encode() + b"\n")
            self._process.stdin.flush()
        told = self._answer(operation_name)
        if not told.get("macs") and not told.get("bytes"):
            return None
        return OperationWork(FLOP_PER_MAC * told["macs"], told["bytes"], told["symbol"])

    def close(self) -> None:
        """End the process that runs the registry, with all that it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # with all that it started
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._process.wait()
        self._process = None

    def _answer(self, operation_name: str) -> dict[str, Any]:
        """Raises InvalidSettingError: it fails, does not answer, or is gone."""
        line = self._line()
        if line is None:
            self.close()
            raise self._broken(None, operation_name, f"no answer within {ANSWER_LIMIT_S:g} s; it was ended")
        if not line.endswith(b"\n"):
            assert self._process is not None
            status = self._process.wait()
            self.close()
            raise self._broken(None, operation_name, f"its process ended with status {status}")
        told: dict[str, Any] = json.loads(line)
        if "found" in told:
            raise self._broken(told["line"], operation_name, told["found"])
        return told

    def _line(self) -> bytes | None:
        """What it writes up to the end of a line, or of all; None: it takes too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor, line, deadline = self._process.stdout.fileno(), b"", time.monotonic() + ANSWER_LIMIT_S
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                return None
            part = os.read(descriptor, ANSWER_BYTES)
            if not part:
                return line
            line += part
        return line

    def _broken(self, line: int | None, operation_name: str, found: str) -> InvalidSettingError:
        parts = (f"file {self._path}", f"line {line}" if line is not None else "", f"operation {operation_name}" if operation_name else "")
        return InvalidSettingError(
            ", ".join(part for part in parts if part),
            found=found,
            expected=EXPECTED if operation_name else f"Python with the function {FUNCTION_NAME}(cmd, dt_size)",
            remedy="Correct the registry, then read the file again.",
        )


# ---------------------------------------------------------------- registry answers
# What a user's op_registry.py says of every operation of a list.
#
# A registry is code. It runs where somebody has named its directory, and its answers go with the list to the analyzer that reads it: so an
# analyzer that others use too can read the list, and nobody's code runs there.

ANSWERS_FILE_NAME: Final = "op_registry_answers.json"
"""The file of the answers, beside the list that they belong to."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a list. dtype: None where its data type is not known or not stated."""

    index: int
    name: str
    type: str
    dtype: Dtype | None
    source: JsonObject

    @property
    def title(self) -> str:
        """Return what messages call it: "3 (relu, ID_MUL)"."""
        return f"{self.index} ({self.name}, {self.type})"


@dataclass(frozen=True, slots=True)
class RegistryAnswers:
    """problem: why the registry answers nothing at all; empty: it does.

    answers: of each operation its work; None where the registry says nothing of it; in words why the registry failed over it.
    """

    problem: str = ""
    answers: tuple[OperationWork | str | None, ...] = ()

    def of(self, operation: Operation) -> OperationWork | str | None:
        """Return the registry's answer for an operation; None: there is none."""
        return self.answers[operation.index] if self.answers else None

    def document(self) -> dict[str, Any]:
        """Return what FILE_NAME holds."""
        return {"problem": self.problem, "answers": [_member(answer) for answer in self.answers]}


def ask_registry(directory: Path, operations: Sequence[Operation]) -> RegistryAnswers:
    """Run the directory's op_registry.py on every operation whose data type is known."""
    try:
        registry = OpRegistry(directory)
    except InvalidSettingError as error:
        return RegistryAnswers(error.message)
    with closing(registry):
        return RegistryAnswers("", tuple(_answer(registry, operation) for operation in operations))


def sent_answers(files: TraceFiles, operations: Sequence[Operation]) -> RegistryAnswers | None:
    """Return the answers that came with the list; None: there are none. Raise InvalidTraceError for what is none of these."""
    path = files.companions.get(ANSWERS_FILE_NAME)
    if path is None:
        return None
    document = read_document(TraceFiles(ANSWERS_FILE_NAME, path, files.arrived_unix_ns))
    answers = tuple(_sent(answer) for answer in document.objects("answers"))
    problem = document.text("problem")
    if not problem and len(answers) != len(operations):
        raise InvalidTraceError(
            f"file {ANSWERS_FILE_NAME}",
            found=f"answers to {len(answers)} operations",
            expected=f"one to each of the {len(operations)} of {files.file_name}",
            remedy="The list was changed while it was sent: send it again.",
        )
    return RegistryAnswers(problem, answers if not problem else ())


def _answer(registry: OpRegistry, operation: Operation) -> OperationWork | str | None:
    if operation.dtype is None:
        return None
    try:
        return registry.work(operation.title, operation.source.members, operation.dtype.element_bytes)
    except InvalidSettingError as error:
        return error.message


def _member(answer: OperationWork | str | None) -> dict[str, Any]:
    match answer:
        case None:
            return {}
        case str():
            return {"problem": answer}
        case OperationWork(flop, moved_bytes, symbol):
            return {"flop": flop, "bytes": moved_bytes, "symbol": symbol}


def _sent(answer: JsonObject) -> OperationWork | str | None:
    problem = answer.optional_text("problem")
    if problem is not None:
        return problem
    if not answer.members:
        return None
    flop, moved_bytes = answer.optional_number("flop"), answer.optional_number("bytes")
    for name, value in (("flop", flop), ("bytes", moved_bytes)):
        if value is None or value < 0:
            answer.refuse(name, "a number not below zero")
    return OperationWork(flop, moved_bytes, answer.text("symbol"))
