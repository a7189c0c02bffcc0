"""The functions of NVIDIA's driver that PyCUDA does not offer: occupancy and graphs, called in libcuda itself.

PyCUDA 2026.1 has neither, nor the handle of a function, which occupancy asks for. NVIDIA's own cuda-bindings has all of it, and
would be 20 MB and a second set of contexts and streams for a dozen calls. All calls are for the thread's current context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

LIBRARY_NAME: Final = "libcuda.so.1"

# As cuda.h numbers them.
MAX_DYNAMIC_SHARED_SIZE_BYTES: Final = 8  # CU_FUNC_ATTRIBUTE_…
CAPTURE_MODE_RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_…: what Python's garbage collection frees meanwhile does not end the capture
OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_…

HANDLE: Final = ctypes.c_void_p
HANDLE_RESULT: Final = ctypes.POINTER(ctypes.c_void_p)
SIGNATURES: Final = {
    "cuModuleLoadData": (HANDLE_RESULT, ctypes.c_char_p),
    "cuModuleGetFunction": (HANDLE_RESULT, HANDLE, ctypes.c_char_p),
    "cuModuleUnload": (HANDLE,),
    "cuFuncSetAttribute": (HANDLE, ctypes.c_int, ctypes.c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (ctypes.POINTER(ctypes.c_int), HANDLE, ctypes.c_int, ctypes.c_size_t),
    "cuStreamBeginCapture_v2": (HANDLE, ctypes.c_int),
    "cuStreamEndCapture": (HANDLE, HANDLE_RESULT),
    "cuGraphInstantiateWithFlags": (HANDLE_RESULT, HANDLE, ctypes.c_ulonglong),
    "cuGraphUpload": (HANDLE, HANDLE),
    "cuGraphLaunch": (HANDLE, HANDLE),
    "cuGraphDestroy": (HANDLE,),
    "cuGraphExecDestroy": (HANDLE,),
}


@dataclass(frozen=True, slots=True)
class ErrorClasses:
    """Exceptions that a failed call raises: PyCUDA's own, so that its callers need not know by which way a call went."""

    any_error: type[Exception]
    out_of_memory: type[Exception]


class CudaLibrary:
    """Raises OSError: there is no driver, or one without these functions (all of them are there since CUDA 11.4)."""

    def __init__(self, errors: ErrorClasses) -> None:
        self._library = ctypes.CDLL(LIBRARY_NAME)
        self._errors = errors
        for name, argument_types in SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise OSError(f"{LIBRARY_NAME} has no {name}") from error
            function.argtypes, function.restype = argument_types, ctypes.c_int

    def active_block_count(self, cubin: bytes, entry: str, thread_count: int, dynamic_shared_memory_bytes: int) -> int:
        """Return the number of blocks of one launch that a multiprocessor holds at once."""
        with self._module(cubin) as module:
            function, count = HANDLE(), ctypes.c_int()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
            self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared_memory_bytes)
            self._call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(count), function, thread_count, dynamic_shared_memory_bytes
            )
            return count.value

    @contextmanager
    def _module(self, cubin: bytes) -> Iterator[ctypes.c_void_p]:
        """Yield the cubin once more, for the handles of its functions: PyCUDA keeps those of its own module to itself."""
        module = HANDLE()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        try:
            yield module
        finally:
            self._call("cuModuleUnload", module)

    @contextmanager
    def capturing(self, stream: int) -> Iterator[ctypes.c_void_p]:
        """Put what is enqueued inside into a graph instead of the stream. The graph is there when the block has ended."""
        graph = HANDLE()
        self._call("cuStreamBeginCapture_v2", stream, CAPTURE_MODE_RELAXED)
        try:
            yield graph
        finally:
            self._call("cuStreamEndCapture", stream, ctypes.byref(graph))

    def instantiate(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        """Return a graph that can be launched. The one it was made from is not needed any more, and gone."""
        instance = HANDLE()
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, 0)
        finally:
            self._call("cuGraphDestroy", graph)
        return instance

    def upload_graph(self, instance: ctypes.c_void_p, stream: int) -> None:
        self._call("cuGraphUpload", instance, stream)

    def launch_graph(self, instance: ctypes.c_void_p, stream: int) -> None:
        self._call("cuGraphLaunch", instance, stream)

    def destroy_graph(self, instance: ctypes.c_void_p) -> None:
        self._call("cuGraphExecDestroy", instance)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            error_class = self._errors.out_of_memory if status == OUT_OF_MEMORY else self._errors.any_error
            raise error_class(f"{name} failed: {self._error_name(status)}")

    def _error_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {status}"
