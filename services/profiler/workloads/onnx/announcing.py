"""The configurations of an ONNX model: the whole pass, and a layer for each node that is told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.core.model import CacheMode, Configuration, DataType, Dim3, ParameterValue
from services.core.onnxruntime_profile import LAUNCHING_PROVIDERS
from services.core.work.kinds import Work
from services.core.work.onnx_models import onnx_category, onnx_work
from services.profiler.workloads.onnx.feeds import takes_tokens
from services.profiler.workloads.onnx.preparing import PreparedModel
from services.profiler.workloads.onnx.profile import RESOLUTION_NS, ProfiledNode

PASS_INDEX: Final = 0
MODEL_CATEGORY: Final = "model"
SHORT_NS: Final = 30 * RESOLUTION_NS
"""Nodes below are averaged over GROUP_COUNT passes: the profile cuts times off to whole microseconds, and some ten are its own."""
GROUP_COUNT: Final = 10


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node that is measured as a layer. launches_per_sample: passes whose mean is one sample."""

    configuration: Configuration
    name: str
    launches_per_sample: int


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """The pass and its layers. notices: what of the model is not shown, and why."""

    configuration: Configuration
    nodes: tuple[PlannedNode, ...]
    notices: tuple[str, ...]


def plan_pass(model: PreparedModel, nodes: Sequence[ProfiledNode], paths: Mapping[str, str]) -> PlannedPass:
    """Plan the configurations of a model. nodes: of the first profile. paths: of layers, by node name."""
    parameters = _parameters(model)
    work = {node.name: _work(node) for node in nodes}
    computing = [node for node in nodes if node.provider not in LAUNCHING_PROVIDERS]
    planned = tuple(
        PlannedNode(
            _configuration(index, node.operator, parameters, onnx_category(node.operator), work[node.name], paths[node.name]),
            node.name,
            GROUP_COUNT if float(np.median(node.durations)) < SHORT_NS else 1,
        )
        for index, node in enumerate(computing, start=PASS_INDEX + 1)
    )
    facts = (*parameters, ParameterValue("parameter_count", model.file.parameter_count))
    whole = _configuration(PASS_INDEX, model.name, facts, MODEL_CATEGORY, _sum(list(work.values())), "")
    return PlannedPass(whole, planned, tuple(_notices(nodes, work)))


def _parameters(model: PreparedModel) -> tuple[ParameterValue, ...]:
    """Return parameters by the names that all models have for them; a model without tokens has no sequence."""
    batch = ParameterValue("batch_size", model.extents.batch)
    return (batch, ParameterValue("sequence_length", model.extents.sequence)) if takes_tokens(model.file) else (batch,)


def _work(node: ProfiledNode) -> Work | None:
    """Return the cost of all calls of one pass."""
    return _sum([None if call is None else onnx_work(call) for call in node.calls])


def _sum(parts: Sequence[Work | None]) -> Work | None:
    """Return the sum, known only where all terms are. dtype: that of most of the flop."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    flop, moved = [part.flop for part in known], [part.bytes for part in known]
    heaviest = max(known, key=lambda part: (part.weight, part.flop or 0.0))
    return Work(
        heaviest.weight,
        None if None in flop else sum(value for value in flop if value is not None),
        None if None in moved else sum(value for value in moved if value is not None),
        heaviest.dtype,
    )


def _configuration(
    index: int,
    kernel_name: str,
    parameters: tuple[ParameterValue, ...],
    category: str,
    work: Work | None,
    layer_path: str,
) -> Configuration:
    # What moves nothing, a reshape, has no place under a roofline.
    has_place = work is not None and bool(work.flop or work.bytes)
    return Configuration(
        configuration_index=index,
        kernel_name=kernel_name,
        parameters=parameters,
        block=Dim3(1),
        grid=Dim3(1),
        dynamic_shared_memory_bytes=0,
        category=category,
        dtype=_dtype(work),
        flop=work.flop if work is not None and has_place else None,
        bytes=work.bytes if work is not None and has_place else None,
        cache_mode=CacheMode.HOT,
        layer_path=layer_path,
    )


def _dtype(work: Work | None) -> DataType:
    """Return the data type; float32 for types that the project has no name for."""
    known = {dtype.value: dtype for dtype in DataType}
    return known.get("" if work is None or work.dtype is None else work.dtype, DataType.FLOAT32)


def _notices(nodes: Sequence[ProfiledNode], work: Mapping[str, Work | None]) -> Iterator[str]:
    unknown = Counter(node.operator for node in nodes if work[node.name] is None)
    if unknown:
        names = ", ".join(f"{count} {name}" for name, count in unknown.items())
        yield f"No model tells the work of {names}: the model's flop and bytes are not known either."
    launching = Counter(node.provider for node in nodes if node.provider in LAUNCHING_PROVIDERS)
    for provider, count in launching.items():
        yield f"{count} nodes run on {provider}, which launches kernels: their own times need nsys. The pass's are exact."
