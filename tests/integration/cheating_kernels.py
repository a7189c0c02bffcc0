"""Kernels that work only once, as copies of N floats, and the sweep that measures one."""

from __future__ import annotations

from typing import Final

from kernalyse.services.core.model import BufferDefinition, BufferRole, DataType, KernelSweep
from tests.integration.test_worker import own_kernel, sweep_of

INDEX: Final = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < N)"
HONEST: Final = f"__global__ void copied(const float *a, float *c, int N) {{ {INDEX} c[i] = a[i]; }}"
SKIPPING: Final = f"__global__ void copied(const float *a, float *c, int N) {{ {INDEX} {{ if (isnan(c[i])) c[i] = a[i]; }} }}"
"""Works once: an output that holds a number is left as it is."""

RECALLING: Final = (
    "__global__ void copied(const float *a, float *c, float *kept, int N)"
    f" {{ {INDEX} {{ if (isnan(kept[i])) kept[i] = a[i]; c[i] = kept[i]; }} }}"
)
"""Keeps its first result where nobody looks, and hands it out from then on."""

STATIC: Final = (
    "__device__ float kept[1000]; __device__ int is_kept[1000]; __global__ void copied(const float *a, float *c, int N)"
    f" {{ {INDEX} {{ if (!is_kept[i]) {{ kept[i] = a[i]; is_kept[i] = 1; }} c[i] = kept[i]; }} }}"
)
"""As above, in memory that outlives a launch by itself; for N of 1000."""

BUFFERS: Final = tuple(
    BufferDefinition(name, ("N",), DataType.FLOAT32, role)
    for name, role in (("a", BufferRole.INPUT), ("c", BufferRole.OUTPUT), ("kept", BufferRole.OUTPUT))
)


def sweep(text: str, buffers: tuple[BufferDefinition, ...] = BUFFERS[:2]) -> KernelSweep:
    return sweep_of(own_kernel(text, "copied", buffers=buffers, reference="stream_copy"))
