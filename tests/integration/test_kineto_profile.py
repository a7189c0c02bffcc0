"""PyTorch's profiler in programs that know nothing of it, with a real torch."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, trace_frames
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader
from kernalyse.services.core.model import CommandProfile, Run, RunSpec
from tests.integration.profiler_node import ProfilerNode, calls_to, running_node

OWN_PYTHON = Path(__file__).parents[2] / ".venv-torch" / "bin" / "python"
TORCH_PYTHON = os.environ.get("KERNALYSE_TORCH_PYTHON") or (sys.executable if find_spec("torch") else str(OWN_PYTHON))

PROGRAM = """
import os, sys, torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
if sys.argv[2:] == ["TERM"]:
    os.kill(os.getpid(), 15)
elif sys.argv[2:]:
    raise RuntimeError(sys.argv[2])
"""


def has_torch() -> bool:
    return (
        Path(TORCH_PYTHON).exists()
        and subprocess.run([TORCH_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    )


needs_torch = pytest.mark.skipif(
    not has_torch(), reason="needs torch: tests/tools/install_torch.sh, or KERNALYSE_TORCH_PYTHON=…/bin/python"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfilerNode]:
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node


def profiled(node: ProfilerNode, *works: CommandProfile) -> list[Run]:
    async def all_of_them() -> list[Run]:
        async with calls_to(node) as calls:
            runs = [await calls.start(RunSpec(work)) for work in works]
            return [await calls.finished(run.run_id) for run in runs]

    return asyncio.run(all_of_them())


def trace_file(node: ProfilerNode, run: Run) -> Path:
    return node.data_directory / "runs" / run.run_id / "work" / "artifacts" / "trace.json.gz"


def trace_names(node: ProfilerNode, run: Run) -> list[str]:
    """Of all complete events of the trace that the run has left, in the order of their starts."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace_file(node, run).read_bytes()))["traceEvents"]
    return [event["name"] for event in sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"])]


@pytest.mark.slow
@needs_torch
def test_steps_modules_and_operators_of_unchanged_programs_reach_the_trace(node: ProfilerNode, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    some_steps, ended, idle = profiled(
        node,
        CommandProfile(("sh", "-c", f'cd "$0"; {TORCH_PYTHON} -m train 6 "no more data"', str(tmp_path)), "kineto", step_count=2),
        CommandProfile((TORCH_PYTHON, str(script), "1", "TERM"), "kineto"),
        CommandProfile((TORCH_PYTHON, "-c", "import torch"), "kineto"),
    )
    assert idle.error is not None
    assert "found no operator of torch between its import and the program's end" in idle.error.message
    assert some_steps.error is not None
    assert some_steps.error.reason == "COMMAND_FAILED"
    assert "RuntimeError: no more data" in some_steps.error.message
    names = trace_names(node, some_steps)
    modules = [name.removeprefix("nn.Module: ") for name in names if name.startswith("nn.Module: ")]
    assert modules == 2 * ["Net", "blocks.0", "blocks.0.fc", "blocks.1", "blocks.1.fc"]
    assert sum(name.startswith("ProfilerStep#") for name in names) >= 2
    assert "aten::addmm" in names
    tables = KinetoReader().read(TraceFiles("trace.json.gz", trace_file(node, some_steps), arrived_unix_ns=0))
    assert "operators of the CPU take the place of kernels" in tables.notes
    found = TRACE_DERIVED["layers"].compute(trace_frames(tables.frames), DEFAULT_QUERY).collect()
    linear = found.filter(pl.col("layer").str.ends_with(".fc"), source="module")
    assert linear["flop"].to_list() == 2 * [2 * (2 * 4 * 8 * 8)]  # of each in two steps, as the profiler counts: without bias
    assert "Optimizer.step#SGD.step" in found["layer"].to_list()
    assert ended.error is not None
    assert "status 143" in ended.error.message
    assert trace_names(node, ended).count("nn.Module: Net") == 1


@pytest.mark.slow
def test_without_the_module_the_remedy_is_told(node: ProfilerNode, tmp_path: Path) -> None:
    """Before the program starts where its Python is known, after it where a script has chosen one."""
    absent = f"import sys; sys.path[:] = [path for path in sys.path if 'packages' not in path]; open({str(tmp_path / 'ran')!r}, 'w'); "
    bare = tmp_path / "bin" / "python3"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    fake = tmp_path / "fake" / "torch"
    (fake / "optim").mkdir(parents=True)
    (fake / "__init__.py").write_text("__version__ = '0'")
    (fake / "optim" / "__init__.py").write_text("")
    (fake / "optim" / "optimizer.py").write_text("import os; os.kill(os.getpid(), 9)")
    known, found_out, other, failing, starting = profiled(
        node,
        CommandProfile((str(bare), "-c", absent + "import torch"), "kineto"),
        CommandProfile(("sh", "-c", f"{bare} -c 'import triton'"), "proton"),
        CommandProfile(("sh", "-c", f"{bare} -c 'import sys; print(sys.path)'"), "kineto"),
        CommandProfile(("sh", "-c", "exit 3"), "kineto"),
        CommandProfile(("sh", "-c", f"PYTHONPATH=$PYTHONPATH:{fake.parent} exec {bare} -c 'import torch'"), "kineto"),
    )
    assert known.error is not None
    assert (known.error.reason, known.error.message.partition("; expected")[0]) == (
        "COLLECTOR_UNAVAILABLE",
        f"collector kineto: found no torch in {bare}",
    )
    assert not (tmp_path / "ran").exists()
    assert found_out.error is not None
    assert found_out.error.reason == "COLLECTOR_UNAVAILABLE"
    assert "python -m pip install triton" in found_out.error.message
    assert starting.error is not None
    assert "torch still starting when the program was ended" in starting.error.message
    assert other.error is not None
    assert "no import of torch" in other.error.message
    assert "hook" not in other.error.message
    assert failing.error is not None
    assert failing.error.reason == "COMMAND_FAILED"
