"""Any Python callable under the same engine as kernels: python time_callables.py, or cell by cell.

With PyTorch, CuPy, CUDA Python or PyCUDA in use, GPU work is timed by CUDA events on the current stream; Triton's kernels too.
"""

# %%
import numpy as np

import kernalyse

short = kernalyse.Measuring(min_duration_s=0.05, max_duration_s=0.5)
N = 2**18
x, y = np.random.default_rng(0).random((2, N), np.float32)
out = np.empty_like(x)

# %% Samples until the median is known well enough; flop and bytes place it under the roofline
add = kernalyse.bench(
    lambda: np.add(x, y, out=out), name="numpy add", parameters={"N": N}, flop=N, bytes=3 * 4 * N, category="elementwise", measuring=short
)
print(add)

# %% A Triton or PyTorch function goes the same way:
#     kernalyse.bench(lambda: torch.nn.functional.gelu(x))
#     kernalyse.bench(lambda: my_triton_kernel[grid](x, y, BLOCK=1024), bytes=2 * x.nbytes)

# %% Which of two is faster, in alternating blocks of one process
comparison = kernalyse.compare(lambda: x + y, lambda: np.add(x, y, out=out), names=("into new memory", "into old memory"), measuring=short)
print(comparison)

# %% Into the dashboard, with all samples
with kernalyse.connect(start=True) as client:
    for result in (add, comparison):
        print(result.send(client))
