"""Errors of PyCUDA as errors of this project; and whether the device's context has survived them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from services.core.errors import InternalError, LaunchLimitError, MemoryLimitError, WorkerCrashedError


class DeviceErrors:
    """Args: driver: of PyCUDA."""

    def __init__(self, driver: Any, device_name: str) -> None:
        self._driver = driver
        self._device_name = device_name
        self._lost_by: str | None = None  # what the context went with

    @property
    def is_context_lost(self) -> bool:
        return self._lost_by is not None

    @contextmanager
    def of_launches(self, subject: str) -> Iterator[None]:
        """Translate the errors of launches and their ends.

        Raises:
            WorkerCrashedError: a kernel has done what takes the context with it: no call in this process will succeed again.
            MemoryLimitError: no memory for what the launch needs.
            LaunchLimitError: the driver refuses the launch; the context is as it was.
        """
        try:
            yield
        except self._driver.Error as error:
            raise self._lost_or_full(subject, error) or LaunchLimitError(
                f"{subject} on {self._device_name}", found=str(error), remedy="Choose a smaller block or grid."
            ) from error

    @contextmanager
    def of_calls(self, subject: str) -> Iterator[None]:
        """Translate the errors of other calls: copies, memory, graphs. Raises as `of_launches`, but InternalError for what is neither."""
        try:
            yield
        except self._driver.Error as error:
            raise self._lost_or_full(subject, error) or InternalError(
                f"{subject} on {self._device_name}", found=str(error), remedy="Run it again; if it stays, run kernalyse doctor."
            ) from error

    def _lost_or_full(self, subject: str, error: Exception) -> WorkerCrashedError | MemoryLimitError | None:
        if self._lost_by is not None:
            found = f"no context on the device any more: {self._lost_by} has taken it along"
        elif self._is_context_gone():
            self._lost_by = subject
            found = f"{error}; the device's context is lost with it"
        elif isinstance(error, self._driver.MemoryError):
            return MemoryLimitError(f"{subject} on {self._device_name}", found=str(error), remedy="Choose smaller parameters.")
        else:
            return None
        return WorkerCrashedError(
            f"{subject} on {self._device_name}",
            found=found,
            remedy="Run the kernel under compute-sanitizer. What was measured before is kept; start another run for the rest.",
        )

    def _is_context_gone(self) -> bool:
        """Return whether the context is lost: then every later call returns the error again."""
        try:
            self._driver.Context.synchronize()
        except self._driver.Error:
            return True
        return False
