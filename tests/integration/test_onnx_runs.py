"""ONNX models by prompt over gRPC: from the request to layers, measurements and the trace that stays."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import AsyncIterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, trace_frames
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.onnxruntime import OnnxRuntimeReader
from kernalyse.services.core.errors import BackendUnavailableError, InvalidParameterError, RunNotFoundError
from kernalyse.services.core.model import BackendName, MeasuringOptions, ModelRun, Run, RunSpec, RunState, TableQuery
from kernalyse.services.profiler.workloads.onnx.bert import bert
from kernalyse.services.profiler.workloads.onnx.inputs import OWN_TOKENIZER
from kernalyse.v1 import profiler_service_pb2 as messages
from kernalyse.v1 import run_pb2
from tests.integration.analyzer_under_test import add_node, connected, eventually, get_run, get_table, serving
from tests.integration.profiler_node import Calls, ProfilerNode
from tests.onnx_files import save_with_external_data, unknown_operator

# Of BERT with 1024 words, 512 places, 2 types, width 128, inner width 512, 2 layers and 2 labels.
PARAMETER_COUNT = 128 * (1024 + 512 + 2 + 2) + 2 * (4 * 129 * 128 + 129 * 512 + 513 * 128 + 4 * 128) + 129 * 128 + 129 * 2
QUICK = MeasuringOptions(min_duration_ns=10_000_000, max_duration_ns=150_000_000)


async def upload(calls: Calls, directory: Path) -> str:
    """The digest of the directory's bundle."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(directory, arcname="")

    async def chunks() -> AsyncIterator[Any]:
        for place in range(0, len(packed.getvalue()), 500_000):
            yield messages.ProfilerServiceUploadBundleRequest(chunk=packed.getvalue()[place : place + 500_000])

    return str((await calls.stub.UploadBundle(chunks())).digest)


async def ended(calls: Calls, work: ModelRun) -> tuple[Run, list[run_pb2.RunEvent]]:
    run = await calls.start(RunSpec(work))
    events = await calls.events(run.run_id)
    return await calls.get(run.run_id), events


def of_kind(events: list[run_pb2.RunEvent], name: str) -> list[Any]:
    return [getattr(event, name) for event in events if event.WhichOneof("payload") == name]


async def is_read(stub: Any, run_id: str) -> bool:
    """Whether the analyzer has the run, its trace included."""
    with suppress(RunNotFoundError):
        return (await get_run(stub, run_id)).is_settled
    return False


async def artifact(calls: Calls, run_id: str, name: str) -> bytes:
    request = messages.ProfilerServiceReadArtifactRequest(run_id=run_id, artifact_name=name)
    return b"".join([answer.chunk async for answer in calls.stub.ReadArtifact(request)])


@pytest.mark.slow
async def test_a_prompt_becomes_live_layers_and_a_trace(calls: Calls, tmp_path: Path) -> None:
    run, events = await ended(calls, ModelRun("bert-tiny", prompt="The quick brown fox", measuring=QUICK))
    assert run.state is RunState.SUCCEEDED, run.error
    assert "[CLS] the quick brown fox [SEP]" in "".join(line for log in of_kind(events, "log_lines") for line in log.lines)
    whole, *layers = of_kind(events, "configuration")
    assert (whole.category, whole.layer_path, whole.kernel_name) == ("model", "", "bert-tiny")
    assert {parameter.name: parameter.value for parameter in whole.parameters} == {
        "batch_size": 1,
        "sequence_length": 6,
        "parameter_count": PARAMETER_COUNT,
    }
    assert "bert.encoder.layer.1.attention.self.query.MatMul" in [layer.layer_path for layer in layers]
    assert whole.flop == sum(layer.flop for layer in layers) > 4_000_000
    # Every layer has samples from the first turn on, long before the end, and statistics of all of them at the end.
    names = [event.WhichOneof("payload") for event in events]
    assert names.index("sample_batch") < names.index("trace_stored") < names.index("measurement")
    batches = of_kind(events, "sample_batch")
    for measurement in of_kind(events, "measurement"):
        own = [batch for batch in batches if batch.configuration_index == measurement.configuration_index]
        assert [batch.first_sample_index for batch in own] == [sum(len(b.duration_ns) for b in own[:place]) for place in range(len(own))]
        assert measurement.sample_count == sum(len(batch.duration_ns) for batch in own) >= 2
        assert 0 < measurement.duration_min_ns <= measurement.duration_median_ns
        assert measurement.timing_method == run_pb2.TIMING_METHOD_SINGLE  # whatever is averaged: two runs are of one method
    assert len(of_kind(events, "measurement")) == 1 + len(layers)
    of_whole = of_kind(events, "measurement")[0]
    assert of_whole.verification.state == of_whole.recheck.state == run_pb2.VERIFICATION_STATE_PASSED
    assert 4 * PARAMETER_COUNT < of_whole.device_memory_bytes < 2**29
    assert (run.completed_configuration_count, run.total_configuration_count) == (1 + len(layers),) * 2
    # The trace has the same layers, and all of their work: what both work out comes from one model.
    (stored,) = of_kind(events, "trace_stored")
    assert (list(stored.artifact_names), stored.collector) == (["profile.json"], "onnxruntime")
    data = await artifact(calls, run.run_id, "profile.json")
    assert of_kind(events, "artifact_stored")[-1].digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    (tmp_path / "profile.json").write_bytes(data)
    tables = OnnxRuntimeReader().read(TraceFiles("profile.json", tmp_path / "profile.json", 0))
    found = TRACE_DERIVED["layers"].compute(trace_frames(tables.frames), DEFAULT_QUERY).collect()
    assert found.height == len(layers)
    pass_count = sum(event["name"] == "model_run" for event in json.loads(data))
    assert found["flop"].sum() == pytest.approx(whole.flop * pass_count)
    assert found["work_source"].unique().to_list() == ["op model"]


@pytest.mark.slow
async def test_a_model_of_a_bundle_runs_with_its_tokenizer_and_weights_beside_it(
    calls: Calls, node: ProfilerNode, tmp_path: Path, private_directories: Path
) -> None:
    save_with_external_data(tmp_path / "bundle/model.onnx", bert(1100, 3), "model.weights")
    shutil.copy(OWN_TOKENIZER, tmp_path / "bundle/tokenizer.json")
    unknown_operator(tmp_path / "bundle/odd.onnx")
    digest = await upload(calls, tmp_path / "bundle")
    work = ModelRun("model.onnx", batch_size=2, bundle_digest=digest, prompt="hello", tokenizer_file_name="tokenizer.json", measuring=QUICK)
    run, events = await ended(calls, work)
    assert run.state is RunState.SUCCEEDED, run.error
    whole = of_kind(events, "configuration")[0]
    assert (whole.kernel_name, [parameter.value for parameter in whole.parameters][:2]) == ("model.onnx", [2, 3])
    async with serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:
        await add_node(stub, node.endpoint)
        await eventually(lambda: is_read(stub, run.run_id))
        tables = {
            name: await get_table(stub, TableQuery(name, (run.run_id,))) for name in ("layers", "kernels", "roofline", "models", "gaps")
        }
    layers, kernels, roofline, models, gaps = (tables[name][0] for name in tables)
    # What was measured is told once, in the names and times of configurations; the trace tells what they cannot.
    assert set(layers["source"]) == {"annotation"}
    assert layers.height == len(of_kind(events, "configuration")) - 1
    assert kernels["kernel_name"].is_unique().all()
    assert roofline.height == layers.height + 1
    assert models.select("model_name", "batch_size", "sequence_length").rows() == [("model.onnx", 2, 3)]
    assert gaps.height > 0
    refused, _ = await ended(calls, ModelRun("odd.onnx", bundle_digest=digest, measuring=QUICK))
    assert refused.state is RunState.FAILED
    assert refused.error is not None
    assert refused.error.reason == "INVALID_MODEL"
    assert "com.acme:Frobnicate" in refused.error.message


async def test_what_cannot_be_run_is_refused_before_it_is_queued(calls: Calls) -> None:
    for work, error, message in (
        (ModelRun("bert-tiny", prompt="  "), InvalidParameterError, "prompt of model bert-tiny"),
        (ModelRun("m.onnx"), InvalidParameterError, "bundle_digest"),
        (ModelRun("bert-tiny", backend=BackendName.NVCC), BackendUnavailableError, "nvcc"),
    ):
        with pytest.raises(error, match=message):
            await calls.start(RunSpec(work))
