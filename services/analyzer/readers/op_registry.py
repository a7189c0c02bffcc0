"""A user's own formulas for operations: op_registry.py with get_custom_metrics(cmd, dt_size) -> (macs, bytes, symbol).

It is code, and runs in this process with its rights: only a folder that the settings or the command line name is looked at.
"""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from services.analyzer.readers.command_work import FLOP_PER_MAC, OperationWork
from services.core.errors import InvalidSettingError

FILE_NAME: Final = "op_registry.py"
FUNCTION_NAME: Final = "get_custom_metrics"
MAX_SYMBOL_LENGTH: Final = 64
EXPECTED: Final = "(macs, bytes, symbol), two numbers not below zero and a name"

Formula = Callable[[dict[str, Any], int], Any]


class OpRegistry:
    """The registry of a folder, loaded.

    Raises:
        InvalidSettingError: there is none, or loading it fails; names its file and, where it has one, the line.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._formula = self._load()

    def work(self, operation_name: str, operation: Mapping[str, Any], element_bytes: int) -> OperationWork | None:
        """What it says of an operation; None: nothing, as None, or no MACs and no bytes.

        Args:
            operation_name: for errors.
            operation: as it stands in the file; the registry gets a copy.

        Raises:
            InvalidSettingError: the registry fails, or answers something else; names file, line and operation.
        """
        try:
            answer = self._formula(copy.deepcopy(dict(operation)), element_bytes)
        except (Exception, SystemExit) as error:
            raise self._broken(self._line(error.__traceback__), operation_name, _in_words(error)) from error
        if answer is None:
            return None
        work = _work(answer)
        if work is None:
            line = self._formula.__code__.co_firstlineno if hasattr(self._formula, "__code__") else None
            raise self._broken(line, operation_name, f"the answer {_shortened(repr(answer))}")
        return work if work.flop or work.bytes else None

    def _load(self) -> Formula:
        try:
            source = self._path.read_bytes()
        except OSError as error:
            raise InvalidSettingError(
                f"registry of operations {self._path}",
                found=error.strerror or "no such file",
                expected=f"a file with the function {FUNCTION_NAME}(cmd, dt_size)",
                remedy="Correct op_registry_folder of the analyzer, or --op-registry.",
            ) from error
        names: dict[str, Any] = {"__name__": "op_registry", "__file__": str(self._path)}
        try:
            exec(compile(source, str(self._path), "exec"), names)
        except SyntaxError as error:
            raise self._broken(error.lineno, "", _in_words(error)) from error
        except (Exception, SystemExit) as error:
            raise self._broken(self._line(error.__traceback__), "", _in_words(error)) from error
        formula = names.get(FUNCTION_NAME)
        if not callable(formula):
            raise self._broken(None, "", f"no function {FUNCTION_NAME}")
        found: Formula = formula
        return found

    def _line(self, trace: TracebackType | None) -> int | None:
        """Where in the registry it happened, though it may have been in a library that it calls."""
        return next((frame.lineno for frame in reversed(traceback.extract_tb(trace)) if frame.filename == str(self._path)), None)

    def _broken(self, line: int | None, operation_name: str, found: str) -> InvalidSettingError:
        parts = (f"file {self._path}", f"line {line}" if line is not None else "", f"operation {operation_name}" if operation_name else "")
        return InvalidSettingError(
            ", ".join(part for part in parts if part),
            found=found,
            expected=EXPECTED if operation_name else f"Python with the function {FUNCTION_NAME}(cmd, dt_size)",
            remedy="Correct the registry, then read the file again.",
        )


def _work(answer: Any) -> OperationWork | None:
    """None: no such answer."""
    try:
        macs, moved_bytes, symbol = answer
        figures = float(macs), float(moved_bytes)
    except (Exception, SystemExit):  # a value of the registry's own class can raise anything
        return None
    if not all(math.isfinite(FLOP_PER_MAC * figure) and figure >= 0 for figure in figures):
        return None
    if not isinstance(symbol, str) or not 0 < len(symbol) <= MAX_SYMBOL_LENGTH:
        return None
    return OperationWork(FLOP_PER_MAC * figures[0], figures[1], symbol)


def _in_words(error: BaseException) -> str:
    return _shortened(f"{type(error).__name__}: {error}")


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
