"""Kernels on an NVIDIA device: compiled, loaded, and what they take of a multiprocessor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.core.errors import CompileError
from services.core.model import Device, Dim3, KernelResources
from services.profiler.backends.base import Build, LaunchConfiguration, check_kernel_limits
from services.profiler.backends.cuda_library import CudaLibrary
from services.profiler.backends.kernel_source import SourceFunction, parse_kernel_source
from services.profiler.backends.launch_needs import LaunchNeeds, read_needs
from services.profiler.backends.mangled_names import find_entry
from services.profiler.backends.nvcc_compiler import NvccCompiler
from services.profiler.backends.nvcc_options import build_options
from services.profiler.backends.ptxas_report import NOTHING, KernelUsage, read_report

DEFAULT_SHARED_BYTES: Final = 48 * 1024  # of a block, static and dynamic together; above, a kernel has to opt in


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A kernel loaded through PyCUDA, and how it was compiled."""

    function_name: str
    compile_ns: int
    compiler_options: str
    compiler_log: str
    listings: Mapping[str, bytes] = field(repr=False)
    signature: SourceFunction = field(repr=False)
    entry: str  # its name in the cubin
    cubin: bytes = field(repr=False)
    usage: KernelUsage  # as ptxas reports it
    needs: LaunchNeeds
    function: Any = field(repr=False)
    module: Any = field(repr=False)  # unloaded with its last reference


def architecture_of(device: Device) -> str:
    """Return the name that nvcc has for the device's architecture, such as sm_90."""
    return "sm_" + (device.compute_capability or "").replace(".", "")


def load_kernel(driver: Any, compiler: NvccCompiler, build: Build, device: Device) -> CudaKernel:
    """Compile a build and load it into the current context.

    Raises:
        CompileError: with nvcc's own lines; or its options have made machine code for another device.
        UnknownKernelError, InvalidSourceError: the source has no such kernel.
        UnsupportedConstructError: a template without an instance.
        BackendUnavailableError: there is no nvcc.
    """
    signature = parse_kernel_source(build.source).kernel(build.function_name)
    architecture = architecture_of(device)
    compiled = compiler.compile(build, architecture)
    entry = compiled.entry or find_entry(compiled.code, signature, build.source.file_name)
    try:
        module = driver.module_from_buffer(compiled.code)
        function = module.get_function(entry)
    except driver.RuntimeError as error:  # no binary for this device
        raise CompileError(
            f"kernel {build.function_name} of {build.source.file_name}",
            found=f"machine code that {device.name} does not take: {error}",
            expected=f"code for {architecture}",
            remedy="Leave -arch and -gencode out of the options, or name an architecture of this device.",
        ) from error
    report = compiled.listings.get("ptxas.txt", b"").decode(errors="replace")
    return CudaKernel(
        function_name=build.function_name,
        compile_ns=compiled.compile_ns,
        compiler_options=" ".join(("--cubin", *build_options(build, architecture))),
        compiler_log=compiled.log,
        listings=compiled.listings,
        signature=signature,
        entry=entry,
        cubin=compiled.code,
        usage=read_report(report).get(entry, NOTHING),
        needs=read_needs(compiled.listings.get("ptx", b"").decode(errors="replace"), entry),
        function=function,
        module=module,
    )


def check_limits(driver: Any, kernel: CudaKernel, configuration: LaunchConfiguration, device: Device) -> None:
    """Raise LaunchLimitError for limits that only the compiled kernel knows: its registers and its static shared memory."""
    attributes = driver.function_attribute
    check_kernel_limits(
        device,
        kernel.function_name,
        configuration,
        thread_limit=kernel.function.get_attribute(attributes.MAX_THREADS_PER_BLOCK),
        static_shared_bytes=kernel.function.get_attribute(attributes.SHARED_SIZE_BYTES),
    )


def allow_shared_memory(driver: Any, kernel: CudaKernel, dynamic_bytes: int) -> None:
    """Opt in to more shared memory than every kernel may have. A launch prepared earlier may need more than this one: never less."""
    attributes = driver.function_attribute
    static_bytes = kernel.function.get_attribute(attributes.SHARED_SIZE_BYTES)
    allowed_bytes = kernel.function.get_attribute(attributes.MAX_DYNAMIC_SHARED_SIZE_BYTES)
    if static_bytes + dynamic_bytes > DEFAULT_SHARED_BYTES and dynamic_bytes > allowed_bytes:
        kernel.function.set_attribute(attributes.MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_bytes)


def kernel_resources(
    driver: Any, library: CudaLibrary | None, kernel: CudaKernel, configuration: LaunchConfiguration, handle: Any
) -> KernelResources:
    """Return resources by the loaded function's attributes; spills by ptxas; occupancy by the driver, where its library answers.

    Args:
        handle: the device, of PyCUDA.
    """
    attributes, ask = driver.function_attribute, kernel.function.get_attribute
    block_count = None
    if library is not None:
        thread_count = configuration.block.count
        block_count = library.active_block_count(kernel.cubin, kernel.entry, thread_count, configuration.dynamic_shared_memory_bytes)
    return KernelResources(
        register_count=ask(attributes.NUM_REGS),
        static_shared_memory_bytes=ask(attributes.SHARED_SIZE_BYTES),
        local_memory_bytes=ask(attributes.LOCAL_SIZE_BYTES),
        spill_store_bytes=kernel.usage.spill_store_bytes,
        spill_load_bytes=kernel.usage.spill_load_bytes,
        constant_memory_bytes=ask(attributes.CONST_SIZE_BYTES),
        max_threads_per_block=ask(attributes.MAX_THREADS_PER_BLOCK),
        active_block_count=block_count,
        theoretical_occupancy_ratio=None if block_count is None else _occupancy(driver, handle, block_count, configuration.block),
    )


def _occupancy(driver: Any, handle: Any, block_count: int, block: Dim3) -> float:
    """Return active warps over the most that a multiprocessor holds. A part of a warp takes a whole one's place."""
    names = driver.device_attribute
    warp_size = handle.get_attribute(names.WARP_SIZE)
    max_warp_count = handle.get_attribute(names.MAX_THREADS_PER_MULTIPROCESSOR) // warp_size
    return float(block_count * -(-block.count // warp_size) / max_warp_count)
