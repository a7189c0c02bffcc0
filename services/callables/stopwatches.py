"""Which clock times a function: that of the GPU library which this program has put to use, else the host's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from services.callables.cuda_stream import CudaStream, has_context
from services.callables.host_clock import HostClock
from services.callables.session import Stopwatch
from services.core.errors import InvalidParameterError, UnmetConditionError

HOST: Final = "host"
AUTO: Final = "auto"


def _torch_stream(torch: Any) -> int | None:
    """None: this PyTorch has no CUDA, or has not used it. Initialized is not enough: its context has to be this thread's."""
    if torch.version.cuda is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    torch.cuda.synchronize()
    return int(torch.cuda.current_stream().cuda_stream)


def _cupy_stream(cupy: Any) -> int | None:
    return int(cupy.cuda.get_current_stream().ptr) if has_context() else None


def _default_stream(_: Any) -> int | None:
    return 0 if has_context() else None


STREAMS: Final[dict[str, tuple[str, str, Callable[[Any], int | None]]]] = {
    "torch": ("torch", "PyTorch", _torch_stream),
    "cupy": ("cupy", "CuPy", _cupy_stream),
    "cuda": ("cuda.bindings.driver", "CUDA Python", _default_stream),
    "pycuda": ("pycuda.driver", "PyCUDA", _default_stream),
}
"""By the name of the choice: module, library, its current stream. Triton launches on PyTorch's."""


def choose_stopwatch(timer: str) -> Stopwatch:
    """The clock that `timer` names: auto, host, or one of STREAMS.

    Raises:
        InvalidParameterError: there is no such choice.
        UnmetConditionError: that library is not loaded, or has not opened a device.
    """
    if timer == AUTO:
        return next((found for name in STREAMS if (found := _opened(name)) is not None), None) or HostClock()
    if timer == HOST:
        return HostClock()
    if timer not in STREAMS:
        raise InvalidParameterError("argument timer", found=repr(timer), expected=", ".join((AUTO, HOST, *STREAMS)))
    found = _opened(timer)
    if found is None:
        _, library, _ = STREAMS[timer]
        raise UnmetConditionError(
            f"timer {timer}",
            found=f"no CUDA device that {library} has opened in this thread",
            expected="a program that uses one",
            remedy="Call the function once before, or choose timer='host'.",
        )
    return found


def _opened(name: str) -> Stopwatch | None:
    module_name, library, stream_of = STREAMS[name]
    module: ModuleType | None = sys.modules.get(module_name)
    stream = None if module is None else stream_of(module)
    return None if stream is None else CudaStream(library, stream)
