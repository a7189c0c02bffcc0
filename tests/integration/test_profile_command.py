"""`kernalyse profile` as a user runs it, against an analyzer and a stand-in for the node: what it sends, shows and answers."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kernalyse.services.cli.profile_request import PROMPT_MAX_DURATION_NS
from kernalyse.services.core.model import (
    CommandProfile,
    LogLevel,
    LogLines,
    MeasuringOptions,
    ModelRun,
    Progress,
    Run,
    RunError,
    RunState,
    StateChanged,
    TraceStored,
)
from tests.command import Done, kernalyse
from tests.integration.analyzer_under_test import AnalyzerHere, add_node, connected, serving
from tests.integration.profiler_stand_in import ProfilerStandIn, started
from tests.integration.recording_nsys import write_recording_nsys
from tests.integration.test_left_traces import kineto_trace, node, stored
from tests.unit.nsys_export import kernel, write_export

__all__ = ["node"]


@pytest.fixture
async def analyzer(private_directories: Path, node: ProfilerStandIn) -> AsyncIterator[AnalyzerHere]:
    async with serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:
        await add_node(stub, node.endpoint)
        yield analyzer


async def profiled(*arguments: str | Path) -> Done:
    return await asyncio.to_thread(kernalyse, "profile", *arguments)


def leaves_trace(node: ProfilerStandIn, directory: Path) -> None:
    """Whatever is started prints a line and leaves a trace."""

    def leave(run: Run) -> None:
        trace = stored(node, "trace.json", kineto_trace(directory))
        output = LogLines(LogLevel.INFO, "program", ("step 1 of 1",))
        node.journal(run.run_id, *started()[:2], Progress(0, 0, 0, "python train.py"), output, trace)
        node.journal(run.run_id, TraceStored((trace.artifact_name,), "kineto"), StateChanged(RunState.SUCCEEDED))

    node.on_start = leave


def file_names(archive: bytes) -> dict[str, int]:
    """Modes of the files of a bundle."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as bundle:
        return {member.name: member.mode for member in bundle}


@pytest.mark.slow
async def test_a_command_is_followed_and_its_kernels_and_layers_are_shown(
    analyzer: AnalyzerHere, node: ProfilerStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEED", "7")
    leaves_trace(node, tmp_path)
    options = ("--collector", "kineto", "--steps", "3", "--duration", "2.5", "--env", "A=b=c", "--env", "SEED", "--title", "one step")
    done = await profiled(*options, "--", "python", "train.py", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    for text in ("gemm", "ncclDevKernel_AllReduce", "Model_0", "kernels:\nkernel ", "layers:\nlayer ", " µs"):
        assert text in done.stdout
    for text in ("train.py", "step 1 of 1", "Trace of kineto read: 2 launches of kernels.", "succeeded"):
        assert text in done.stderr
    (run,) = node.runs.values()
    work = run.spec.work
    assert isinstance(work, CommandProfile)
    assert (work.arguments, work.collector) == (("python", "train.py", "--epochs", "2"), "kineto")
    assert [(variable.name, variable.value) for variable in work.environment] == [("A", "b=c"), ("SEED", "7")]
    assert (work.step_count, work.max_duration_ns, run.spec.title) == (3, 2_500_000_000, "one step")
    assert work.bundle_digest is not None
    assert list(file_names(node.uploaded)) == ["train.py"]
    shown = await asyncio.to_thread(kernalyse, "show", "last")
    assert "gemm" in shown.stdout  # kernels, which a run of a command has in place of measurements
    again = await asyncio.to_thread(kernalyse, "rerun", run.run_id)
    assert again.returncode == 0, again.stderr
    assert [other.spec.work for other in node.runs.values()] == [work, work]


@pytest.mark.slow
def test_a_program_is_profiled_by_services_of_the_commands_own_with_the_collector_of_the_node(
    private_directories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = write_export(
        tmp_path / "export.sqlite", kernels=[kernel(1_000, 6_000, 1)], gpus=[{}], calls=[{"end": 500, "correlationId": 1}]
    )
    monkeypatch.setenv("KERNALYSE_PROFILER_NSYS_PROGRAM", str(write_recording_nsys(tmp_path, export)))
    program = tmp_path / "vector_add"
    program.write_text('#!/bin/sh\necho "$1 elements added by $(basename "$0") with $MODE"\n')
    program.chmod(0o700)
    done = kernalyse("profile", "--env", "MODE=care", "--target", program, "--", "1024")
    assert done.returncode == 0, done.stderr
    assert "1024 elements added by vector_add with care" in done.stderr
    assert "Trace of nsys read: 1 launches of kernels." in done.stderr
    assert "kernels:\nkernel " in done.stdout
    (run_id,) = [line.removeprefix("run ") for line in done.stderr.splitlines() if line.startswith("run ") and ":" not in line]
    assert f"kernalyse show {run_id}" in done.stderr  # no dashboard runs that could show it


async def test_a_failed_command_has_status_1_and_its_error(analyzer: AnalyzerHere, node: ProfilerStandIn) -> None:
    error = RunError("FAILED_PRECONDITION", "COLLECTOR_UNAVAILABLE", "collector nsys: not on this node.")
    node.on_start = lambda run: node.journal(run.run_id, *started()[:2], StateChanged(RunState.FAILED, error))
    done = await profiled("true")
    assert done.returncode == 1
    assert "collector nsys: not on this node." in done.stderr


async def test_a_program_goes_to_the_node_with_its_rights(analyzer: AnalyzerHere, node: ProfilerStandIn, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "vector_add"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    done = await profiled("--detach", "--target", program, "--", "1024")
    assert done.returncode == 0, done.stderr
    ((run_id, run),) = node.runs.items()
    assert done.stdout.strip() == run_id
    assert isinstance(run.spec.work, CommandProfile)
    assert (run.spec.work.arguments, run.spec.work.collector) == (("./vector_add", "1024"), "")
    assert file_names(node.uploaded) == {"vector_add": 0o755}


async def test_a_prompt_becomes_a_run_of_a_model(analyzer: AnalyzerHere, node: ProfilerStandIn, tmp_path: Path) -> None:
    for name in ("model.onnx", "model.onnx.data", "other.onnx", "tokenizer.json"):
        (tmp_path / name).write_text(name)
    for options in ((), ("--model", tmp_path / "model.onnx", "--tokenizer", tmp_path / "tokenizer.json")):
        assert (await profiled("--detach", "--prompt", "The quick brown fox", *options)).returncode == 0
    works = [run.spec.work for run in node.runs.values()]
    measuring = MeasuringOptions(max_duration_ns=PROMPT_MAX_DURATION_NS)
    assert works[0] == ModelRun("bert-tiny", prompt="The quick brown fox", measuring=measuring)
    assert isinstance(works[1], ModelRun)
    assert (works[1].model_name, works[1].tokenizer_file_name) == ("model.onnx", "tokenizer.json")
    assert sorted(file_names(node.uploaded)) == ["model.onnx", "model.onnx.data", "tokenizer.json"]
