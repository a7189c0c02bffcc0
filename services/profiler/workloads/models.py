"""The models that a node can run, by name: each workload says which names it takes and on what it runs.

The service asks before it queues a run, so nothing here imports NumPy or a runtime; what the worker calls does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from services.core.errors import UnknownModelError
from services.core.model import BackendName, Device, ModelRun, RunLimits
from services.profiler.workloads.gpt.workload import GptWorkload
from services.profiler.workloads.onnx.workload import OnnxWorkload

if TYPE_CHECKING:
    from services.profiler.backends.base import DeviceSession
    from services.profiler.workloads.events import EventSink


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Context that a worker gives a model to run with."""

    open_session: Callable[[], DeviceSession]  # on the run's backend and device; raises what opening them raises
    sink: EventSink
    folder: Path  # of the run: its artifacts, and its bundle if it has one
    limits: RunLimits
    ceilings_file: Path | None  # where measured ceilings are kept between runs
    cache_folder: Path | None  # where what is built is kept between runs


class ModelWorkload(Protocol):
    """A way to run models."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names of built-in models, as messages list them."""
        ...

    @property
    def backends(self) -> tuple[BackendName, ...]:
        """Return the backends that it can run on; AUTO takes the first that has a device."""
        ...

    def can_use(self, device: Device) -> bool:
        """Return whether a device that one of these backends drives may be chosen for it."""
        ...

    def takes(self, work: ModelRun) -> bool:
        """Return whether the model is one of its own."""
        ...

    def check(self, work: ModelRun) -> None:
        """Refuse, in the service, what cannot be run as written. Raises InvalidRequestError."""
        ...

    def run(self, work: ModelRun, context: ModelContext) -> None:
        """Run the model, in the worker. Raises KernalyseError."""
        ...


WORKLOADS: Final[tuple[ModelWorkload, ...]] = (GptWorkload(), OnnxWorkload())


def workload_of(work: ModelRun) -> ModelWorkload:
    """Return the workload that takes the model. Raises UnknownModelError, naming the closest there are."""
    for workload in WORKLOADS:
        if workload.takes(work):
            return workload
    known = [name for workload in WORKLOADS for name in workload.model_names]
    close = get_close_matches(work.model_name, known, n=3)
    raise UnknownModelError(
        f"model {work.model_name or '(no name)'}",
        found="no model of this name",
        expected=f"perhaps {' or '.join(close)}" if close else f"one of {', '.join(known)}",
        remedy="Check the spelling.",
    )
