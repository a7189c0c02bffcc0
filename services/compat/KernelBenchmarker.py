"""Benchmarks kernels of .cu files from Python: `import KernelBenchmarker as kb`.

    kernel = kb.load_kernel("matmul_kernels.cu", "matmul_naive")
    results = kb.benchmark([kernel], N=[128, 256], M=[128, 256], K=[128, 256])

Installed, this file is also a top-level module. It holds names only: the work is done by the profiler's own engine, in the
calling process. docs/kernel_benchmarker.md says what maps to what.
"""

from __future__ import annotations

try:
    from services.compat.benchmarking.benchmarker import KernelBenchmarker, benchmark
    from services.compat.benchmarking.kernel_config import KernelConfig, load_kernel
    from services.compat.benchmarking.results import BenchmarkResult
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"KernelBenchmarker needs the Python module {error.name}. Install it with: pip install 'kernalyse[profiler,opencl]'",
        name=error.name,
    ) from error

__all__ = ["BenchmarkResult", "KernelBenchmarker", "KernelConfig", "benchmark", "load_kernel"]
