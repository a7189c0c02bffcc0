"""Compiled kernels in PyCUDA's context: entry names, launch requirements, occupancy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from kernalyse.services.core.errors import CompileError, LaunchLimitError, UnknownKernelError, UnsupportedConstructError
from kernalyse.services.core.model import Device, Dim3, KernelResources
from kernalyse.services.profiler.backends.base import Build, LaunchConfiguration, check_kernel_limits
from kernalyse.services.profiler.backends.cuda.compiler import NOTHING, KernelUsage, NvccCompiler, build_options, read_report
from kernalyse.services.profiler.backends.cuda.driver import CudaLibrary
from kernalyse.services.profiler.kernel_sources.functions import SourceFunction, parse_kernel_source

# ---------------------------------------------------------------- kernels

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
    needs: LaunchRequirements
    function: Any = field(repr=False)
    module: Any = field(repr=False)  # unloaded with its last reference


def nvcc_architecture(device: Device) -> str:
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
    architecture = nvcc_architecture(device)
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
        needs=read_requirements(compiled.listings.get("ptx", b"").decode(errors="replace"), entry),
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
    """Allow the kernel more shared memory than the default.

    The limit is only ever raised, because a launch prepared earlier may need more than this one.
    """
    attributes = driver.function_attribute
    static_bytes = kernel.function.get_attribute(attributes.SHARED_SIZE_BYTES)
    allowed_bytes = kernel.function.get_attribute(attributes.MAX_DYNAMIC_SHARED_SIZE_BYTES)
    if static_bytes + dynamic_bytes > DEFAULT_SHARED_BYTES and dynamic_bytes > allowed_bytes:
        kernel.function.set_attribute(attributes.MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_bytes)


def kernel_resources(
    driver: Any, library: CudaLibrary | None, kernel: CudaKernel, configuration: LaunchConfiguration, handle: Any
) -> KernelResources:
    """Return the resources of a launch: attributes of the loaded function, spills from ptxas, occupancy from the driver where known.

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
    """Return the ratio of active warps to the multiprocessor's limit. A partial warp counts as one."""
    names = driver.device_attribute
    warp_size = handle.get_attribute(names.WARP_SIZE)
    max_warp_count = handle.get_attribute(names.MAX_THREADS_PER_MULTIPROCESSOR) // warp_size
    return float(block_count * -(-block.count // warp_size) / max_warp_count)


# ---------------------------------------------------------------- mangled names
# A compiled module has a kernel under its plain name after `extern "C"`, else under its mangled C++ name.

ENTRY = re.compile(rb"\.text\.([A-Za-z_$][\w$.]*)")  # every kernel of a cubin has a code section of its own


def find_entry(cubin: bytes, kernel: SourceFunction, file_name: str) -> str:
    """Return the entry of `kernel` in a cubin.

    Raises:
        UnsupportedConstructError: a template without an instance in the file.
        UnknownKernelError: the module has no such entry, or several overloads.
    """
    entries: list[str] = sorted({name.decode() for name in ENTRY.findall(cubin)})
    if kernel.name in entries:
        return kernel.name
    matching = [entry for entry in entries if _plain_name(entry) == kernel.name]
    if len(matching) == 1:
        return matching[0]
    if kernel.is_template and not matching:
        raise UnsupportedConstructError(
            f"{file_name}, line {kernel.line}",
            found=f"the template kernel {kernel.name}<{', '.join(kernel.template_parameters)}> without an instance",
            expected="its template arguments, or an explicit instance in the file",
            remedy=f"Name the instance, for example {kernel.example_instance}.",
        )
    raise UnknownKernelError(
        f"kernel {kernel.name} of {file_name}",
        found=f"the compiled kernels {', '.join(matching or entries)}",
        expected=f"exactly one {kernel.name}",
        remedy=f"Name the instance, for example {kernel.example_instance}."
        if kernel.is_template
        else 'Put extern "C" before it, or give its overloads names of their own.',
    )


def _plain_name(entry: str) -> str | None:
    """Return the function's own name in an Itanium-mangled one: `_Z5saxpyif` and `_ZN4math5saxpyEif` both give saxpy."""
    if not entry.startswith("_Z"):
        return None
    rest = entry[2:].removeprefix("N")
    name: str | None = None
    while found := re.match(r"\d+", rest):
        length = int(found[0])
        name, rest = rest[found.end() :][:length], rest[found.end() + length :]
    return name


# ---------------------------------------------------------------- launch requirements
# A kernel's PTX states whether all of its blocks must run at once, and whether they form clusters.

FUNCTION: Final = re.compile(r"^[^\n;{]*\.(entry|func)\b", re.MULTILINE)
ENTRY_NAME: Final = re.compile(r"\.entry\s+([\w$]+)")
GRID_HANDLE: Final = re.compile(r"%envreg[12]\b")  # where grid.sync() of cooperative groups finds what its blocks share
CLUSTER_USE: Final = re.compile(r"%cluster|\bbarrier\.cluster\b|\bmapa\b")
CLUSTER_SIZE: Final = re.compile(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")

MAX_CLUSTER_BLOCK_COUNT: Final = 8  # that every device with clusters takes; more have to be allowed kernel by kernel


@dataclass(frozen=True, slots=True)
class LaunchRequirements:
    """Requirements of a launch. is_cooperative: its blocks wait for each other. cluster: its blocks, if the kernel declares them."""

    is_cooperative: bool = False
    uses_clusters: bool = False
    cluster: Dim3 | None = None


NO_REQUIREMENTS: Final = LaunchRequirements()


def read_requirements(ptx: str, entry: str | None) -> LaunchRequirements:
    """Return the launch requirements of an entry, from its PTX and that of the functions that it may call.

    Args:
        entry: the kernel's name in machine code. None: not known, and then only a kernel alone in its file is.
    """
    starts = [found.start() for found in FUNCTION.finditer(ptx)]
    entries: dict[str, str] = {}
    functions = ""
    for start, end in pairwise([*starts, len(ptx)]):
        text = ptx[start:end]
        name = ENTRY_NAME.search(text.partition("\n")[0])
        if name is None:
            functions += text
        else:
            entries[name[1]] = text
    own = entries.get(entry) if entry is not None else next(iter(entries.values())) if len(entries) == 1 else None
    if own is None:
        return NO_REQUIREMENTS
    size = CLUSTER_SIZE.search(own)
    return LaunchRequirements(
        is_cooperative=GRID_HANDLE.search(own + functions) is not None,
        uses_clusters=CLUSTER_USE.search(own + functions) is not None,
        cluster=None if size is None else Dim3(*(int(extent or 1) for extent in size.groups())),
    )


def check_requirements(
    needs: LaunchRequirements, kernel_name: str, configuration: LaunchConfiguration, *, is_cooperation_possible: bool
) -> None:
    """Raise LaunchLimitError for a launch that does not meet the kernel's requirements.

    Raises:
        UnsupportedConstructError: blocks that wait for each other, where the backend knows ordinary launches alone; clusters
            whose size an attribute of the launch would have to tell, or that not every device takes.
        LaunchLimitError: a grid that is not made of whole clusters.
    """
    subject = f"launch of {kernel_name}"
    if needs.is_cooperative and not is_cooperation_possible:
        raise UnsupportedConstructError(
            subject,
            found="blocks that wait for each other (grid.sync() of cooperative groups)",
            expected="a backend that launches all blocks at once",
            remedy="Use --backend nvcc.",
        )
    if needs.cluster is None:
        if needs.uses_clusters:
            raise UnsupportedConstructError(
                subject,
                found="a thread block cluster without a size, which is left to an attribute of the launch",
                expected="the size in the source",
                remedy="Put __cluster_dims__(x, y, z) on the kernel; (1, 1, 1) is what it has without the attribute.",
            )
        return
    cluster, grid = needs.cluster, configuration.grid
    if cluster.count > MAX_CLUSTER_BLOCK_COUNT:
        raise UnsupportedConstructError(
            subject,
            found=f"clusters of {cluster.count} blocks",
            expected=f"at most {MAX_CLUSTER_BLOCK_COUNT}, which every device with clusters takes",
            remedy="Choose a smaller __cluster_dims__.",
        )
    if grid.x % cluster.x or grid.y % cluster.y or grid.z % cluster.z:
        raise LaunchLimitError(
            subject,
            found=f"grid {grid}",
            expected=f"multiples of its clusters of {cluster} blocks",
            remedy="Choose parameters, or a grid expression, that fill whole clusters.",
        )
