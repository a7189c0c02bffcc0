"""The kinds of ML models that a node can run, with the names, backends and checks of each.

The service asks before it queues a run, so nothing here imports NumPy or a runtime. The worker alone knows what runs each kind.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final, Protocol

from kernalyse.services.core.errors import UnknownModelError
from kernalyse.services.core.model import BackendName, Device, ModelRun
from kernalyse.services.profiler.workloads.gpt.spec import GptSpec
from kernalyse.services.profiler.workloads.onnx.spec import OnnxSpec


class ModelSpec(Protocol):
    """A kind of ML model, as the service checks it."""

    @property
    def name(self) -> str:
        """Return the name by which the worker finds the runner."""
        ...

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the built-in models, as messages list them."""
        ...

    @property
    def backends(self) -> tuple[BackendName, ...]:
        """Return the backends that it can run on; AUTO takes the first that has a device."""
        ...

    def can_use(self, device: Device) -> bool:
        """Return whether the model can run on a device of one of these backends."""
        ...

    def takes(self, work: ModelRun) -> bool:
        """Return whether the model is of this kind."""
        ...

    def check(self, work: ModelRun) -> None:
        """Raise InvalidRequestError, in the service, where the model cannot be run as written."""
        ...


MODEL_SPECS: Final[tuple[ModelSpec, ...]] = (GptSpec(), OnnxSpec())


def find_model_spec(work: ModelRun) -> ModelSpec:
    """Return the kind of model that takes the run. Raises UnknownModelError, naming the closest names there are."""
    for spec in MODEL_SPECS:
        if spec.takes(work):
            return spec
    known = [name for spec in MODEL_SPECS for name in spec.model_names]
    close = get_close_matches(work.model_name, known, n=3)
    raise UnknownModelError(
        f"model {work.model_name or '(no name)'}",
        found="no model of this name",
        expected=f"perhaps {' or '.join(close)}" if close else f"one of {', '.join(known)}",
        remedy="Check the spelling.",
    )
