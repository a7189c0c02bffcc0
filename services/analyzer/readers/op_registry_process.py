"""A process that runs a user's op_registry.py: operations come as lines of JSON, what it says of each goes as a line.

It knows nothing but Python, so that it starts at once. What the registry does to it, it does to nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, TextIO

FUNCTION_NAME: Final = "get_custom_metrics"
MAX_SYMBOL_LENGTH: Final = 64
MAX_SHOWN_LENGTH: Final = 200
MAX_FIGURE: Final = 1e300  # twice of it is still a number

Formula = Callable[[dict[str, Any], float], Any]


class BrokenError(Exception):
    """The registry fails. line: of it, where that is known."""

    def __init__(self, line: int | None, found: str) -> None:
        super().__init__(found)
        self.line = line
        self.found = found if len(found) <= MAX_SHOWN_LENGTH else f"{found[:MAX_SHOWN_LENGTH]}…"


def main(path: Path, operations: TextIO, answers: TextIO) -> None:
    """Answers {} when the registry is loaded; then for each operation macs, bytes and symbol, or {} when it says nothing of it.

    Whatever fails is answered with found and line, a registry that cannot be loaded as the first and only thing.
    """

    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        formula = loaded(path)
    except BrokenError as error:
        tell({"found": error.found, "line": error.line})
        return
    tell({})
    for line in operations:
        asked = json.loads(line)
        try:
            tell(told(path, formula, asked["operation"], asked["element_bytes"]))
        except BrokenError as error:
            tell({"found": error.found, "line": error.line})


def loaded(path: Path) -> Formula:
    """Raises BrokenError."""
    names: dict[str, Any] = {"__name__": "op_registry", "__file__": str(path)}
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), names)
    except SyntaxError as error:
        raise BrokenError(error.lineno, _in_words(error)) from error
    except (Exception, SystemExit) as error:
        _raise_broken(path, error)
    formula = names.get(FUNCTION_NAME)
    if not callable(formula):
        raise BrokenError(None, f"no function {FUNCTION_NAME}")
    found: Formula = formula
    return found


def told(path: Path, formula: Formula, operation: dict[str, Any], element_bytes: float) -> dict[str, Any]:
    """Raises BrokenError."""
    try:
        answer = formula(operation, element_bytes)
    except (Exception, SystemExit) as error:
        _raise_broken(path, error)
    if answer is None:
        return {}
    work = _work(answer)
    if work is None:
        raise BrokenError(formula.__code__.co_firstlineno if hasattr(formula, "__code__") else None, f"the answer {_shown(answer)}")
    return work


def _work(answer: Any) -> dict[str, Any] | None:
    """None: no such answer."""
    try:
        macs, moved_bytes, symbol = answer
        figures = float(macs), float(moved_bytes)
    except (Exception, SystemExit):  # a value of the registry's own class can raise anything
        return None
    if not all(0 <= figure < MAX_FIGURE for figure in figures):
        return None
    if not isinstance(symbol, str) or not 0 < len(symbol) <= MAX_SYMBOL_LENGTH:
        return None
    return {"macs": figures[0], "bytes": figures[1], "symbol": symbol}


def _raise_broken(path: Path, error: BaseException) -> NoReturn:
    raise BrokenError(_line(path, error.__traceback__), _in_words(error)) from error


def _line(path: Path, trace: TracebackType | None) -> int | None:
    """Where in the registry it happened, though it may have been in a library that it calls."""
    return next((frame.lineno for frame in reversed(traceback.extract_tb(trace)) if frame.filename == str(path)), None)


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _shown(answer: Any) -> str:
    try:
        return repr(answer)
    except (Exception, SystemExit):
        return f"of type {type(answer).__name__}"


if __name__ == "__main__":
    own_answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the registry prints is no answer
    registry = Path(sys.argv[1]).absolute()
    sys.path.append(str(registry.parent))  # for modules beside it; last, since a name of its own must hide no library
    main(registry, sys.stdin, own_answers)
