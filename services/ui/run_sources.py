"""The kernels' sources of a run, by file name: those that came with it, else those that its node keeps as an artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from kernalyse.services.core.errors import ArtifactNotFoundError, KernalyseError
from kernalyse.services.core.model import KernelSweep, ModelRun, Run, RunSpec
from kernalyse.services.core.protobuf import decode_json
from kernalyse.services.core.reruns import SOURCES_ARTIFACT, SPEC_ARTIFACT
from kernalyse.services.ui.client import AnalyzerClient


@dataclass(frozen=True, slots=True)
class RunSources:
    """texts: by file name. missing: why there are none, one sentence; empty where there are."""

    texts: Mapping[str, str]
    missing: str = ""


async def sources_of(client: AnalyzerClient, run: Run) -> RunSources:
    """What can be had of them."""
    work = run.spec.work
    try:
        if isinstance(work, KernelSweep):
            return RunSources(await _of_sweep(client, run, work))
        if isinstance(work, ModelRun):
            return RunSources(json.loads(await client.artifact(run.run_id, SOURCES_ARTIFACT)))
    except ArtifactNotFoundError:
        return RunSources({}, "A model under ONNX Runtime leaves no sources of kernels.")
    except KernalyseError as error:
        return RunSources({}, f"The sources of {run.title} cannot be had. {error.message}")
    return RunSources({}, "Only sweeps of kernels and models on the project's own kernels have sources.")


async def _of_sweep(client: AnalyzerClient, run: Run, sweep: KernelSweep) -> Mapping[str, str]:
    if any(kernel.source is None for kernel in sweep.kernels):
        kept = decode_json(await client.artifact(run.run_id, SPEC_ARTIFACT), RunSpec).work
        assert isinstance(kept, KernelSweep)
        sweep = kept
    return {kernel.source.file_name: kernel.source.text for kernel in sweep.kernels if kernel.source is not None}
