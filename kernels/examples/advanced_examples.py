"""What else load_kernel and benchmark can do: python advanced_examples.py [NAME]

Without a name every example runs, one after the other. Each takes a second or two on a CPU.
"""

import sys
from pathlib import Path

import KernelBenchmarker as kb
import numpy as np

HERE = Path(__file__).parent


def show(results):
    for result in results:
        parameters = " ".join(f"{name}={value}" for name, value in result.parameters.items())
        checked = result.metrics["verification"]["state"].lower().replace("_", " ")
        print(f"  {result.kernel_name:<18} {parameters:<22} {result.execution_time_ms:9.4f} ms  {checked}")


def verified_by_catalogue():
    """The catalogue knows what a matrix product is: sizes of the buffers, counts, reference and tolerance come from there."""
    kernels = [kb.load_kernel(HERE / "matmul_kernels.cu", name, reference="matmul_naive") for name in ("matmul_naive", "matmul_optimized")]
    with kb.KernelBenchmarker() as benchmarker:
        show(benchmarker.benchmark(kernels, [100, 200], [100], [50], iterations=20))


def verified_by_function():
    """A function with the kernel's own parameters writes into its arrays what the kernel should write."""

    def histogram(values, counts, N):
        counts[:100] += np.bincount(values[:N], minlength=100).astype(counts.dtype)

    kernel = kb.load_kernel(HERE / "vector_kernels.cu", "histogram", reference=histogram)
    with kb.KernelBenchmarker() as benchmarker:
        show(benchmarker.benchmark([kernel], N=[10_000, 100_000], iterations=20))


def double_precision():
    """Types come from the signature; a scalar that is no size gets its value here."""

    def daxpy(N, alpha, x, y):
        y += alpha * x

    kernel = kb.load_kernel(HERE / "vector_kernels.cu", "daxpy", arguments={"alpha": 2.5}, reference=daxpy, relative_tolerance=1e-14)
    with kb.KernelBenchmarker() as benchmarker:
        show(benchmarker.benchmark([kernel], N=[2**16, 2**20], iterations=20))


def own_grid():
    """One block per row: the grid is a function of the sizes, by their names."""
    kernel = kb.load_kernel(
        HERE / "vector_kernels.cu", "softmax_rows", block_size=(256, 1, 1), grid_size_func=lambda M: (M,), reference="softmax"
    )
    with kb.KernelBenchmarker() as benchmarker:
        show(benchmarker.benchmark([kernel], M=[64, 256], N=[512], iterations=20))


def best_block():
    """The same kernel with several blocks; metrics has the block of each result."""
    blocks = [(8, 8, 1), (16, 16, 1), (32, 8, 1), (32, 32, 1)]
    kernels = [kb.load_kernel(HERE / "kernels.cu", "my_kernel", block_size=block) for block in blocks]
    with kb.KernelBenchmarker() as benchmarker:
        results = benchmarker.benchmark(kernels, N=[256], iterations=20)
    best = min(results, key=lambda result: result.execution_time_ms)
    print(f"  best block {best.metrics['block']}: {best.execution_time_ms:.4f} ms")


def tensor_cores():
    """Half precision on tensor cores; only NVIDIA GPUs have them."""

    def product(a, b, res, N, M, K):
        left, right = a[: N * K].reshape(N, K).astype(np.float64), b[: K * M].reshape(K, M).astype(np.float64)
        res[: N * M] = (left @ right).ravel()

    kernel = kb.load_kernel(
        HERE / "tensor_kernels.cu",
        "matmul_tensor",
        block_size=(32, 1, 1),
        grid_size_func=lambda N, M: (M // 16, N // 16),
        reference=product,
        relative_tolerance=1e-3,
        dtype="float16",
        path="tensor",
    )
    with kb.KernelBenchmarker() as benchmarker:
        try:
            show(benchmarker.benchmark([kernel], N=[256, 1024], iterations=20))
        except Exception as error:  # every error says what was found and what to do
            print(f"  not here: {error}")


EXAMPLES = (verified_by_catalogue, verified_by_function, double_precision, own_grid, best_block, tensor_cores)

if __name__ == "__main__":
    for example in EXAMPLES:
        if len(sys.argv) < 2 or example.__name__ in sys.argv[1:]:
            print(f"{example.__name__}: {example.__doc__}")
            example()
