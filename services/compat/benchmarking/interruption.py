"""A script that is ended while it benchmarks: by Ctrl-C, or by SIGTERM as a batch system sends it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Final, NoReturn

from services.compat.benchmarking.notices import tell

TERMINATED_STATUS: Final = 128 + signal.SIGTERM


class _TerminatedError(SystemExit):
    """SIGTERM has come."""


@contextmanager
def kept_when_ended(keep: Callable[[], str]) -> Iterator[None]:
    """Keep what the block has measured where it is ended, and say so in the place of a traceback.

    The exception goes on as it is, KeyboardInterrupt or SystemExit: a script, a notebook or a shell that handles it goes on too.

    Args:
        keep: called then; answers with the sentence to say.
    """
    try:
        with _sigterm_as_exit():
            yield
    except _TerminatedError:
        tell(f"Ended by SIGTERM. {keep()}")
        raise
    except KeyboardInterrupt as error:
        tell(f"Interrupted. {keep()}")
        _print_no_traceback_of(error)
        raise


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """A program that handles SIGTERM itself is left alone; only the main thread can handle signals."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise _TerminatedError(TERMINATED_STATUS)


def _print_no_traceback_of(error: BaseException) -> None:
    """Until the end of the program; every other exception is printed as before."""
    hook = sys.excepthook

    def print_others(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is not error:
            hook(kind, value, trace)

    sys.excepthook = print_others
