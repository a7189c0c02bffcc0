"""Small ONNX files, as tests need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]


def save_model(path: Path, *nodes: onnx.NodeProto, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], **weights: Any) -> Path:
    """inputs, outputs: shapes by name, of float32, of names with "ids" int64."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [_value(name, shape) for name, shape in inputs.items()],
        [_value(name, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in weights.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(helper.make_model(graph, opset_imports=OPSETS, ir_version=8).SerializeToString())
    return path


def _value(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64 if "ids" in name else TensorProto.FLOAT, shape)


def save_with_external_data(path: Path, model: onnx.ModelProto, location: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(model, str(path), save_as_external_data=True, location=location)
    return path


def unknown_operator(path: Path) -> Path:
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.acme", name="/f")
    return save_model(path, node, inputs={"x": [1]}, outputs={"y": [1]})
