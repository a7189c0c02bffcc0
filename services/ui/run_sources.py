"""The kernels' sources of a run, by file name: those that came with it, else those that its node keeps as an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.core.errors import KernalyseError
from services.core.model import KernelSweep, Run, RunSpec
from services.core.repeating import SPEC_ARTIFACT
from services.core.wire import decode_json
from services.ui.client import AnalyzerClient


@dataclass(frozen=True, slots=True)
class RunSources:
    """texts: by file name. missing: why there are none, one sentence; empty where there are."""

    texts: Mapping[str, str]
    missing: str = ""


async def sources_of(client: AnalyzerClient, run: Run) -> RunSources:
    """What can be had of them."""
    sweep = run.spec.work
    if not isinstance(sweep, KernelSweep):
        return RunSources({}, "Only sweeps of kernels are submitted with their sources.")
    if any(kernel.source is None for kernel in sweep.kernels):
        try:
            kept = decode_json(await client.artifact(run.run_id, SPEC_ARTIFACT), RunSpec).work
        except KernalyseError as error:
            return RunSources({}, f"The sources of {run.title} cannot be had. {error.message}")
        assert isinstance(kept, KernelSweep)
        sweep = kept
    return RunSources({kernel.source.file_name: kernel.source.text for kernel in sweep.kernels if kernel.source is not None})
