"""`python -m tests.gpu.timed_by_torch MODEL RESULT`: the same GPT with the same weights in PyTorch, float32, eager.

RESULT is JSON: logits of the first sequence, the median of passes in eager mode, and of passes replayed as one CUDA graph, in ns.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernalyse.services.core.ml_models import find_architecture
from kernalyse.services.core.model import DeviceKind
from kernalyse.services.profiler.workloads.gpt.operations import Problem
from kernalyse.services.profiler.workloads.gpt.reference import EPSILON, random_tokens, random_weights
from tests.gpu.model_passes import BATCH_SIZE, SEED, SEQUENCE_LENGTH, VOCABULARY_SIZE

WARM_UP_COUNT, SAMPLE_COUNT = 20, 200


def main(model_name: str, result_file: str) -> None:
    torch: Any = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = False  # products in float32, as those beside them
    torch.set_grad_enabled(False)
    architecture = find_architecture(model_name)
    assert architecture is not None
    problem = Problem(architecture, BATCH_SIZE, SEQUENCE_LENGTH, VOCABULARY_SIZE, DeviceKind.GPU)
    weights = {name: torch.from_numpy(values).cuda() for name, values in random_weights(problem, SEED).items()}
    tokens = torch.from_numpy(random_tokens(problem, SEED)).long().cuda()
    setting = SimpleNamespace(torch=torch, problem=problem, weights=weights)
    logits = forward(setting, tokens)
    eager_ns = median_ns(torch, lambda: forward(setting, tokens))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward(setting, tokens)
    graph_ns = median_ns(torch, graph.replay)
    result = {"logits": logits[0].cpu().tolist(), "eager_ns": eager_ns, "graph_ns": graph_ns, "torch": torch.__version__}
    Path(result_file).write_text(json.dumps(result))


def forward(setting: Any, tokens: Any) -> Any:
    torch, weights, architecture = setting.torch, setting.weights, setting.problem.architecture
    functional = torch.nn.functional
    width, heads, head_width = architecture.width, architecture.head_count, architecture.head_width

    def linear(path: str, x: Any) -> Any:
        return torch.addmm(weights[f"{path}.bias"], x.reshape(-1, x.shape[-1]), weights[f"{path}.weight"]).reshape(*x.shape[:-1], -1)

    def norm(path: str, x: Any) -> Any:
        return functional.layer_norm(x, (width,), weights[f"{path}.gamma"], weights[f"{path}.beta"], EPSILON)

    x = functional.embedding(tokens, weights["embed.token_table"]) + weights["embed.position_table"]
    for index in range(architecture.layer_count):
        block = f"blocks.{index}"
        qkv = linear(f"{block}.attn.qkv", norm(f"{block}.ln1", x)).reshape(*tokens.shape, 3, heads, head_width)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4)
        scale = 1 / math.sqrt(head_width)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale)
        x = x + linear(f"{block}.attn.proj", attended.transpose(1, 2).reshape(x.shape))
        hidden = functional.gelu(linear(f"{block}.mlp.fc", norm(f"{block}.ln2", x)), approximate="tanh")
        x = x + linear(f"{block}.mlp.proj", hidden)
    return norm("ln_f", x) @ weights["logits.weight"]


def median_ns(torch: Any, run: Any) -> float:
    """Of passes one after the other, each between two events."""
    for _ in range(WARM_UP_COUNT):
        run()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(SAMPLE_COUNT)]
    for start, end in events:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    spans_ns = sorted(float(start.elapsed_time(end)) * 1e6 for start, end in events)
    return spans_ns[SAMPLE_COUNT // 2]


if __name__ == "__main__":
    main(*sys.argv[1:])
