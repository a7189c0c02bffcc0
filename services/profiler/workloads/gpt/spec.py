"""GPT models as the service checks them before a run is queued: names, variants and sizes."""

from __future__ import annotations

from typing import Final

from kernalyse.services.core.errors import InvalidParameterError
from kernalyse.services.core.ml_models import MODEL_NAMES, find_architecture
from kernalyse.services.core.model import BackendName, CacheMode, Device, ModelRun, TimingMethod

BASELINE: Final = "baseline"  # one naive kernel for each operation
FUSED: Final = "fused"  # tiled products with bias, GELU and residual in them, attention in one kernel
VARIANTS: Final = (BASELINE, FUSED)

MAX_DIMENSION: Final = 2**20
"""Of batch, sequence and vocabulary: far above what any device's memory holds, and their products still fit 64 bits."""


class GptSpec:
    """The built-in GPT architectures, on kernels of the catalog and of `kernels/gpt.cu`."""

    @property
    def name(self) -> str:
        """Return "gpt"."""
        return "gpt"

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names of the built-in architectures."""
        return MODEL_NAMES

    @property
    def backends(self) -> tuple[BackendName, ...]:
        """Return the backends that have the kernels, the preferred one first."""
        # Not NVCC: there each kernel is a process of its own, and a pass would copy every buffer between them.
        return (BackendName.PYCUDA, BackendName.OPENCL)

    def can_use(self, device: Device) -> bool:
        """Return True: every device of these backends runs the kernels."""
        return True

    def takes(self, work: ModelRun) -> bool:
        """Return whether the request names a built-in architecture and no bundle."""
        return not work.bundle_digest and find_architecture(work.model_name) is not None

    def check(self, work: ModelRun) -> None:
        """Raise InvalidParameterError for variants or sizes that the model cannot have."""
        _check_variants(work)
        for name, value in (
            ("batch_size", work.batch_size),
            ("sequence_length", work.sequence_length),
            ("vocabulary_size", work.vocabulary_size),
        ):
            if not 1 <= value <= MAX_DIMENSION:
                raise InvalidParameterError(
                    f"{name} of model {work.model_name}", found=str(value), expected=f"1 to {MAX_DIMENSION}", remedy="Correct it."
                )
        if work.prompt:
            raise InvalidParameterError(
                f"prompt for model {work.model_name}",
                found=f"{len(work.prompt)} characters",
                expected="none: it has random weights and takes random tokens",
                remedy="Leave the prompt out, or name an ONNX model.",
            )
        if work.measuring.cache_mode is CacheMode.BOTH:
            raise InvalidParameterError(
                f"cache of model {work.model_name}", found="both", expected="hot or cold", remedy="Run the model once for each."
            )
        if work.measuring.timing_method not in (TimingMethod.AUTO, TimingMethod.SINGLE):
            raise InvalidParameterError(
                f"timing of model {work.model_name}",
                found=work.measuring.timing_method.lower(),
                expected="auto or single: a sample is one pass",
                remedy="Leave it out.",
            )


def requested_variants(work: ModelRun) -> tuple[str, ...]:
    """Return the requested variants in their order; baseline where none is named."""
    return work.variants or (BASELINE,)


def _check_variants(work: ModelRun) -> None:
    for variant in work.variants:
        if variant not in VARIANTS:
            raise InvalidParameterError(
                f"variant {variant or '(empty)'} of model {work.model_name}",
                found="no variant of this name",
                expected=f"one of {', '.join(VARIANTS)}",
                remedy="Check the spelling.",
            )
    if len(set(work.variants)) < len(work.variants):
        raise InvalidParameterError(
            f"variants of model {work.model_name}",
            found=", ".join(work.variants),
            expected="each once",
            remedy="Name each variant once.",
        )
