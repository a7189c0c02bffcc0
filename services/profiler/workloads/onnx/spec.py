"""ONNX models as the service checks them before a run is queued."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final

from kernalyse.services.core.errors import BackendUnavailableError, InvalidParameterError
from kernalyse.services.core.model import BUILT_IN_ONNX_MODEL, BackendName, CacheMode, Device, DeviceKind, ModelRun

INSTALLING: Final = "pip install 'kernalyse[onnx]'; onnxruntime-gpu instead of onnxruntime for NVIDIA GPUs."
PACKAGES: Final = ("onnxruntime", "onnx", "tokenizers")
CUDA_PROVIDER_FILE: Final = "capi/libonnxruntime_providers_cuda.so"
"""Of the package onnxruntime-gpu. Looked for, since asking the package means loading it into the service."""

MAX_BATCH_SIZE: Final = 2**16
MAX_SEQUENCE_LENGTH: Final = 2**20
MAX_PROMPT_LENGTH: Final = 2**16
"""Characters. No model that fits a node reads more; a longer one would travel with every answer that lists the run."""


class OnnxSpec:
    """The kind of ONNX models: a small built-in BERT, and files of bundles, on ONNX Runtime."""

    @property
    def name(self) -> str:
        """Return "onnx"."""
        return "onnx"

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the name of the built-in BERT."""
        return (BUILT_IN_ONNX_MODEL,)

    @property
    def backends(self) -> tuple[BackendName, ...]:
        """Return the backends whose devices the installed ONNX Runtime can use, the preferred one first."""
        # ONNX Runtime knows none of them: the name says on which device of the node its provider computes.
        return (BackendName.PYCUDA, BackendName.NVCC, BackendName.OPENCL) if has_cuda_provider() else (BackendName.OPENCL,)

    def can_use(self, device: Device) -> bool:
        """Return whether the device can be used: the GPUs that OpenCL lists cannot, for no provider computes on them."""
        return device.kind is DeviceKind.CPU or BackendName.OPENCL not in device.backends

    def takes(self, work: ModelRun) -> bool:
        """Return whether the request names an ONNX model."""
        return work.is_onnx

    def check(self, work: ModelRun) -> None:
        """Raise InvalidParameterError for a bad request, and BackendUnavailableError where ONNX Runtime is not installed."""
        _check_packages()
        _check_files(work)
        _check_prompt(work)
        if work.variants:
            raise _invalid("variants", work, ", ".join(work.variants), "none: ONNX Runtime chooses its kernels itself")
        if work.measuring.cache_mode not in (CacheMode.DEFAULT, CacheMode.HOT):
            raise _invalid("cache_mode", work, work.measuring.cache_mode.value, "HOT: caches cannot be flushed between the nodes of a pass")
        _check_dimension("batch_size", work.batch_size, MAX_BATCH_SIZE, work)
        _check_dimension("sequence_length", work.sequence_length, MAX_SEQUENCE_LENGTH, work)


def missing_packages() -> list[str]:
    """Return the packages that running ONNX models needs and this Python lacks."""
    return [name for name in PACKAGES if find_spec(name) is None]


def _check_packages() -> None:
    missing = missing_packages()
    if missing:
        raise BackendUnavailableError(
            "ONNX models",
            found=f"{' and '.join(missing)} not installed on this node",
            expected=", ".join(PACKAGES),
            remedy=INSTALLING,
        )


def _check_files(work: ModelRun) -> None:
    is_file = work.model_name != BUILT_IN_ONNX_MODEL
    if is_file and not work.bundle_digest:
        raise _invalid("bundle_digest", work, "none", "the digest of the bundle that has the file", "Upload the file's directory first.")
    if work.tokenizer_file_name and not work.bundle_digest:
        raise _invalid("tokenizer_file_name", work, work.tokenizer_file_name, "a bundle that has the file", "Upload its directory first.")
    for name in (work.model_name, work.tokenizer_file_name):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise _invalid("file name", work, repr(name), "a path below the bundle's top directory")


def _check_prompt(work: ModelRun) -> None:
    """Raise InvalidParameterError for a prompt of blanks only. An empty prompt means random tokens."""
    if work.prompt and not work.prompt.strip():
        raise _invalid("prompt", work, f"{len(work.prompt)} blanks", "text", "Give some text, or none for random tokens.")
    if len(work.prompt) > MAX_PROMPT_LENGTH:
        raise _invalid("prompt", work, f"{len(work.prompt)} characters", f"at most {MAX_PROMPT_LENGTH}", "Shorten it.")


def _check_dimension(name: str, value: int, limit: int, work: ModelRun) -> None:
    if not 1 <= value <= limit:
        raise _invalid(name, work, str(value), f"1 to {limit}")


def _invalid(what: str, work: ModelRun, found: str, expected: str, remedy: str = "Correct it.") -> InvalidParameterError:
    return InvalidParameterError(f"{what} of model {work.model_name}", found=found, expected=expected, remedy=remedy)


def has_cuda_provider() -> bool:
    """Return whether the installed ONNX Runtime can use NVIDIA devices."""
    found = find_spec("onnxruntime")
    return found is not None and found.origin is not None and (Path(found.origin).parent / CUDA_PROVIDER_FILE).exists()
