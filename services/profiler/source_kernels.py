"""The kernels of a source that nobody has described, for who chooses one of them."""

from __future__ import annotations

from dataclasses import dataclass

from services.core.errors import KernalyseError
from services.core.model import KernelDefinition, KernelSource
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.catalog import derive_definition


@dataclass(frozen=True, slots=True)
class SourceKernels:
    """Kernels of a source. notices: what was assumed, and of kernels without a definition the reason, one sentence each."""

    definitions: tuple[KernelDefinition, ...]
    notices: tuple[str, ...]


def kernels_of_source(source: KernelSource) -> SourceKernels:
    """Return every __global__ function with the definition that is derived of it; of a template its explicit instance, if it has one.

    Raises:
        InvalidSourceError: the text is empty, too long or binary.
    """
    definitions: list[KernelDefinition] = []
    notices: list[str] = []
    for kernel in parse_kernel_source(source).kernels:
        try:
            definition, assumptions = derive_definition(source, kernel.qualified_name)
        except KernalyseError as error:
            notices.append(f"{kernel.qualified_name}: {error.message}")
        else:
            definitions.append(definition)
            notices.extend(f"{kernel.qualified_name}: {assumption}" for assumption in assumptions)
    return SourceKernels(tuple(definitions), tuple(notices))
