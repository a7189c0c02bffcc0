"""Records the traces in services/ui/examples: two training steps of a small transformer on a CPU, by PyTorch's profiler.

In one its attention is written out, in the other it is PyTorch's fused one. To record them anew:

    PYTHONPATH=proto/python "$(tests/tools/install_torch.sh)" tests/tools/record_example_traces.py
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any, Final

import torch  # type: ignore[import-not-found, unused-ignore]
from torch import nn  # type: ignore[import-not-found, unused-ignore]
from torch.nn import functional  # type: ignore[import-not-found, unused-ignore]

from kernalyse.services.profiler.collectors.python_hook import ModuleRanges

DIRECTORY: Final = Path(__file__).parents[2] / "services" / "ui" / "examples"
FILES: Final = {"written_out": "example_attention_written_out.json.gz", "fused": "example_attention_fused.json.gz"}
WARM_UP_COUNT, STEP_COUNT = 5, 2
BATCH_SIZE, TOKEN_COUNT, WIDTH, HEAD_COUNT, BLOCK_COUNT, VOCABULARY_SIZE = 4, 128, 128, 4, 2, 512
KEPT: Final = ("schemaVersion", "record_shapes", "with_modules", "with_flops", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents")
"""Members of the trace; others name the machine and the file."""


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class Attention(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.inputs, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        shape = (BATCH_SIZE, TOKEN_COUNT, HEAD_COUNT, WIDTH // HEAD_COUNT)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.inputs(x).chunk(3, dim=-1))
        if self.kind == "fused":
            found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            later = torch.ones(TOKEN_COUNT, TOKEN_COUNT, dtype=torch.bool).triu(1)
            scores = (query @ key.transpose(-2, -1) / shape[-1] ** 0.5).masked_fill(later, float("-inf"))
            found = scores.softmax(-1) @ value
        return self.output(found.transpose(1, 2).reshape(x.shape))


class Transformer(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY_SIZE, WIDTH)
        self.blocks = nn.Sequential(*(Block(Attention(kind)) for _ in range(BLOCK_COUNT)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY_SIZE)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def recorded(kind: str) -> dict[str, Any]:
    """Return the trace of some steps, after some that warm up."""
    torch.manual_seed(0)
    model = Transformer(kind)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(VOCABULARY_SIZE, (BATCH_SIZE, TOKEN_COUNT + 1))

    def step() -> None:
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP_COUNT):
        step()
    schedule = lambda _step: torch.profiler.ProfilerAction.RECORD  # noqa: E731 - each step has a range of its own
    with torch.profiler.profile(record_shapes=True, with_flops=True, with_modules=True, schedule=schedule) as profile:
        modules = ModuleRanges(torch)
        for _ in range(STEP_COUNT):
            step()
            profile.step()
        modules.end()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profile.export_chrome_trace(str(path))
        trace: dict[str, Any] = json.loads(path.read_text())
    return trace


def main() -> None:
    """Write both traces, without what names the machine."""
    torch.set_num_threads(1)
    for kind, name in FILES.items():
        trace = recorded(kind)
        data = json.dumps({member: trace[member] for member in KEPT}, separators=(",", ":")).encode()
        (DIRECTORY / name).write_bytes(gzip.compress(data, 9, mtime=0))


if __name__ == "__main__":
    main()
