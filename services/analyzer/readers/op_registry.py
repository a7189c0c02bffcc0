"""A user's own formulas for operations: op_registry.py with get_custom_metrics(cmd, dt_size) -> (macs, bytes, symbol).

It is code, and runs with this user's rights, in a process of its own that may be ended: only a folder that the settings or the
command line name is looked at.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from services.analyzer.readers.command_work import FLOP_PER_MAC, OperationWork
from services.analyzer.readers.op_registry_process import FUNCTION_NAME
from services.core.errors import InvalidSettingError

FILE_NAME: Final = "op_registry.py"
PROCESS_MODULE: Final = "services.analyzer.readers.op_registry_process"
EXPECTED: Final = "(macs, bytes, symbol), two numbers not below zero and a name"

ANSWER_LIMIT_S: Final = 20.0
"""For loading it and for each operation. A formula takes microseconds, but a registry may load a large library on a busy machine;
with more, somebody would wait for one that never answers."""

ANSWER_BYTES: Final = 65536


class OpRegistry:
    """The registry of a folder, loaded. `close` ends it.

    Raises:
        InvalidSettingError: there is none, or loading it fails; names its file and, where it has one, the line.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        if not self._path.is_file():
            raise InvalidSettingError(
                f"registry of operations {self._path}",
                found="No such file",
                expected=f"a file with the function {FUNCTION_NAME}(cmd, dt_size)",
                remedy="Correct op_registry_folder of the analyzer, or --op-registry.",
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
