"""Notices, progress of a long call, and saving of results when it is interrupted."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Final, NoReturn

# ---------------------------------------------------------------- notices
# Assumptions, substitutions and failures that the caller should know of.
#
# They are logged as warnings, which Python writes to stderr by default.

LOGGER: Final = logging.getLogger("KernelBenchmarker")

_logged: Final[set[str]] = set()


def log_notice(notice: str) -> None:
    """Log a notice."""
    LOGGER.warning("%s", notice)


def log_notice_once(notice: str) -> None:
    """Log a notice that was not logged before; scripts benchmark in loops."""
    if notice not in _logged:
        _logged.add(notice)
        log_notice(notice)


def forget_notices() -> None:
    """Forget which notices were logged."""
    _logged.clear()


# ---------------------------------------------------------------- progress
# Reported only for calls that take long.

FIRST_REPORT_S: Final = 3.0
"""Shorter calls are not reported: the result arrives before anybody has read the report."""

REPORT_INTERVAL_S: Final = 10.0
"""Rare enough for a readable log of hours, frequent enough that the call does not seem to hang."""


class CallProgress:
    """The progress of one call of benchmark, over all its kernels.

    Args:
        total_count: configurations of all kernels.
        clock_s: the current time; tests pass their own.
        say: receives the reports; tests pass their own.
    """

    def __init__(self, total_count: int, clock_s: Callable[[], float] = time.monotonic, say: Callable[[str], None] = log_notice) -> None:
        self.total_count = total_count
        self._clock_s = clock_s
        self._say = say
        self._start_s = clock_s()
        self._next_report_s = self._start_s + FIRST_REPORT_S
        self._earlier_count = 0  # of earlier kernels
        self._done_count = 0
        self._activity = ""

    def end_kernel(self, configuration_count: int) -> None:
        """Count all configurations of a kernel as done, measured or not."""
        self._earlier_count += configuration_count
        self._done_count = self._earlier_count

    def update(self, done_count: int, activity: str) -> None:
        """Take the progress of the current kernel's sweep; `activity` is empty between two configurations."""
        self._done_count = self._earlier_count + done_count
        self._activity = activity or self._activity
        self.tick()

    def tick(self) -> None:
        """Report the progress if a report is due."""
        now_s = self._clock_s()
        if now_s < self._next_report_s:
            return
        self._next_report_s = now_s + REPORT_INTERVAL_S
        elapsed_s = now_s - self._start_s
        left = ""
        if self._done_count:
            left = f", about {_clock_text(elapsed_s / self._done_count * (self.total_count - self._done_count))} left"
        report = f"{self._done_count} of {self.total_count} configurations after {_clock_text(elapsed_s)}{left}"
        self._say(f"{report}: {self._activity}" if self._activity else f"{report}.")


def _clock_text(duration_s: float) -> str:
    """Return a duration as hours, minutes and seconds: 0:01:15."""
    return str(timedelta(seconds=round(duration_s)))


# ---------------------------------------------------------------- interruption
# Ctrl-C, or SIGTERM as a batch system sends it.

TERMINATED_STATUS: Final = 128 + signal.SIGTERM


class _TerminatedError(SystemExit):
    """The process received SIGTERM."""


@contextmanager
def save_on_interrupt(keep: Callable[[], str]) -> Iterator[None]:
    """Save what the block has measured when it is interrupted, and log a sentence instead of a traceback.

    The exception, KeyboardInterrupt or SystemExit, is raised again, so that a script, a notebook or a shell can handle it.

    Args:
        keep: saves, and returns the sentence.
    """
    try:
        with _sigterm_as_exit():
            yield
    except _TerminatedError:
        log_notice(f"Ended by SIGTERM. {keep()}")
        raise
    except KeyboardInterrupt as error:
        log_notice(f"Interrupted. {keep()}")
        _print_no_traceback_of(error)
        raise


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into an exception, unless the program handles it itself; only the main thread can handle signals."""
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
    """Suppress the traceback of this exception; all others are printed as before."""
    hook = sys.excepthook

    def print_others(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is not error:
            hook(kind, value, trace)

    sys.excepthook = print_others
