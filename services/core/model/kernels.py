"""Kernels: their definitions, and how a request names one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DataType(StrEnum):
    """An element type of buffers and arithmetic."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BFLOAT16 = "bfloat16"
    TFLOAT32 = "tfloat32"  # on tensor cores only: buffers hold float32
    FLOAT8 = "float8"  # e4m3; on tensor cores only


class BufferRole(StrEnum):
    """Whether a kernel reads or writes a buffer."""

    INPUT = "INPUT"  # filled with random values, read by the kernel
    OUTPUT = "OUTPUT"  # filled with a poison value, written by the kernel
    INPUT_OUTPUT = "INPUT_OUTPUT"  # filled with random values, read and written; restored before verification


@dataclass(frozen=True, slots=True)
class BufferDefinition:
    """One pointer parameter of a kernel."""

    name: str
    shape: tuple[str, ...]  # expressions over the parameters, outermost dimension first
    dtype: DataType
    role: BufferRole


@dataclass(frozen=True, slots=True)
class ParameterDefinition:
    """One integer parameter that a sweep may vary."""

    name: str
    default_values: tuple[int, ...]
    min_value: int = 1


@dataclass(frozen=True, slots=True)
class ArgumentDefinition:
    """One scalar argument with a value of its own, e.g. alpha = 2.0."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class LaunchDefinition:
    """Launch configuration as expressions over the parameters and block_x, block_y, block_z."""

    block: tuple[str, ...]  # 1 to 3 expressions
    grid: tuple[str, ...]
    shared_memory_bytes: str = "0"  # dynamic shared memory
    requires: str = ""  # condition of the source on its launch; other launches are rejected. Empty: none


@dataclass(frozen=True, slots=True)
class KernelDefinition:
    """What the catalog knows of a kernel, and what a request may define for one outside it."""

    kernel_name: str  # unique name, also that of the __global__ function unless function_name says otherwise
    source_file_name: str
    launch: LaunchDefinition
    parameters: tuple[ParameterDefinition, ...]
    buffers: tuple[BufferDefinition, ...]
    function_name: str = ""  # the __global__ function; empty: kernel_name
    description: str = ""
    category: str = "other"  # matmul, elementwise, stream, transpose, reduction, normalization, other
    dtype: DataType = DataType.FLOAT32  # of the arithmetic; picks the compute ceiling
    arguments: tuple[ArgumentDefinition, ...] = ()
    flop: str | None = None  # floating-point operations of one launch; an FMA counts two
    bytes: str | None = None  # bytes one launch must move to and from device memory, each element once
    reference: str | None = None  # name of a NumPy reference in kernalyse.services.profiler.measuring.references
    relative_tolerance: float = 1e-5  # allowed max|output - reference| / max|reference|
    path: str = ""  # "fma" or "tensor": picks the compute ceiling. Empty: fma

    @property
    def function(self) -> str:
        """Return the name of the function in the source."""
        return self.function_name or self.kernel_name


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Source text that travels with a request, for kernels outside the catalog."""

    file_name: str
    text: str


@dataclass(frozen=True, slots=True)
class KernelSelection:
    """A kernel to run: by catalog name alone, or with source and definition of its own."""

    kernel_name: str  # with template arguments for one instance, e.g. "scale<float, 4>"
    source: KernelSource | None = None  # None: the catalog's
    definition: KernelDefinition | None = None  # None: the catalog's, or derived from the source when there is one
    bundle_digest: str | None = None  # uploaded directory with headers that the source includes
