"""The contents of an ONNX file without its weights: inputs, nodes, and the sizes of vocabulary and position table."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError

from kernalyse.services.core.errors import InvalidModelError

TOKENS_INPUT: Final = "input_ids"
FLOATS: Final = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
LOOKUP: Final = "Gather"
POSITIONS_WORD: Final = "position"
"""In the names of tables with a row for each place of a sequence, as exporters keep them from PyTorch and TensorFlow."""

SCOPES: Final = "pkg.torch.onnx.name_scopes"
"""Of a node's metadata, from PyTorch's exporter since 2.5, whose nodes are named without their modules: a list of the modules around what
it exported, outermost first, and that itself: "['', 'bert', 'bert.pooler', 'tanh']"."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """An input of the model. shape: sizes, or the names of open dimensions (perhaps empty)."""

    name: str
    element_type: int  # of onnx.TensorProto
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The contents of a model file. node_of_tensor: name of the node that outputs a tensor. module_of_node: by name, where known.

    token_count, position_count: rows of the tables of words and positions; None: not found, as a model need not have them.
    parameter_count: numbers in its weights, single constants aside.
    """

    path: Path
    inputs: tuple[ModelInput, ...]
    node_of_tensor: Mapping[str, str]
    node_names: frozenset[str]
    module_of_node: Mapping[str, str]
    token_count: int | None
    position_count: int | None
    parameter_count: int

    @property
    def batch_size(self) -> int | None:
        """Return the batch size that the file fixes; None: open for some input."""
        sizes = [part.shape[0] for part in self.inputs if part.shape]
        return next((size for size in sizes if isinstance(size, int)), None) if all(map(_is_fixed, sizes)) else None

    @property
    def sequence_length(self) -> int | None:
        """Return the sequence length of the tokens that the file fixes; None: open, or it takes none."""
        sizes = [part.shape[-1] for part in self.inputs if part.name == TOKENS_INPUT and len(part.shape) > 1]
        return next((size for size in sizes if isinstance(size, int) and _is_fixed(size)), None)


def read_model_file(path: Path, name: str) -> ModelFile:
    """Read the file. Raises InvalidModelError: it is not there, no ONNX file, or lacks files with its weights."""
    graph = _graph(path, name)
    _check_external_data(graph, path, name)
    weights = {weight.name: weight for weight in graph.initializer}
    tokens, positions = _looked_up(graph.node, weights)
    return ModelFile(
        path=path,
        inputs=tuple(_input(value) for value in graph.input if value.name not in weights),
        node_of_tensor={output: node.name for node in graph.node for output in node.output if node.name},
        node_names=frozenset(node.name for node in graph.node if node.name),
        module_of_node={node.name: module for node in graph.node if node.name and (module := _module(node)) is not None},
        token_count=tokens,
        position_count=positions,
        parameter_count=sum(math.prod(weight.dims) for weight in graph.initializer if weight.dims and weight.data_type in FLOATS),
    )


def _graph(path: Path, name: str) -> onnx.GraphProto:
    if not path.is_file():
        present = sorted(str(file.relative_to(path.parent)) for file in path.parent.glob("*.onnx")) if path.parent.is_dir() else []
        raise InvalidModelError(
            f"model file {name}",
            found="no such file in the bundle",
            expected=f"one of {', '.join(present)}" if present else "a path below the bundle's top directory",
            remedy="Correct the name, or upload the directory that has it.",
        )
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise _no_model(name, str(error)) from error
    if not model.graph.node:
        raise _no_model(name, "no node in it")
    return model.graph


def _no_model(name: str, found: str) -> InvalidModelError:
    return InvalidModelError(f"model file {name}", found=found, expected="an ONNX file", remedy="Export the model as ONNX.")


def _check_external_data(graph: onnx.GraphProto, path: Path, name: str) -> None:
    locations = {
        entry.value
        for weight in graph.initializer
        if weight.data_location == onnx.TensorProto.EXTERNAL
        for entry in weight.external_data
        if entry.key == "location"
    }
    missing = sorted(location for location in locations if not (path.parent / location).is_file())
    if missing:
        raise InvalidModelError(
            f"weights of model file {name}",
            found=f"no file {', '.join(missing)} beside it",
            expected="every file of external data that the model names",
            remedy="Put them into the same directory of the bundle.",
        )


def _is_fixed(size: int | str) -> bool:
    return isinstance(size, int) and size > 0


def _input(value: onnx.ValueInfoProto) -> ModelInput:
    tensor = value.type.tensor_type
    shape = tuple(size.dim_value if size.HasField("dim_value") else size.dim_param for size in tensor.shape.dim)
    return ModelInput(value.name, tensor.elem_type, shape)


def _module(node: onnx.NodeProto) -> str | None:
    """Return the module of a node; empty for nodes of the root module, None where the file does not say."""
    recorded = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    try:
        scopes = ast.literal_eval(recorded)
    except (ValueError, SyntaxError):
        return None
    has_scopes = isinstance(scopes, list) and all(isinstance(scope, str) for scope in scopes) and "" in scopes[:-1]
    return str(scopes[-2]) if has_scopes else None


def _looked_up(nodes: Sequence[onnx.NodeProto], weights: Mapping[str, onnx.TensorProto]) -> tuple[int | None, int | None]:
    """Return the number of rows of the token table and of the position table; None where one is not found."""
    tokens = positions = None
    for node in nodes:
        table = weights.get(node.input[0]) if node.op_type == LOOKUP and len(node.input) > 1 else None
        if table is None or len(table.dims) != 2:
            continue
        if node.input[1] == TOKENS_INPUT:
            tokens = table.dims[0]
        elif POSITIONS_WORD in table.name or POSITIONS_WORD in node.name:
            positions = table.dims[0]
    return tokens, positions
