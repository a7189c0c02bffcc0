"""What a user's op_registry.py says of every operation of a list.

A registry is code. It runs where somebody has named its folder, and its answers go with the list to the analyzer that reads it: so
an analyzer that others use too can read the list, and nobody's code runs there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services.analyzer.readers.command_work import OperationWork
from services.analyzer.readers.dtypes import Dtype
from services.analyzer.readers.json_document import JsonObject, read_document
from services.analyzer.readers.op_registry import OpRegistry
from services.analyzer.readers.trace import TraceFiles
from services.core.errors import InvalidSettingError, InvalidTraceError

FILE_NAME: Final = "op_registry_answers.json"
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
        return self.answers[operation.index] if self.answers else None

    def document(self) -> dict[str, Any]:
        """Return what FILE_NAME holds."""
        return {"problem": self.problem, "answers": [_member(answer) for answer in self.answers]}


def ask_registry(folder: Path, operations: Sequence[Operation]) -> RegistryAnswers:
    """Run the folder's op_registry.py on every operation whose data type is known."""
    try:
        registry = OpRegistry(folder)
    except InvalidSettingError as error:
        return RegistryAnswers(error.message)
    with closing(registry):
        return RegistryAnswers("", tuple(_answer(registry, operation) for operation in operations))


def sent_answers(files: TraceFiles, operations: Sequence[Operation]) -> RegistryAnswers | None:
    """Return the answers that came with the list; None: there are none. Raise InvalidTraceError for what is none of these."""
    path = files.companions.get(FILE_NAME)
    if path is None:
        return None
    document = read_document(TraceFiles(FILE_NAME, path, files.arrived_unix_ns))
    answers = tuple(_sent(answer) for answer in document.objects("answers"))
    problem = document.text("problem")
    if not problem and len(answers) != len(operations):
        raise InvalidTraceError(
            f"file {FILE_NAME}",
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
