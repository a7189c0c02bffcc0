"""Paths of layers, from the names that exporters give to nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import onnx

from services.profiler.workloads.onnx.model_file import ModelFile
from services.profiler.workloads.onnx.profile import ProfiledNode

SEPARATOR: Final = "."
BLOCKED: Final = "_nchwc"


def layer_paths(model: ModelFile, optimized: Path, nodes: tuple[ProfiledNode, ...]) -> dict[str, str]:
    """Return paths by node name: "/encoder/layer.0/attention/self/query/MatMul" is encoder.layer.0.attention.self.query.MatMul.

    So is a MatMul of which the file says that it is of this module. A node that the runtime made of several stands where the last of
    them stood: the one whose output it has.

    Args:
        optimized: the graph that is really run.
    """
    graph = onnx.load(optimized, load_external_data=False).graph
    former = {node.name: model.node_of_tensor.get(node.output[0], "") for node in graph.node if node.output}
    paths: dict[str, str] = {}
    for node in nodes:
        origin = node.name if node.name in model.node_names else former.get(node.name) or _blocked_origin(model, node.name)
        paths[node.name] = _unique(_wanted(node, origin, model.module_of_node.get(origin)), set(paths.values()))
    return paths


def _blocked_origin(model: ModelFile, node_name: str) -> str:
    """Return the origin of a convolution or pooling over blocks of channels, which the runtime names after another tensor than its own."""
    tensor, is_blocked, _ = node_name.partition(BLOCKED)
    return model.node_of_tensor.get(tensor, "") if is_blocked else ""


def _wanted(node: ProfiledNode, origin: str, module: str | None) -> str:
    """Return the path of a node. origin: the exported node that it stands for; empty: not known."""
    if module is not None:
        return _joined(module, node.operator)
    if origin in ("", node.name):
        return _joined(*node.name.split("/")) or node.name
    return _joined(*origin.split("/")[:-1], node.operator)


def _joined(*parts: str) -> str:
    return SEPARATOR.join(part for part in parts if part)


def _unique(path: str, taken: set[str]) -> str:
    """Number the path as exporters number nodes of one name."""
    if path not in taken:
        return path
    return next(numbered for number in range(1, len(taken) + 1) if (numbered := f"{path}_{number}") not in taken)
