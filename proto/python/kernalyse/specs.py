"""Run specifications: one function per kind of run; `Client.submit` takes their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from kernalyse.errors import call_error
from kernalyse.measuring import DEFAULT_MEASURING, Measuring, choice, nanoseconds
from kernalyse.v1 import device_pb2, kernel_pb2, run_pb2

BackendChoice = Literal["auto", "pycuda", "nvcc", "opencl"]
Collector = Literal["nsys", "ncu", "kineto", "proton"]

NO_VALUES: Final[Mapping[str, Sequence[int]]] = MappingProxyType({})
NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})
COLLECTORS: Final = ("nsys", "ncu", "kineto", "proton")


def kernel_sweep(
    *kernels: str | kernel_pb2.KernelSelection,
    parameters: Mapping[str, Iterable[int]] = NO_VALUES,
    ties: Mapping[str, str] = NO_TEXTS,
    where: str = "",
    arguments: Mapping[str, float | str] = NO_TEXTS,
    macros: Mapping[str, Iterable[int]] = NO_VALUES,
    blocks: Iterable[Sequence[int]] = (),
    compiler_options: Sequence[str] = (),
    backend: BackendChoice = "auto",
    device_id: str | None = None,
    measuring: Measuring = DEFAULT_MEASURING,
    strategy: Literal["all", "random", "halving"] = "all",
    budget_s: float | None = None,
    process_count: int = 1,
    is_paired: bool = False,
    with_counters: bool = False,
    order_seed: int | None = None,
    clocks: Literal["as_is", "base", "max"] = "as_is",
) -> run_pb2.RunSpec:
    """Return a run of every kernel over the cartesian product of its parameters.

    Args:
        kernels: names of the catalog; "FILE.cu:FUNCTION" for source of your own, whose buffers and sizes are derived;
            or a KernelSelection with a complete definition.
        parameters: values by name; "block_x", "block_y" and "block_z" are parameters too. Left out: the definition's values.
        ties: parameters that always have another one's value, {"M": "N"}.
        where: condition over the parameters; configurations for which it is false are left out.
        arguments: scalar arguments by name; a text is an expression over the parameters.
        macros: compile-time constants, -D NAME=VALUE.
        blocks: block sizes to vary, (x, y, z) each.
        compiler_options: passed to the compiler as they are.
        backend: how kernels are compiled and launched.
        device_id: None: the backend's first device.
        measuring: when to stop, and how to time.
        strategy, budget_s: how much of the sweep is measured.
        process_count: processes that each measure everything, one after the other.
        is_paired: two kernels in alternating blocks, with a verdict.
        with_counters: once more under Nsight Compute.
        order_seed: shuffles the order of measuring; None: as listed.
        clocks: to what the device's clocks are locked meanwhile, where the node may.

    Raises:
        RequestError: an argument cannot be used.
        OSError: a source cannot be read.
    """
    if not kernels:
        raise call_error("argument kernels", found="none", expected="at least one name, FILE.cu:FUNCTION or KernelSelection")
    sweep = run_pb2.KernelSweep(
        kernels=[kernel if isinstance(kernel, kernel_pb2.KernelSelection) else _selection(kernel) for kernel in kernels],
        axes=_axes(parameters),
        ties=[run_pb2.Tie(name=name, source_name=source) for name, source in ties.items()],
        where=where,
        arguments=[kernel_pb2.ArgumentDefinition(name=name, expression=str(value)) for name, value in arguments.items()],
        blocks=[device_pb2.Dim3(**dict(zip("xyz", (*block, 1, 1), strict=False))) for block in blocks],
        backend=_backend(backend),
        device_id=device_id,
        measuring=measuring.message(),
        macro_axes=_axes(macros),
        compiler_options=compiler_options,
        order_seed=order_seed,
        strategy=choice("strategy", strategy, run_pb2.SearchStrategy, "SEARCH_STRATEGY"),
        budget_ns=nanoseconds("budget_s", budget_s),
        process_count=process_count,
        pairing=run_pb2.Pairing() if is_paired else None,
        with_counters=with_counters,
        clock_mode=choice("clocks", clocks, run_pb2.ClockMode, "CLOCK_MODE"),
    )
    return run_pb2.RunSpec(kernel_sweep=sweep)


def command(
    arguments: Sequence[str],
    *,
    collector: Collector = "nsys",
    environment: Mapping[str, str] = NO_TEXTS,
    bundle_digest: str | None = None,
    max_duration_s: float | None = None,
    capture_range: str = "",
    with_cpu_sampling: bool = False,
    kernel_filter: str = "",
    launch_skip_count: int = 0,
    max_launch_count: int | None = None,
    step_count: int | None = None,
    has_network: bool = False,
) -> run_pb2.RunSpec:
    """Return a run of a command under a profiler, on the node.

    Args:
        arguments: the program first.
        collector: the profiler.
        environment: variables in addition to those of the node.
        bundle_digest: from `Client.upload_bundle`: the directory that becomes the working directory. None: an empty one.
        max_duration_s: after it the command is ended, and what was collected is kept. None: the run's limit, which fails the run.
        capture_range: "cudaProfilerApi" or "nvtx:RANGE@DOMAIN" (nsys, ncu); empty: the entire program.
        with_cpu_sampling: nsys also samples stacks on the CPU.
        kernel_filter, launch_skip_count, max_launch_count: which launches ncu profiles. max_launch_count: None: 100.
        step_count: optimizer steps to record after the first (kineto). None: until the end.
        has_network: the network stays on, where the node sandboxes runs.

    Raises:
        RequestError: an argument cannot be used.
    """
    if isinstance(arguments, str) or not arguments:
        raise call_error("argument arguments", found=repr(arguments), expected='a list of words, e.g. ["python", "train.py"]')
    if collector not in COLLECTORS:
        raise call_error("argument collector", found=repr(collector), expected=", ".join(COLLECTORS))
    profile = run_pb2.CommandProfile(
        arguments=arguments,
        collector=collector,
        environment=[run_pb2.EnvironmentVariable(name=name, value=value) for name, value in environment.items()],
        bundle_digest=bundle_digest,
        max_duration_ns=nanoseconds("max_duration_s", max_duration_s),
        capture_range=capture_range,
        with_cpu_sampling=with_cpu_sampling,
        kernel_filter=kernel_filter,
        launch_skip_count=launch_skip_count,
        max_launch_count=max_launch_count,
        step_count=step_count,
        network=has_network,
    )
    return run_pb2.RunSpec(command_profile=profile)


def model(
    model_name: str,
    *,
    variants: Sequence[str] = (),
    batch_size: int = 1,
    sequence_length: int = 64,
    vocabulary_size: int = 1024,
    backend: BackendChoice = "auto",
    device_id: str | None = None,
    bundle_digest: str | None = None,
    seed: int = 0,
    measuring: Measuring = DEFAULT_MEASURING,
    prompt: str = "",
    tokenizer_file_name: str = "",
) -> run_pb2.RunSpec:
    """Return a run of a complete ML model: a built-in one on the project's own kernels, or an ONNX file.

    Args:
        model_name: e.g. "gpt-nano", or the name of an ONNX file of the bundle.
        variants: "baseline", "fused", or both alternately. Empty: baseline.
        batch_size: sequences in each pass.
        sequence_length: tokens of each sequence.
        vocabulary_size: of the built-in models.
        backend: how kernels are compiled and launched.
        device_id: None: the backend's first device.
        bundle_digest: from `Client.upload_bundle`: the directory with the ONNX file.
        seed: of weights and tokens.
        measuring: when to stop, and how to time.
        prompt: becomes the tokens of an ONNX model; empty: random ones.
        tokenizer_file_name: in the bundle; empty: the project's small vocabulary.

    Raises:
        RequestError: an argument cannot be used.
    """
    run = run_pb2.ModelRun(
        model_name=model_name,
        variants=variants,
        batch_size=batch_size,
        sequence_length=sequence_length,
        backend=_backend(backend),
        device_id=device_id,
        bundle_digest=bundle_digest,
        vocabulary_size=vocabulary_size,
        seed=seed,
        measuring=measuring.message(),
        prompt=prompt,
        tokenizer_file_name=tokenizer_file_name,
    )
    return run_pb2.RunSpec(model_run=run)


def ceilings(*, backend: BackendChoice = "auto", device_id: str | None = None) -> run_pb2.RunSpec:
    """Return a run that measures the rates that the device reaches: levels of memory, multiply-adds, tensor cores.

    Args:
        backend: how the measurement is compiled and launched.
        device_id: None for the backend's first.
    """
    return run_pb2.RunSpec(ceiling_measurement=run_pb2.CeilingMeasurement(backend=_backend(backend), device_id=device_id))


def device_check(*, backend: BackendChoice = "auto", device_id: str | None = None, block_count: int = 10) -> run_pb2.RunSpec:
    """Return a run that checks the device by a short set of measurements; table fleet judges it.

    Args:
        backend: how the measurements are compiled and launched.
        device_id: None for the backend's first.
        block_count: of about a second each, 4 to 1,000; each measures everything once.
    """
    check = run_pb2.DeviceCheck(backend=_backend(backend), device_id=device_id, block_count=block_count)
    return run_pb2.RunSpec(device_check=check)


def _selection(kernel: str) -> kernel_pb2.KernelSelection:
    file_name, has_file, function = kernel.partition(".cu:")
    if not has_file:
        return kernel_pb2.KernelSelection(kernel_name=kernel)
    path = Path(f"{file_name}.cu")
    source = kernel_pb2.KernelSource(file_name=path.name, text=path.read_text(encoding="utf-8"))
    return kernel_pb2.KernelSelection(kernel_name=function, source=source)


def _axes(values: Mapping[str, Iterable[int]]) -> list[run_pb2.Axis]:
    return [run_pb2.Axis(name=name, values=tuple(of_name)) for name, of_name in values.items()]


def _backend(backend: str) -> str:
    return choice("backend", backend, device_pb2.Backend, "BACKEND")
