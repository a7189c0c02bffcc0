"""NVTX ranges around launches, where a tool is there to see them.

Through the C interface: Python's nvtx package (0.2.14 to 0.2.17) writes events that Nsight Systems up to 2023.4 does not record.
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final, Protocol

from services.core.cuda_tools import find_nvcc

logger = logging.getLogger(__name__)  # of the worker's run: its warnings go to stderr, and so into the run's log

LISTENER: Final = "NVTX_INJECTION64_PATH"  # the library that a tool wants its ranges sent to; without one nobody listens
SOURCE_FILE: Final = Path(__file__).parent / "device_code" / "ranges.c"
COMPILE_LIMIT_S: Final = 60.0


class Ranges(Protocol):
    """Named ranges of launches, as a tool around the process shows them."""

    def around(self, name: str) -> AbstractContextManager[None]:
        """Return a context: what this thread launches inside belongs to the range."""
        ...


class NoRanges:
    """Ranges that nobody sees."""

    def around(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


class NvtxRanges:
    """Args: push: with the name as C has it. pop: ends the range begun last."""

    def __init__(self, push: Callable[[bytes], object], pop: Callable[[], object]) -> None:
        self._push = push
        self._pop = pop

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        self._push(name.encode())
        try:
            yield
        finally:
            self._pop()


def open_ranges(environment: Mapping[str, str], toolkit: Path | None = None) -> Ranges:
    """Open ranges for the tool that runs this process; none, at no cost, where there is no tool. Never raises.

    Args:
        toolkit: folder of the CUDA toolkit with include/nvtx3; None: that of nvcc.
    """
    if not environment.get(LISTENER):
        return NoRanges()
    try:
        library = _build(toolkit or _toolkit())
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("No NVTX ranges: %s. The toolkit's headers (nvtx3) and a C compiler bring them.", error)
        return NoRanges()
    return NvtxRanges(library.kernalyse_push_range, library.kernalyse_pop_range)


def _toolkit() -> Path:
    nvcc = find_nvcc()
    if nvcc is None:
        raise FileNotFoundError("no CUDA toolkit")
    return Path(nvcc).resolve().parents[1]


def _build(toolkit: Path) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="kernalyse-nvtx-") as folder:
        file = Path(folder) / "ranges.so"
        command = ["cc", "-shared", "-fPIC", "-O1", f"-I{toolkit / 'include'}", str(SOURCE_FILE), "-o", str(file), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
        if done.returncode != 0:
            raise OSError(f"cc says {done.stderr.strip().splitlines()[0] if done.stderr.strip() else done.returncode}")
        library = ctypes.CDLL(str(file))  # stays loaded when the file has gone
    library.kernalyse_push_range.argtypes, library.kernalyse_push_range.restype = [ctypes.c_char_p], None
    library.kernalyse_pop_range.argtypes, library.kernalyse_pop_range.restype = [], None
    return library
