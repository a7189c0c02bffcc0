"""`python training_step.py [eager|graph] [STEPS] [nvtx]`: training steps of a small GPT in PyTorch, in bfloat16, on the first device.

eager: each step as PyTorch runs it. The last step lies between cudaProfilerStart and cudaProfilerStop, for tools that record a range.
graph: a step is captured once as a CUDA graph, and replayed. Without a GPU only eager can run, on the CPU.
nvtx: the forward pass of each module is an NVTX range with the module's name.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional

LAYER_COUNT, HEAD_COUNT, WIDTH, VOCABULARY_SIZE = 3, 8, 512, 8192
BATCH_SIZE, SEQUENCE_LENGTH = 8, 256
WARM_UP_COUNT = 3  # of the graph: PyTorch asks for some steps before it captures


class Attention(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        heads = self.qkv(x).reshape(*x.shape[:-1], 3, HEAD_COUNT, WIDTH // HEAD_COUNT)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.proj(attended.transpose(1, 2).reshape(x.shape))


class Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.attn, self.ln2 = torch.nn.LayerNorm(WIDTH), Attention(), torch.nn.LayerNorm(WIDTH)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = torch.nn.Embedding(VOCABULARY_SIZE, WIDTH), torch.nn.Embedding(SEQUENCE_LENGTH, WIDTH)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYER_COUNT)])
        self.ln_f, self.logits = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, VOCABULARY_SIZE, bias=False)

    def forward(self, tokens: Any, positions: Any) -> Any:
        x = self.embed(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.ln_f(x))


class Training:
    """A model, an optimizer and one batch of random tokens."""

    def __init__(self, *, has_graph: bool) -> None:
        torch.manual_seed(0)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = Gpt().to(self.device, torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True, capturable=has_graph)
        self.tokens = torch.randint(VOCABULARY_SIZE, (BATCH_SIZE, SEQUENCE_LENGTH), device=self.device)
        self.positions = torch.arange(SEQUENCE_LENGTH, device=self.device)
        self.targets = torch.randint(VOCABULARY_SIZE, (BATCH_SIZE * SEQUENCE_LENGTH,), device=self.device)

    def step(self) -> None:
        self.optimizer.zero_grad()
        logits = self.model(self.tokens, self.positions)
        functional.cross_entropy(logits.reshape(-1, VOCABULARY_SIZE), self.targets).backward()
        self.optimizer.step()

    def captured_step(self) -> Any:
        """The graph of one step."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_COUNT):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph


def add_ranges(model: Any) -> None:
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda _, __, name=name: torch.cuda.nvtx.range_push(name or "model") and None)
        module.register_forward_hook(lambda *_: torch.cuda.nvtx.range_pop() and None)


def main(way: str = "eager", step_count: str = "4", ranges: str = "") -> None:
    training = Training(has_graph=way == "graph")
    if ranges == "nvtx":
        add_ranges(training.model)
    step = training.captured_step().replay if way == "graph" else training.step
    is_on_gpu = training.device == "cuda"
    for index in range(int(step_count)):
        is_last = index == int(step_count) - 1
        if is_on_gpu:
            torch.cuda.synchronize()
            if is_last:
                torch.cuda.cudart().cudaProfilerStart()
        step()
        if is_on_gpu:
            torch.cuda.synchronize()
            if is_last:
                torch.cuda.cudart().cudaProfilerStop()
    sys.stdout.write(f"{step_count} steps, {way}, on {torch.cuda.get_device_name() if is_on_gpu else 'the CPU'}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
