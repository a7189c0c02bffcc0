"""Launches of one cubin by the driver alone, so that several tools can time the very same machine code.

Every call is for the thread's current context: that of the tool that times.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

ARGUMENT_BUFFER, ARGUMENT_SIZE, ARGUMENTS_END = 1, 2, 0  # CU_LAUNCH_PARAM_…
MAX_DYNAMIC_SHARED_SIZE_BYTES: Final = 8  # CU_FUNC_ATTRIBUTE_…
SEED: Final = 0
MAX_RANDOM_COUNT: Final = 2**22  # repeated beyond: what is copied and added takes no less time, and more would take seconds to draw


@dataclass(frozen=True, slots=True)
class LaunchCase:
    """A launch as a file can hold it. arguments: sizes of buffers of random float32 numbers (int), or a scalar's bytes as hex (str)."""

    label: str
    cubin_file: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[int | str, ...]


def write_cases(cases: list[LaunchCase], file: Path) -> None:
    file.write_text(json.dumps([asdict(case) for case in cases]), encoding="utf-8")


def read_cases(file: Path) -> list[LaunchCase]:
    return [LaunchCase(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


class CubinLaunch:
    """Loads the cubin and fills its buffers; raises RuntimeError with the driver's name of what went wrong."""

    def __init__(self, case: LaunchCase) -> None:
        self._case = case
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), Path(case.cubin_file).read_bytes())
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, case.entry.encode())
        if case.shared_bytes > 48 * 1024:
            self._call("cuFuncSetAttribute", self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, case.shared_bytes)
        self._buffers: list[ctypes.c_uint64] = []
        packed = bytearray()
        for argument in case.arguments:
            data = self._filled_buffer(argument) if isinstance(argument, int) else bytes.fromhex(argument)
            packed += bytes(-len(packed) % len(data)) + data
        self._packed = ctypes.create_string_buffer(bytes(packed), len(packed))
        self._packed_size = ctypes.c_size_t(len(packed))
        self._extra = (ctypes.c_void_p * 5)(
            ARGUMENT_BUFFER, ctypes.addressof(self._packed), ARGUMENT_SIZE, ctypes.addressof(self._packed_size), ARGUMENTS_END
        )

    def launch(self, stream: int) -> None:
        case = self._case
        self._call("cuLaunchKernel", self._function, *case.grid, *case.block, case.shared_bytes, ctypes.c_void_p(stream), None, self._extra)

    def close(self) -> None:
        self._call("cuCtxSynchronize")
        for buffer in self._buffers:
            self._call("cuMemFree_v2", buffer)
        self._call("cuModuleUnload", self._module)

    def _filled_buffer(self, size_bytes: int) -> bytes:
        count = size_bytes // 4
        values = np.resize(np.random.default_rng(SEED).random(min(count, MAX_RANDOM_COUNT), np.float32), count)
        buffer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(size_bytes))
        self._buffers.append(buffer)
        self._call("cuMemcpyHtoD_v2", buffer, values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(size_bytes))
        return buffer.value.to_bytes(8, "little")

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(words))
            raise RuntimeError(f"{name} of {self._case.label}: {(words.value or b'?').decode()}")
