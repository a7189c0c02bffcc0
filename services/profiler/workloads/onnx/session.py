"""A model loaded into ONNX Runtime: on which provider, timed from outside or with the runtime's own profile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import onnxruntime

from services.core.errors import BackendUnavailableError, InvalidModelError
from services.core.model import Device, DeviceKind
from services.core.statistics import Samples
from services.profiler.workloads.onnx.feeds import Feeds

Value = TypeVar("Value")

CPU_PROVIDER: Final = "CPUExecutionProvider"
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
ERRORS_ONLY: Final = 3  # of the runtime's log: its warnings tell how a graph was made faster

WEIGHTS_FILE_KEY: Final = "session.optimized_model_external_initializers_file_name"
WEIGHTS_SIZE_KEY: Final = "session.optimized_model_external_initializers_min_size_in_bytes"
MIN_WEIGHTS_BYTES: Final = "1024"


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider of ONNX Runtime, for one device."""

    name: str
    device_number: int | None = None  # None: the CPU has none

    @classmethod
    def of(cls, device: Device) -> Provider:
        """Return the provider for a device. Raises BackendUnavailableError: this ONNX Runtime has none."""
        name = CPU_PROVIDER if device.kind is DeviceKind.CPU else CUDA_PROVIDER
        available = onnxruntime.get_available_providers()
        is_cuda = device.device_id.startswith("cuda:")
        if name not in available or (name == CUDA_PROVIDER and not is_cuda):
            raise BackendUnavailableError(
                f"ONNX Runtime on device {device.device_id}",
                found=f"providers {', '.join(available)}",
                expected=name if is_cuda else "a CPU or an NVIDIA device",
                remedy="Install onnxruntime-gpu in the place of onnxruntime, or choose the CPU device.",
            )
        return cls(name, int(device.device_id.partition(":")[2]) if is_cuda else None)

    @property
    def is_host(self) -> bool:
        return self.device_number is None

    @property
    def options(self) -> dict[str, int]:
        return {} if self.device_number is None else {"device_id": self.device_number}


class OnnxSession:
    """A model, ready to run. Loading it takes load_ns."""

    def __init__(self, path: Path, name: str, provider: Provider, *, profile: Path | None = None, optimized: Path | None = None) -> None:
        """Load the model. profile: beginning of the path of a profile. optimized: file to write the graph to that is really run.

        Raises InvalidModelError, with ONNX Runtime's own words: it cannot run the model.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
            options.add_session_config_entry(WEIGHTS_FILE_KEY, f"{optimized.name}.weights")  # a model of more than 2 GB has no other way
            options.add_session_config_entry(WEIGHTS_SIZE_KEY, MIN_WEIGHTS_BYTES)
        self._name = name
        start_ns = time.perf_counter_ns()
        self._session = _told(name, lambda: onnxruntime.InferenceSession(path, options, providers=[(provider.name, provider.options)]))
        self.load_ns = time.perf_counter_ns() - start_ns
        if provider.name not in self._session.get_providers():
            raise BackendUnavailableError(
                f"provider {provider.name} of ONNX Runtime",
                found=f"it fell back to {', '.join(self._session.get_providers())}",
                expected="the provider of the device",
                remedy="The run's log has what was missing: mostly CUDA or cuDNN of another version.",
            )

    def run(self, feeds: Feeds) -> list[Any]:
        """Run one pass and return its outputs. Raises InvalidModelError with ONNX Runtime's own words."""
        outputs: list[Any] = _told(self._name, lambda: self._session.run(None, dict(feeds)))
        return outputs

    def time(self, feeds: Feeds, duration_ns: int, max_count: int) -> Samples:
        """Run passes until so much time is over, at least one: ns of each by the host's clock, inputs and outputs included."""
        durations: list[int] = []
        while not durations or (sum(durations) < duration_ns and len(durations) < max_count):
            start_ns = time.perf_counter_ns()
            self.run(feeds)
            durations.append(time.perf_counter_ns() - start_ns)
        return np.array(durations, dtype=np.float64)

    def end_profile(self) -> Path:
        """Write the profile; no pass is recorded any more."""
        return Path(self._session.end_profiling())


def _told(name: str, action: Callable[[], Value]) -> Value:
    try:
        return action()
    except Exception as error:  # each of the runtime's errors is a class of its own, of no common kind
        raise InvalidModelError(
            f"model {name}",
            found=str(error).strip(),
            expected=f"a model and inputs that ONNX Runtime {onnxruntime.__version__} can run",
            remedy="Export it with operators that this version has, or install another version on the node.",
        ) from error
