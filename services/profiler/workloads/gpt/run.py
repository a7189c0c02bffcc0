"""The run of a GPT model: plan, load, verify, then time every launch and complete passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from kernalyse.services.core.errors import BackendUnavailableError, VerificationFailedError
from kernalyse.services.core.ml_models import Architecture, find_architecture
from kernalyse.services.core.model import (
    CacheMode,
    Device,
    LogLevel,
    LogLines,
    ModelRun,
    PairedComparison,
    ParameterValue,
    StopReason,
    Verification,
    VerificationState,
)
from kernalyse.services.core.reruns import SOURCES_ARTIFACT
from kernalyse.services.profiler.backends.base import DeviceSession, PassSession
from kernalyse.services.profiler.measuring.benchmark import Method
from kernalyse.services.profiler.measuring.device_state import ContentionCheck, open_clock_meter, open_use_meter
from kernalyse.services.profiler.measuring.paired import InterleavedTrials
from kernalyse.services.profiler.measuring.verification import SWITCHED_OFF
from kernalyse.services.profiler.workloads.ceilings import load_sources, report_ceilings_after_sweep, report_ceilings_before_sweep
from kernalyse.services.profiler.workloads.events import ProgressReporter, store_artifact
from kernalyse.services.profiler.workloads.gpt.operations import PlannedPass, Problem, plan_pass
from kernalyse.services.profiler.workloads.gpt.reference import (
    Array,
    LogitsCheck,
    MemoryNeed,
    check_memory,
    parameter_count,
    random_tokens,
    random_weights,
    reference_logits,
)
from kernalyse.services.profiler.workloads.gpt.sampling import LoadedModel, LoadedPass, PassContext, PassRun, StepSampling
from kernalyse.services.profiler.workloads.gpt.spec import requested_variants
from kernalyse.services.profiler.workloads.sweeps.configuration import RECHECK_SEED_STEP
from kernalyse.services.profiler.workloads.sweeps.launches import SweepCompiler

if TYPE_CHECKING:
    from kernalyse.services.profiler.workloads.events import ModelContext

PAIR_BLOCK_COUNT: Final = 20  # as a paired sweep's: with fewer, no comparison decides
PAIR_LIMIT_FACTOR: Final = 4
"""Times what both passes may take by their rules. Twenty blocks of a pass of seconds would take the better part of an hour;
cut short, the comparison comes out as undecided and the measurements stand."""

MODEL_ARTIFACT: Final = "model.json"


def run_gpt(work: ModelRun, context: ModelContext) -> None:
    """Run the model: report measurements of every launch and of complete passes and, with two variants, which is faster.

    Raises:
        MemoryLimitError: names the largest batch and sequence that fit.
        VerificationFailedError: a variant's logits differ from the reference; nothing has been timed then.
        KernalyseError: what opening the device, compiling and launching raise.
    """
    progress = ProgressReporter(context.sink, 0)
    progress.report("opening the device")
    session = _pass_session(context.open_session())
    method = Method.of(work.measuring, session.device)
    if work.measuring.cache_mode is CacheMode.DEFAULT:  # inside a pass a layer finds what the one before has left
        method = method.with_cache(CacheMode.HOT)
    problem = _problem(work, session.device)
    variants = requested_variants(work)
    need = check_memory(problem, variants, session.device, context.limits)
    passes = _plan(problem, variants, method.cache_mode)
    progress.total_count = sum(planned.configuration_count for planned in passes)
    progress.device_id = session.device.device_id
    sources = load_sources()
    are_complete = report_ceilings_before_sweep(session, sources, context.sink, context.ceilings_file, progress.total_count)

    pass_context = PassContext(
        session=session,
        sink=context.sink,
        clock_meter=open_clock_meter(session.device),
        contention=ContentionCheck(open_use_meter(session.device)),
        method=method,
        seed=work.seed,
    )
    pass_context.contention.ensure_idle(work.measuring.busy_policy, progress.report)
    for planned in passes:
        context.sink.write(planned.pass_configuration)
        for step in planned.steps:
            context.sink.write(step.configuration)
    model = LoadedModel(problem, passes, session)
    loaded, verifications = _load(work, problem, model, passes, pass_context, context, progress)
    _report_model(problem, need, passes, verifications, context)
    _measure(loaded, verifications, lambda: _recheck(work, problem, model, loaded, progress), pass_context, progress)
    model.release()
    if not are_complete:
        report_ceilings_after_sweep(session, sources, context.sink, context.ceilings_file)


# ---------------------------------------------------------------- preparation


def _pass_session(session: DeviceSession) -> PassSession:
    if isinstance(session, PassSession):
        return session
    raise BackendUnavailableError(
        f"backend of {session.device.name}", found="one that cannot run models", expected="pycuda or opencl", remedy="Choose one of these."
    )


def _problem(work: ModelRun, device: Device) -> Problem:
    architecture = find_architecture(work.model_name)
    assert isinstance(architecture, Architecture)  # admitted
    return Problem(architecture, work.batch_size, work.sequence_length, work.vocabulary_size, device.kind, device.compute_unit_count)


def _plan(problem: Problem, variants: Sequence[str], cache_mode: CacheMode) -> list[PlannedPass]:
    architecture = problem.architecture
    parameters = (
        ParameterValue("vocabulary_size", problem.vocabulary_size),
        ParameterValue("layer_count", architecture.layer_count),
        ParameterValue("head_count", architecture.head_count),
        ParameterValue("width", architecture.width),
        ParameterValue("parameter_count", parameter_count(problem)),
    )
    passes: list[PlannedPass] = []
    for variant in variants:
        first_index = sum(planned.configuration_count for planned in passes)
        passes.append(plan_pass(problem, variant, first_index, cache_mode, parameters))
    return passes


def _load(
    work: ModelRun,
    problem: Problem,
    model: LoadedModel,
    passes: Sequence[PlannedPass],
    pass_context: PassContext,
    context: ModelContext,
    progress: ProgressReporter,
) -> tuple[list[LoadedPass], list[Verification]]:
    """Compile, fill and verify every variant."""
    progress.report("making weights")
    weights, tokens = random_weights(problem, work.seed), random_tokens(problem, work.seed)
    model.fill(weights, tokens)
    compiler = SweepCompiler((), pass_context.session, context.sink, context.directory)
    loaded: list[LoadedPass] = []
    for planned in passes:
        progress.report(f"compiling {planned.name}")
        loaded.append(model.prepare(planned, compiler))
    if work.measuring.skip_verification:
        return loaded, [SWITCHED_OFF for _ in loaded]
    found: list[Array] = []
    for one in loaded:
        progress.report(f"first pass of {one.planned.name}")
        found.append(model.logits(one))
    verifications = _verify(problem, weights, tokens, found, progress)
    for one, verification in zip(loaded, verifications, strict=True):
        _raise_if_wrong(one.planned, verification)
    return loaded, verifications


def _verify(
    problem: Problem, weights: Mapping[str, Array], tokens: Array, found: Sequence[Array], progress: ProgressReporter
) -> list[Verification]:
    checks = [LogitsCheck() for _ in found]
    for chosen, reference in reference_logits(problem, weights, tokens):
        progress.report(f"verifying sequences up to {chosen.stop} of {problem.batch_size}")
        for check, logits in zip(checks, found, strict=True):
            check.add(logits[chosen], reference)
    return [check.verification() for check in checks]


def _raise_if_wrong(planned: PlannedPass, verification: Verification) -> None:
    if verification.state is not VerificationState.PASSED:
        raise VerificationFailedError(
            f"logits of {planned.name}",
            found=verification.message,
            expected="those of the float64 reference",
            remedy="Nothing was timed. Report it with device and driver, or choose another variant.",
        )


def _report_model(
    problem: Problem, need: MemoryNeed, passes: Sequence[PlannedPass], verifications: Sequence[Verification], context: ModelContext
) -> None:
    """Report the model's sizes: a summary in the log, the details as an artifact."""
    variants = {
        planned.variant: {
            "launch_count": len(planned.steps),
            "memory_bytes": planned.device_memory_bytes,
            "tensor_bytes": dict(planned.tensor_bytes()),
            "max_relative_error": verification.max_relative_error,
        }
        for planned, verification in zip(passes, verifications, strict=True)
    }
    document = {
        **asdict(problem.architecture),
        "batch_size": problem.batch_size,
        "sequence_length": problem.sequence_length,
        "vocabulary_size": problem.vocabulary_size,
        "parameter_count": parameter_count(problem),
        "memory_bytes": need.device_bytes,
        "variants": variants,
    }
    context.sink.write(store_artifact(context.directory, MODEL_ARTIFACT, json.dumps(document, indent=1).encode()))
    sources = {step.plan.planned.kernel.source.file_name: step.plan.planned.kernel.source.text for one in passes for step in one.steps}
    context.sink.write(store_artifact(context.directory, SOURCES_ARTIFACT, json.dumps(sources, indent=1).encode()))
    lines = []
    for planned, verification in zip(passes, verifications, strict=True):
        error = verification.max_relative_error
        checked = "not verified" if error is None else f"logits within {error:.2g} of the reference"
        size_bytes = planned.device_memory_bytes
        lines.append(f"{planned.name}: {len(planned.steps)} launches, {size_bytes} bytes of tensors, {checked}.")
    context.sink.write(LogLines(LogLevel.INFO, "worker", tuple(lines)))


# ---------------------------------------------------------------- timing


def _measure(
    loaded: Sequence[LoadedPass],
    verifications: Sequence[Verification],
    recheck: Callable[[], Sequence[Verification | None]],
    pass_context: PassContext,
    progress: ProgressReporter,
) -> None:
    """Time a few complete passes, so that a latency shows early; then each launch; then complete passes until there are enough."""
    runs = [PassRun(one, verification, pass_context, progress.report) for one, verification in zip(loaded, verifications, strict=True)]
    for run in runs:
        run.start()
    samplings = _sample_steps(loaded, pass_context, progress)
    stop_reasons, comparison = _sample_passes(runs, progress)
    use = pass_context.contention.read()
    for sampling, run, stop_reason, rechecked in zip(samplings, runs, stop_reasons, recheck(), strict=True):
        progress.complete(sampling.finish(run.verification, rechecked, use))
        run.finish(stop_reason, rechecked, use)
        progress.complete()
    if comparison is not None:
        pass_context.sink.write(comparison)


def _sample_steps(loaded: Sequence[LoadedPass], pass_context: PassContext, progress: ProgressReporter) -> list[StepSampling]:
    """Sample launch by launch; variants alternate, two of them so often that their layers can be compared."""
    block_count = PAIR_BLOCK_COUNT if len(loaded) == 2 else 0
    samplings = [StepSampling(one, pass_context, block_count) for one in loaded]
    while not all(sampling.is_finished for sampling in samplings):
        for one, sampling in zip(loaded, samplings, strict=True):
            if not sampling.is_finished:
                progress.report(f"measuring layers of {one.planned.name}")
                sampling.take_batch()
    return samplings


def _sample_passes(runs: Sequence[PassRun], progress: ProgressReporter) -> tuple[list[StopReason], PairedComparison | None]:
    """Sample complete passes: one variant alone, two interleaved."""
    if len(runs) != 2:
        return [run.sample() for run in runs], None
    turns = InterleavedTrials(runs[0], runs[1], progress.report)
    comparison = turns.compare(PAIR_BLOCK_COUNT, PAIR_LIMIT_FACTOR * (runs[0].rule.max_duration_ns + runs[1].rule.max_duration_ns))
    return [turns.stop_reason] * len(runs), comparison


def _recheck(
    work: ModelRun, problem: Problem, model: LoadedModel, loaded: Sequence[LoadedPass], progress: ProgressReporter
) -> Sequence[Verification | None]:
    """Verify once more with new tokens, so that results which a kernel has merely cached are wrong."""
    if work.measuring.skip_verification:
        return [None for _ in loaded]
    weights, tokens = random_weights(problem, work.seed), random_tokens(problem, work.seed + RECHECK_SEED_STEP)
    model.fill({}, tokens)
    return _verify(problem, weights, tokens, [model.logits(one) for one in loaded], progress)
