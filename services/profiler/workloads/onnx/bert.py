"""A small BERT as an ONNX file: the operator graph that exporters write for a sequence classifier, with seeded random weights.

Devlin et al., "BERT", 2018; the sizes are those of the smallest model of Turc et al., "Well-Read Students Learn Better", 2019. What
it answers means nothing; how long it takes does.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kernalyse.services.core.model import BUILT_IN_ONNX_MODEL

LAYER_COUNT: Final = 2
WIDTH: Final = 128
HEAD_COUNT: Final = 2
HEAD_WIDTH: Final = WIDTH // HEAD_COUNT
INNER_WIDTH: Final = 512
MAX_TOKEN_COUNT: Final = 512
TOKEN_TYPE_COUNT: Final = 2
LABEL_COUNT: Final = 2

OPSET: Final = 17  # the first with LayerNormalization as one operator; every ONNX Runtime since 1.11 reads it
IR_VERSION: Final = 8  # that of opset 17: a newer one is refused by older runtimes
WEIGHT_SCALE: Final = 0.02  # standard deviation of BERT's own initial weights
MASKED: Final = -3.4028234663852886e38  # the lowest float32, added to scores that must not count
FORMAT: Final = 1  # counts up when another file comes of the same numbers


def stored_bert(directory: Path, vocabulary_size: int, seed: int) -> Path:
    """Return the model's file below `directory`, written there if it is missing. Two processes may write it at once."""
    path = directory / f"{BUILT_IN_ONNX_MODEL}-{FORMAT}-{vocabulary_size}-{seed}.onnx"
    if not path.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".writing-", delete=False) as file:
            file.write(bert(vocabulary_size, seed).SerializeToString())
        Path(file.name).replace(path)
    return path


def bert(vocabulary_size: int, seed: int) -> onnx.ModelProto:
    """Build a model from input_ids, attention_mask and token_type_ids, int64 [batch, sequence], to logits, float32 [batch, 2]."""
    graph = _Graph(np.random.default_rng(seed))
    mask = _attention_mask(graph)
    hidden = _embeddings(graph, vocabulary_size)
    for index in range(LAYER_COUNT):
        hidden = _encoder_layer(graph, index, hidden, mask)
    _classifier(graph, hidden)
    tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in _INPUTS]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", LABEL_COUNT])
    proto = helper.make_graph(graph.nodes, "main_graph", tokens, [logits], graph.initializers)
    model = helper.make_model(proto, producer_name="kernalyse", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(slots=True)
class _Graph:
    """Nodes and weights on their way to a graph. A node is named after its module's path, its output after the node."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, path: str, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = f"/{path}"
        result = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(operator, list(inputs), [result], name=name, **attributes))
        return result

    def constant(self, name: str, values: object, dtype: type[np.generic]) -> str:
        self.initializers.append(numpy_helper.from_array(np.array(values, dtype=dtype), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, self.random.normal(0.0, WEIGHT_SCALE, shape), np.float32)

    def linear(self, path: str, values: str, inputs: int, outputs: int) -> str:
        """Add a product and a bias, as exporters write torch.nn.Linear of three dimensions."""
        module = path.replace("/", ".")
        product = self.node(f"{path}/MatMul", "MatMul", values, self.weight(f"{module}.weight", inputs, outputs))
        return self.node(f"{path}/Add", "Add", self.weight(f"{module}.bias", outputs), product)

    def layer_norm(self, path: str, values: str) -> str:
        module = path.replace("/", ".")
        scale = self.constant(f"{module}.weight", np.ones(WIDTH), np.float32)
        shift = self.constant(f"{module}.bias", np.zeros(WIDTH), np.float32)
        return self.node(f"{path}/LayerNormalization", "LayerNormalization", values, scale, shift, axis=-1, epsilon=1e-12)


def _attention_mask(graph: _Graph) -> str:
    """Add the mask, [batch, 1, 1, sequence]: 0 where a token counts, the lowest number where it does not."""
    inner = graph.node("bert/Unsqueeze", "Unsqueeze", "attention_mask", graph.constant("axis_1", [1], np.int64))
    outer = graph.node("bert/Unsqueeze_1", "Unsqueeze", inner, graph.constant("axis_2", [2], np.int64))
    numbers = graph.node("bert/Cast", "Cast", outer, to=TensorProto.FLOAT)
    inverse = graph.node("bert/Sub", "Sub", graph.constant("one", 1.0, np.float32), numbers)
    return graph.node("bert/Mul", "Mul", inverse, graph.constant("masked", MASKED, np.float32))


def _embeddings(graph: _Graph, vocabulary_size: int) -> str:
    """Add rows for words, token types and positions, and normalise: [batch, sequence, width]."""
    path = "bert/embeddings"
    token_table = graph.weight("bert.embeddings.word_embeddings.weight", vocabulary_size, WIDTH)
    types = graph.weight("bert.embeddings.token_type_embeddings.weight", TOKEN_TYPE_COUNT, WIDTH)
    position_table = graph.weight("bert.embeddings.position_embeddings.weight", MAX_TOKEN_COUNT, WIDTH)
    sizes = graph.node(f"{path}/Shape", "Shape", "input_ids")
    length = graph.node(f"{path}/Gather", "Gather", sizes, graph.constant("index_1", [1], np.int64), axis=0)
    positions = graph.constant("bert.embeddings.position_ids", np.arange(MAX_TOKEN_COUNT)[np.newaxis], np.int64)
    used = graph.node(f"{path}/Slice", "Slice", positions, graph.constant("start", [0], np.int64), length, "axis_1")
    token_rows = graph.node(f"{path}/word_embeddings/Gather", "Gather", token_table, "input_ids")
    type_rows = graph.node(f"{path}/token_type_embeddings/Gather", "Gather", types, "token_type_ids")
    both = graph.node(f"{path}/Add", "Add", token_rows, type_rows)
    position_rows = graph.node(f"{path}/position_embeddings/Gather", "Gather", position_table, used)
    return graph.layer_norm(f"{path}/LayerNorm", graph.node(f"{path}/Add_1", "Add", both, position_rows))


def _encoder_layer(graph: _Graph, index: int, hidden: str, mask: str) -> str:
    path = f"bert/encoder/layer.{index}"
    attended = graph.linear(f"{path}/attention/output/dense", _attention(graph, f"{path}/attention/self", hidden, mask), WIDTH, WIDTH)
    attended = graph.node(f"{path}/attention/output/Add", "Add", attended, hidden)
    attended = graph.layer_norm(f"{path}/attention/output/LayerNorm", attended)
    inner = _gelu(graph, f"{path}/intermediate", graph.linear(f"{path}/intermediate/dense", attended, WIDTH, INNER_WIDTH))
    outer = graph.linear(f"{path}/output/dense", inner, INNER_WIDTH, WIDTH)
    return graph.layer_norm(f"{path}/output/LayerNorm", graph.node(f"{path}/output/Add", "Add", outer, attended))


def _attention(graph: _Graph, path: str, hidden: str, mask: str) -> str:
    query, key, value = (
        _heads(graph, path, number, graph.linear(f"{path}/{name}", hidden, WIDTH, WIDTH), [0, 2, 3, 1] if name == "key" else [0, 2, 1, 3])
        for number, name in enumerate(("query", "key", "value"))
    )
    scores = graph.node(f"{path}/MatMul", "MatMul", query, key)
    scale = graph.constant(f"{path.replace('/', '.')}.scale", math.sqrt(HEAD_WIDTH), np.float32)
    masked = graph.node(f"{path}/Add", "Add", graph.node(f"{path}/Div", "Div", scores, scale), mask)
    weighted = graph.node(f"{path}/MatMul_1", "MatMul", graph.node(f"{path}/Softmax", "Softmax", masked, axis=-1), value)
    joined = graph.node(f"{path}/Transpose_3", "Transpose", weighted, perm=[0, 2, 1, 3])
    return graph.node(f"{path}/Reshape_3", "Reshape", joined, graph.constant(f"{path}.joined", [0, 0, WIDTH], np.int64))


def _heads(graph: _Graph, path: str, number: int, values: str, order: list[int]) -> str:
    suffix = f"_{number}" if number else ""
    sizes = graph.constant(f"{path}.split{suffix}", [0, 0, HEAD_COUNT, HEAD_WIDTH], np.int64)
    split = graph.node(f"{path}/Reshape{suffix}", "Reshape", values, sizes)
    return graph.node(f"{path}/Transpose{suffix}", "Transpose", split, perm=order)


def _gelu(graph: _Graph, path: str, values: str) -> str:
    """Add x (1 + erf(x / sqrt 2)) / 2: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016."""
    path = f"{path}/intermediate_act_fn"
    module = path.replace("/", ".")
    root = graph.constant(f"{module}.root", math.sqrt(2.0), np.float32)
    error = graph.node(f"{path}/Erf", "Erf", graph.node(f"{path}/Div", "Div", values, root))
    shifted = graph.node(f"{path}/Add", "Add", error, graph.constant(f"{module}.one", 1.0, np.float32))
    doubled = graph.node(f"{path}/Mul", "Mul", values, shifted)
    return graph.node(f"{path}/Mul_1", "Mul", doubled, graph.constant(f"{module}.half", 0.5, np.float32))


def _classifier(graph: _Graph, hidden: str) -> None:
    """Add the pooler and the labels' layer, which take the first token."""
    first = graph.node("bert/pooler/Gather", "Gather", hidden, graph.constant("first", 0, np.int64), axis=1)
    pooled = graph.node("bert/pooler/dense/Gemm", "Gemm", first, *_gemm_weights(graph, "bert.pooler.dense", WIDTH), transB=1)
    active = graph.node("bert/pooler/activation/Tanh", "Tanh", pooled)
    graph.node("classifier/Gemm", "Gemm", active, *_gemm_weights(graph, "classifier", LABEL_COUNT), transB=1, output="logits")


def _gemm_weights(graph: _Graph, module: str, outputs: int) -> tuple[str, str]:
    return graph.weight(f"{module}.weight", outputs, WIDTH), graph.weight(f"{module}.bias", outputs)
