"""Runs done again exactly, and what they keep on their node for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.core.model import KernelSweep, RunSpec

SPEC_ARTIFACT: Final = "run_spec.json"
"""Of a sweep: its spec with the sources, definitions and device that it had."""

SOURCES_ARTIFACT: Final = "kernel_sources.json"
"""Of a model on the project's own kernels: the text of each source by its file name."""


def bundle_artifact_name(digest: str) -> str:
    """Of the copy of a bundle that a run keeps: the node's own expires."""
    return f"headers_{digest.removeprefix('sha256:')}.tar.gz"


def repeated(spec: RunSpec) -> RunSpec:
    """The same once more; of a run that continued another, the whole: all configurations, with what both were given to search."""
    work = spec.work
    if isinstance(work, KernelSweep):
        work = replace(
            work,
            budget_ns=None if work.budget_ns is None else work.budget_ns + (work.earlier_budget_ns or 0),
            earlier_budget_ns=None,
            done_configuration_indexes=(),
            rivals=(),
            failed_configuration_indexes=(),
        )
    return replace(spec, work=work, continues_run_id=None)
