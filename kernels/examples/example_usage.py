"""Two matrix products side by side, in three steps: python example_usage.py

Writes benchmark_results.json, benchmark_report.txt and the figures to the working directory. Takes some seconds on a CPU.
"""

from pathlib import Path

import KernelBenchmarker as kb
import visualize

SOURCE = Path(__file__).with_name("matmul_kernels.cu")

# 1. Load the kernels.
naive = kb.load_kernel(SOURCE, "matmul_naive")
optimized = kb.load_kernel(SOURCE, "matmul_optimized")

# 2. Measure both at every combination of sizes. Without a range of its own, K copies M.
results = kb.benchmark([naive, optimized], N=[64, 128, 256], M=[64, 128, 256], iterations=20)

for result in results:
    N, M, K = (result.parameters[name] for name in ("N", "M", "K"))
    gflop_per_s = 2 * N * M * K / result.execution_time_ms / 1e6
    print(f"{result.kernel_name:<20} N={N:<4} M={M:<4} K={K:<4} {result.execution_time_ms:9.4f} ms {gflop_per_s:8.2f} GFLOP/s")

# 3. Draw them.
for path in visualize.visualize("benchmark_results.json"):
    print(f"wrote {path}")
