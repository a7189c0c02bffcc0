"""Benchmarks of kernels in .cu files from Python: `import KernelBenchmarker as kb`.

    kernel = kb.load_kernel("matmul_kernels.cu", "matmul_naive")
    results = kb.benchmark([kernel], N=[128, 256], M=[128, 256], K=[128, 256])

Installed, this file is also a top-level module. It only re-exports names: the work is done by the profiler's own engine, in the
calling process. docs/kernel_benchmarker.md lists the correspondences.
"""

from __future__ import annotations

try:
    import tree_sitter  # noqa: F401 - what reads sources imports it late

    from kernalyse.services.compat.kernel_benchmarker.benchmark import KernelBenchmarker, benchmark
    from kernalyse.services.compat.kernel_benchmarker.kernels import KernelConfig, load_kernel
    from kernalyse.services.compat.kernel_benchmarker.results import BenchmarkResult
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"KernelBenchmarker needs the Python module {error.name}. Install it with: pip install 'kernalyse[profiler,opencl]'",
        name=error.name,
    ) from error

__all__ = ["BenchmarkResult", "KernelBenchmarker", "KernelConfig", "benchmark", "load_kernel"]
