"""From the words of `kernalyse bench` to a sweep that any node can run."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.cli.kernel_words import KernelWords
from services.core.model import KernelSweep
from services.core.words.sweep_words import SweepWords
from services.profiler.header_bundle import HeaderBundle


@dataclass(frozen=True, slots=True)
class SweepRequest(SweepWords):
    """The options as they were written."""

    kernels: KernelWords = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class BuiltSweep:
    """A sweep that is ready to run. notices: for the user. bundles: headers to upload before the run."""

    sweep: KernelSweep
    notices: tuple[str, ...] = ()
    bundles: tuple[HeaderBundle, ...] = ()


def build_sweep(request: SweepRequest) -> BuiltSweep:
    """Return the sweep, and what goes with it.

    Raises:
        UsageError: an option cannot be read, or a file is not there.
        InvalidRequestError, UnknownKernelError: a source or a definition cannot be used.
    """
    macro_names = tuple(axis.name for axis in request.macro_axes())
    selected = request.kernels.select(request.parsed_arguments(), macro_names)
    sweep = request.sweep(selected.selections)
    return BuiltSweep(sweep, (*selected.notices, *request.measuring.notices()), selected.bundles)
