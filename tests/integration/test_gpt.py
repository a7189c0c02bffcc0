"""GPT on the project's own kernels: logits against NumPy in float64, and a run from request to measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import KernalyseError, VerificationFailedError
from kernalyse.services.core.ml_models import ARCHITECTURES, Architecture, find_architecture
from kernalyse.services.core.model import (
    ArtifactStored,
    CacheMode,
    Configuration,
    Device,
    DeviceKind,
    EventPayload,
    LogLines,
    Measurement,
    MeasuringOptions,
    ModelRun,
    PairedComparison,
    Progress,
    RunEvent,
    RunLimits,
    RunSpec,
    RunState,
    SampleBatch,
    StopReason,
    VerificationState,
)
from kernalyse.services.profiler.backends.base import DeviceSession, PassSession
from kernalyse.services.profiler.backends.discovery import open_backend_for
from kernalyse.services.profiler.workloads.events import ModelContext
from kernalyse.services.profiler.workloads.gpt.operations import Problem, plan_pass
from kernalyse.services.profiler.workloads.gpt.reference import LogitsCheck, random_tokens, random_weights, reference_logits
from kernalyse.services.profiler.workloads.gpt.run import run_gpt
from kernalyse.services.profiler.workloads.gpt.sampling import LoadedModel
from kernalyse.services.profiler.workloads.gpt.spec import VARIANTS
from kernalyse.services.profiler.workloads.sweeps.launches import SweepCompiler
from tests.integration.devices import device_parameters
from tests.integration.profiler_node import Calls, ProfilerNode, calls_to

QUICK = MeasuringOptions(min_duration_ns=1_000_000, max_duration_ns=100_000_000, min_sample_count=3)
ONE_LAYER = Architecture("gpt-nano", layer_count=1, head_count=3, width=48)  # every kernel of nano once


class Events(list[EventPayload]):
    def write(self, payload: EventPayload) -> None:
        self.append(payload)


@pytest.fixture(scope="module", params=device_parameters())
def session(request: pytest.FixtureRequest) -> Iterator[DeviceSession]:
    device: Device = request.param
    opened = open_backend_for(device.backends[0], device.device_id).open(device.device_id)
    if not isinstance(opened, PassSession):
        opened.close()
        pytest.skip(f"{device.backends[0]} runs no models: each of its kernels is a process of its own")
    yield opened
    opened.close()


# ---------------------------------------------------------------- kernels in their places


@pytest.mark.parametrize(("batch_size", "sequence_length"), [(1, 1), (3, 17)])
def test_logits_of_each_variant_agree_with_float64(session: PassSession, tmp_path: Path, batch_size: int, sequence_length: int) -> None:
    problem = Problem(ONE_LAYER, batch_size, sequence_length, 101, session.device.kind, session.device.compute_unit_count)
    for variant, verification in checked(problem, VARIANTS, session, tmp_path):
        assert verification.state is VerificationState.PASSED, (variant, verification.message)
        assert verification.max_relative_error is not None
        assert verification.max_relative_error < 1e-5  # far inside the tolerance: float32 sums in another order


def test_the_products_that_gpus_take_are_right_too(session: PassSession, tmp_path: Path) -> None:
    if session.device.device_id.startswith("opencl:pocl"):
        pytest.skip("PoCL takes most of a minute to compile them; test_backend_conformance runs them there")
    problem = Problem(ONE_LAYER, 2, 33, 70, DeviceKind.GPU, compute_unit_count=3)
    planned = plan_pass(problem, "fused", 0, CacheMode.HOT, ())
    tiles = {macro.value for step in planned.steps for macro in step.configuration.macros if macro.name == "TILE"}
    assert tiles == {32, 64}
    ((_, verification),) = checked(problem, ("fused",), session, tmp_path)
    assert verification.state is VerificationState.PASSED, verification.message


def checked(problem: Problem, variants: tuple[str, ...], session: PassSession, directory: Path) -> Iterator[tuple[str, Any]]:
    passes = [plan_pass(problem, variant, 0, CacheMode.HOT, ()) for variant in variants]
    weights, tokens = random_weights(problem, 7), random_tokens(problem, 7)
    model = LoadedModel(problem, passes, session)
    try:
        model.fill(weights, tokens)
        compiler = SweepCompiler((), session, Events(), directory)
        for planned in passes:
            logits = model.logits(model.prepare(planned, compiler))
            check = LogitsCheck()
            for chosen, reference in reference_logits(problem, weights, tokens):
                check.add(logits[chosen], reference)
            yield planned.variant, check.verification()
    finally:
        model.release()


def test_a_token_knows_nothing_of_those_after_it(session: PassSession) -> None:
    """Of the reference itself: with another last token, only the last logits change."""
    problem = Problem(ONE_LAYER, 1, 9, 50, session.device.kind)
    weights, tokens = random_weights(problem, 0), random_tokens(problem, 0)
    ((_, before),) = reference_logits(problem, weights, tokens)
    tokens[0, -1] = (tokens[0, -1] + 1) % 50
    ((_, after),) = reference_logits(problem, weights, tokens)
    np.testing.assert_array_equal(before[0, :-1], after[0, :-1])
    assert np.abs(before[0, -1] - after[0, -1]).max() > 0.1


# ---------------------------------------------------------------- the plan


def test_models_are_found_by_any_spelling_of_their_names() -> None:
    shapes = {one.model_name: (one.layer_count, one.head_count, one.width) for one in ARCHITECTURES}
    assert shapes == {
        "gpt-nano": (3, 3, 48),
        "gpt-micro": (4, 4, 128),
        "gpt-mini": (6, 6, 192),
        "gpt-tile-small": (4, 4, 64),
        "gpt-tile-medium": (6, 4, 128),
        "gpt-tile-large": (8, 8, 256),
    }
    for name in ("tile-medium", "gpt_tile_medium", "GPT-tile-medium", "tile_medium"):
        assert find_architecture(name) == ARCHITECTURES[4]
    assert find_architecture("gpt-huge") is None


def test_layers_have_paths_and_both_variants_count_the_same_work() -> None:
    problem = Problem(ONE_LAYER, 2, 16, 64, DeviceKind.CPU)
    baseline, fused = (plan_pass(problem, variant, 0, CacheMode.HOT, ()) for variant in VARIANTS)
    paths = [step.configuration.layer_path for step in baseline.steps]
    assert list(dict.fromkeys(paths)) == [
        *("embed", "blocks.0.ln1", "blocks.0.attn.qkv", "blocks.0.attn.scores", "blocks.0.attn.softmax", "blocks.0.attn.values"),
        *("blocks.0.attn.proj", "blocks.0.attn.residual", "blocks.0.ln2", "blocks.0.mlp.fc", "blocks.0.mlp.gelu"),
        *("blocks.0.mlp.proj", "blocks.0.mlp.residual", "ln_f", "logits"),
    ]
    assert [step.configuration.layer_path for step in fused.steps] == [
        *("embed", "blocks.0.ln1", "blocks.0.attn.qkv", "blocks.0.attn.core", "blocks.0.attn.proj", "blocks.0.ln2"),
        *("blocks.0.mlp.fc", "blocks.0.mlp.proj", "ln_f", "logits"),
    ]
    products = 2 * 2 * 16 * (48 * 144 + 48 * 48 + 2 * 48 * 192 + 48 * 64)
    for planned in (baseline, fused):
        assert planned.pass_configuration.flop == sum(step.configuration.flop or 0 for step in planned.steps)
        assert planned.pass_configuration.flop is not None
        assert products < planned.pass_configuration.flop < 1.2 * products
    assert fused.pass_configuration.flop == pytest.approx(baseline.pass_configuration.flop, rel=0.01)
    assert fused.pass_configuration.bytes is not None
    assert baseline.pass_configuration.bytes is not None
    assert fused.pass_configuration.bytes < baseline.pass_configuration.bytes


# ---------------------------------------------------------------- a run


async def finished_events(calls: Calls, work: ModelRun, limits: RunLimits | None = None) -> tuple[Any, list[Any]]:
    run = await calls.start(RunSpec(work, limits=limits or RunLimits()))
    events = await calls.events(run.run_id)
    return await calls.get(run.run_id), events


@pytest.mark.slow
async def test_both_variants_of_a_model_run_from_request_to_verdict(node: ProfilerNode) -> None:
    work = ModelRun("nano", ("baseline", "fused"), batch_size=2, sequence_length=8, vocabulary_size=64, measuring=QUICK)
    async with calls_to(node) as calls:
        run, events = await finished_events(calls, work)
    assert run.state is RunState.SUCCEEDED, run.error
    told = [protobuf.decode(event, RunEvent).payload for event in events]
    configurations = {one.configuration_index: one for one in told if isinstance(one, Configuration)}
    wholes = [one for one in configurations.values() if one.category == "model"]
    assert [(one.kernel_name, one.variant, one.layer_path) for one in wholes] == [("gpt-nano", variant, "") for variant in VARIANTS]
    assert sorted(configurations) == list(range(len(configurations)))
    for whole in wholes:
        layers = [one for one in configurations.values() if one.variant == whole.variant and one.layer_path]
        assert whole.flop == sum(one.flop or 0 for one in layers)
        assert {(parameter.name, parameter.value) for one in layers for parameter in one.parameters[:2]} == {
            ("batch_size", 2),
            ("sequence_length", 8),
        }

    samples: defaultdict[int, list[float]] = defaultdict(list)
    for batch in (one for one in told if isinstance(one, SampleBatch)):
        assert batch.first_sample_index == len(samples[batch.configuration_index])
        samples[batch.configuration_index] += batch.duration_ns
    measurements = [one for one in told if isinstance(one, Measurement)]
    assert sorted(one.configuration_index for one in measurements) == list(range(len(configurations)))
    for measurement in measurements:
        assert len(samples[measurement.configuration_index]) == measurement.sample_count
        assert measurement.sample_count >= 3 or measurement.stop_reason is StopReason.TIME_LIMIT
        assert measurement.verification.state is VerificationState.PASSED
        assert (measurement.verification.max_relative_error or 1) < 1e-4
        assert measurement.recheck is not None
        assert measurement.recheck.state is VerificationState.PASSED
        assert measurement.recheck.max_relative_error != measurement.verification.max_relative_error  # of other tokens
    memory = {one.configuration_index: one.device_memory_bytes or 0 for one in measurements}
    for whole in wholes:
        assert memory[whole.configuration_index] > max(
            memory[index] for index, one in configurations.items() if one.layer_path and one.variant == whole.variant
        )
    first_samples = [configurations[one.configuration_index].category for one in told if isinstance(one, SampleBatch)][:2]
    assert first_samples == ["model", "model"]  # a latency shows before the layers
    # Layers of both variants come while the run goes on, not one variant after the other.
    order = [configurations[one.configuration_index].variant for one in told if isinstance(one, SampleBatch)]
    assert sum(left != right for left, right in pairwise(order)) >= 3

    (comparison,) = (one for one in told if isinstance(one, PairedComparison))
    assert (comparison.baseline_configuration_index, comparison.configuration_index) == tuple(one.configuration_index for one in wholes)
    assert comparison.duration_ratio_low <= comparison.duration_ratio <= comparison.duration_ratio_high
    last = [one for one in told if isinstance(one, Progress)][-1]
    assert (last.completed_configuration_count, last.total_configuration_count) == (len(configurations), len(configurations))
    assert {"model.json", "kernel_sources.json"} <= {one.artifact_name for one in told if isinstance(one, ArtifactStored)}
    assert any("bytes of tensors" in line for one in told if isinstance(one, LogLines) for line in one.lines)


async def test_a_running_model_is_cancelled_promptly(node: ProfilerNode) -> None:
    measuring = replace(QUICK, min_duration_ns=10**11, max_duration_ns=2 * 10**11)
    async with calls_to(node) as calls:
        run = await calls.start(RunSpec(ModelRun("nano", measuring=measuring)))
        async for event in calls.watch(run.run_id):
            if event.WhichOneof("payload") == "sample_batch":
                await calls.cancel(run.run_id)
                break
        assert (await calls.finished(run.run_id)).state is RunState.CANCELLED


# ---------------------------------------------------------------- what goes wrong


def context_of(session: DeviceSession, directory: Path, events: Events, limits: RunLimits | None = None) -> ModelContext:
    ceilings_file = directory / "ceilings.json"
    return ModelContext(lambda: session, events, directory, limits or RunLimits(), ceilings_file, cache_directory=None)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (ModelRun("gpt-nano", batch_size=2**20), "What fits: with the rest as it is, batch_size up to"),
        (ModelRun("gpt-tile-large", ("baseline", "fused"), sequence_length=2**18), "rest as it is, sequence_length up to"),
        (
            ModelRun("gpt-nano", vocabulary_size=2**18, batch_size=2**10, sequence_length=2**10),
            "What fits: batch_size 1 with sequence_length up to",
        ),
        (ModelRun("gpt-tile-large", vocabulary_size=2**20, batch_size=2), "Not even one token fits"),
    ],
    ids=["batch", "sequence", "both", "none"],
)
def test_what_is_too_large_is_refused_with_what_fits(session: PassSession, tmp_path: Path, work: ModelRun, words: str) -> None:
    limits = RunLimits(memory_limit_bytes=2 * 2**30)
    with pytest.raises(KernalyseError, match=words):
        run_gpt(work, context_of(session, tmp_path, Events(), limits))


class Forgetful:
    """The real session, which leaves out the launch before the last."""

    def __init__(self, session: PassSession) -> None:
        self._session = session
        for name in dir(session):  # what it has by itself, for isinstance does not ask __getattr__ from Python 3.12 on
            if not name.startswith("_") and name not in dir(Forgetful):
                setattr(self, name, getattr(session, name))

    def run_pass(self, whole: Any) -> None:
        self._session.run_pass(replace(whole, steps=whole.steps[:-2] + whole.steps[-1:]))

    def time_passes(self, whole: Any, cache_mode: CacheMode, count: int) -> Any:
        raise AssertionError("timed a model that is wrong")

    time_steps = time_passes


def test_wrong_logits_end_the_run_before_anything_is_timed(session: PassSession, tmp_path: Path, ceilings_file: Path) -> None:
    events = Events()
    context = replace(context_of(cast(PassSession, Forgetful(session)), tmp_path, events), ceilings_file=ceilings_file)
    with pytest.raises(VerificationFailedError, match="baseline: found Logits differ by") as refusal:
        run_gpt(ModelRun("gpt-nano", sequence_length=5, batch_size=2), context)
    assert "tolerance 0.0001" in refusal.value.found
    assert not [one for one in events if isinstance(one, SampleBatch | Measurement)]
