# ruff: noqa: E501 - a kernel text reads best as it is
"""CUDA constructs as small kernels with what NumPy says they compute; each is `k(const float* x, float* y, int n)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.model import Dim3

Array = npt.NDArray[np.float32]

THREADS = 64
COUNT = 4 * THREADS
BLOCK = Dim3(THREADS)


@dataclass(frozen=True, slots=True)
class Construct:
    name: str
    body: str  # of the kernel, which has x, y, n and i = the global thread index
    expected: Callable[[Array], Array]  # y for this x
    before: str = ""  # text ahead of the kernel
    pocl_refuses: str = ""  # what PoCL's refusal names; empty: it runs there too
    head: str = "__global__ void k(const float* x, float* y, int n)"
    dynamic_shared_memory_bytes: int = 0
    tolerance: float = 1e-5
    block: Dim3 = BLOCK

    @property
    def text(self) -> str:
        return f"{self.before}\n{self.head} {{\n  int i = blockIdx.x * blockDim.x + threadIdx.x;\n{self.body}\n}}\n"


def _blocks(x: Array) -> Array:
    return x.reshape(-1, THREADS)


def _reversed_blocks(x: Array) -> Array:
    return _blocks(x)[:, ::-1].reshape(-1)


def _block_sums(x: Array) -> Array:
    return np.repeat(_blocks(x).sum(1), THREADS)


def _warps(x: Array) -> Array:
    return x.reshape(-1, 32)


def _only_first(value: float) -> Callable[[Array], Array]:
    def expected(x: Array) -> Array:
        y = np.zeros_like(x)
        y[0] = value
        return y

    return expected


REVERSE = "  s[threadIdx.x] = x[i];\n  __syncthreads();\n  y[i] = s[blockDim.x - 1 - threadIdx.x];"

CONSTRUCTS = (
    Construct("global function", "  if (i < n) y[i] = x[i] + 1.0f;", lambda x: x + 1),
    Construct("extern C kernel", "  y[i] = x[i];", lambda x: x, head='extern "C" __global__ void k(const float* x, float* y, int n)'),
    Construct(
        "restrict",
        "  y[i] = 2 * x[i];",
        lambda x: 2 * x,
        head="__global__ void k(const float* __restrict__ x, float* __restrict__ y, int n)",
    ),
    Construct(
        "launch bounds", "  y[i] = x[i];", lambda x: x, head="__global__ void __launch_bounds__(64) k(const float* x, float* y, int n)"
    ),
    Construct(
        "launch bounds of two",
        "  y[i] = x[i];",
        lambda x: x,
        head="__global__ __launch_bounds__(64, 2) void k(const float* x, float* y, int n)",
    ),
    Construct(
        "built-in indices",
        "  y[i] = threadIdx.x + 100 * blockIdx.x + 10000 * blockDim.x + gridDim.x * 1000000 + threadIdx.y + blockIdx.z;",
        lambda x: (np.arange(COUNT) % THREADS + 100 * (np.arange(COUNT) // THREADS) + 10000 * THREADS + 4_000_000).astype(np.float32),
    ),
    Construct(
        "unsigned indices",
        "  y[i] = threadIdx.x - 1 > 5 ? 1.0f : 0.0f;",
        lambda x: (((np.arange(COUNT) % THREADS) - 1) % 2**32 > 5).astype(np.float32),
    ),
    Construct(
        "whole index vectors",
        "  dim3 t = threadIdx;\n  uint3 b = blockIdx;\n  y[i] = t.x + b.x * blockDim.x + 0 * t.y;",
        lambda x: np.arange(COUNT, dtype=np.float32),
    ),
    Construct(
        "index below zero",
        "  int before = threadIdx.x - 1;\n  unsigned wrapped = threadIdx.x - 1;\n  y[i] = (before < 0) + 2 * (wrapped > 1000u) + 4 * (threadIdx.x < before);",
        lambda x: np.tile(np.where(np.arange(THREADS) == 0, 7, 0), 4).astype(np.float32),
    ),
    Construct("mixed min and max", "  y[i] = x[min(threadIdx.x, n - 1)] + max(3, (int)blockIdx.y);", lambda x: np.tile(x[:THREADS], 4) + 3),
    Construct("device helper", "  y[i] = twice(x[i]);", lambda x: 2 * x, before="__device__ float twice(float v) { return 2.0f * v; }"),
    Construct(
        "forced inline helper",
        "  y[i] = twice(x[i]);",
        lambda x: 2 * x,
        before="static __device__ __forceinline__ float twice(float v) { return 2.0f * v; }",
    ),
    Construct(
        "helper with a global pointer",
        "  put(y, i, get(x, i));",
        lambda x: x,
        before="__device__ float get(const float* p, int j) { return p[j]; }\n__device__ void put(float* p, int j, float v) { p[j] = v; }",
    ),
    Construct(
        "helper with a pointer to shared memory",
        "  __shared__ float s[64];\n  s[threadIdx.x] = x[i];\n  __syncthreads();\n  y[i] = get(s, 63 - threadIdx.x);",
        _reversed_blocks,
        before="__device__ float get(const float* p, int j) { return p[j]; }",
    ),
    Construct(
        "helper with pointers into three memories",
        "  __shared__ float s[64];\n  float own[2] = {1.0f, 2.0f};\n  s[threadIdx.x] = x[i];\n  __syncthreads();\n"
        "  y[i] = get(x, i) + get(s, threadIdx.x) + get(own, 1);",
        lambda x: 2 * x + 2,
        before="__device__ float get(const float* p, int j);\n__device__ float get(const float* p, int j) { return p[j]; }",
    ),
    Construct(
        "helper calling a helper",
        "  y[i] = outer(x + i);",
        lambda x: x + 1,
        before="__device__ float inner(const float* p) { return *p; }\n__device__ float outer(const float* p) { const float* q = p; return inner(q) + 1; }",
    ),
    Construct(
        "barrier in a helper",
        "  __shared__ float s[64];\n  s[threadIdx.x] = x[i];\n  __syncthreads();\n  y[i] = sum(s, threadIdx.x);",
        _block_sums,
        before="__device__ float sum(float* s, int t) {\n  for (int d = 32; d > 0; d /= 2) {\n    if (t < d) s[t] += s[t + d];\n"
        "    __syncthreads();\n  }\n  return s[0];\n}",
    ),
    Construct(
        "overloaded helpers",
        "  y[i] = f(x[i]) + f(1);",
        lambda x: x + 3,
        before="__device__ float f(float v) { return v; }\n__device__ int f(int v) { return v + 2; }",
    ),
    Construct("local pointer", "  const float* p = x + i;\n  float* q = &y[i];\n  *q = *p + p[0];", lambda x: 2 * x),
    Construct("pointer set later", "  const float* p;\n  p = x;\n  p += i;\n  y[i] = *p;", lambda x: x),
    Construct("auto", "  auto p = x + i;\n  auto v = *p;\n  y[i] = v;", lambda x: x),
    Construct("static shared array", "  __shared__ float s[64];\n" + REVERSE, _reversed_blocks),
    Construct(
        "two-dimensional shared array",
        "  __shared__ float s[8][9];\n  s[threadIdx.x % 8][threadIdx.x / 8] = x[i];\n  __syncthreads();\n  y[i] = s[threadIdx.x / 8][threadIdx.x % 8];",
        lambda x: _blocks(x).reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1),
    ),
    Construct(
        "shared scalar",
        "  __shared__ float first;\n  if (threadIdx.x == 0) first = x[i];\n  __syncthreads();\n  y[i] = first;",
        lambda x: np.repeat(x[::THREADS], THREADS),
    ),
    Construct(
        "nested shared arrays of one name",
        "  if (n > 1) {\n    __shared__ float s[64];\n    s[threadIdx.x] = x[i];\n    __syncthreads();\n    y[i] = s[63 - threadIdx.x];\n  }\n"
        "  for (int j = 0; j < 1; j++) {\n    __shared__ int s[64];\n    s[threadIdx.x] = j + 5;\n    __syncthreads();\n    y[i] += s[0];\n  }",
        lambda x: _reversed_blocks(x) + 5,
    ),
    Construct(
        "dynamic shared memory", "  extern __shared__ float s[];\n" + REVERSE, _reversed_blocks, dynamic_shared_memory_bytes=4 * THREADS
    ),
    Construct(
        "dynamic shared memory at file scope",
        REVERSE,
        _reversed_blocks,
        before="extern __shared__ float s[];",
        dynamic_shared_memory_bytes=4 * THREADS,
    ),
    Construct(
        "dynamic shared memory of bytes",
        "  extern __shared__ __align__(16) unsigned char raw[];\n  float* s = (float*)raw;\n" + REVERSE,
        _reversed_blocks,
        dynamic_shared_memory_bytes=4 * THREADS,
    ),
    Construct(
        "single-precision math",
        "  float v = x[i];\n  y[i] = expf(v) + sqrtf(v) + rsqrtf(v + 1.0f) + fmaxf(v, 0.5f) + fminf(v, 0.5f) + fabsf(-v) + logf(v + 1.0f) + "
        "powf(v, 2.0f) + tanhf(v) + sinf(v) + cosf(v) + floorf(v) + fmaf(v, v, v) + erff(v);",
        lambda x: (
            np.exp(x)
            + np.sqrt(x)
            + 1 / np.sqrt(x + 1)
            + np.maximum(x, 0.5)
            + np.minimum(x, 0.5)
            + x
            + np.log(x + 1)
            + x**2
            + np.tanh(x)
            + np.sin(x)
            + np.cos(x)
            + np.floor(x)
            + x * x
            + x
            + _erf(x)
        ),
    ),
    Construct(
        "intrinsics",
        "  float v = x[i];\n  y[i] = __expf(v) + __fdividef(v, 2.0f) + __logf(v + 1.0f) + __saturatef(v + 0.5f) + __int_as_float(__float_as_int(v)) "
        "+ __popc(7) + __clz(1) + __ffs(8) + __ldg(x + i) + __fmaf_rn(v, 2.0f, 1.0f);",
        lambda x: np.exp(x) + x / 2 + np.log(x + 1) + np.clip(x + 0.5, 0, 1) + x + 3 + 31 + 4 + x + 2 * x + 1,
        tolerance=1e-4,
    ),
    Construct(
        "infinity and limits",
        "  y[i] = x[i] > -INFINITY && x[i] < FLT_MAX ? 1.0f : 0.0f;",
        np.ones_like,
        before="#include <cfloat>\n#include <cmath>",
    ),
    Construct(
        "float atomicAdd on global memory",
        "  y[i] = 0;\n  if (blockIdx.x == 0) atomicAdd(&y[0], 1.0f);",
        _only_first(COUNT),
        block=Dim3(COUNT),
    ),
    Construct(
        "float atomicAdd on shared memory",
        "  __shared__ float sum;\n  if (threadIdx.x == 0) sum = 0.0f;\n  __syncthreads();\n  atomicAdd(&sum, x[i]);\n  __syncthreads();\n  y[i] = sum;",
        _block_sums,
    ),
    Construct(
        "int atomics",
        "  __shared__ int c[6];\n  if (threadIdx.x < 6) c[threadIdx.x] = 0;\n  __syncthreads();\n  atomicAdd(&c[0], 2);\n  atomicMax(&c[1], (int)threadIdx.x);\n"
        "  atomicCAS(&c[2], 0, 7);\n  atomicSub(c + 3, 1);\n  atomicExch(&c[4], 9);\n  atomicMin(&c[5], -3);\n  __syncthreads();\n"
        "  y[i] = c[0] + c[1] + c[2] + c[3] + c[4] + c[5];",
        lambda x: np.full_like(x, 128 + 63 + 7 - 64 + 9 - 3),
    ),
    Construct(
        "atomicAdd in a helper",
        "  __shared__ int c;\n  if (threadIdx.x == 0) c = 0;\n  __syncthreads();\n  count(&c);\n  __syncthreads();\n  y[i] = c;",
        lambda x: np.full_like(x, THREADS),
        before="__device__ void count(int* p) { atomicAdd(p, 1); }",
    ),
    Construct(
        "vector types",
        "  float4 a = make_float4(x[i], 1.0f, 2, 3);\n  float2 b = make_float2(a.x, a.w);\n  a.y += b.y;\n  y[i] = a.x + a.y + a.z;",
        lambda x: x + 6,
    ),
    Construct(
        "float4 by reinterpret_cast",
        "  if (i < n / 4) {\n    float4 v = reinterpret_cast<const float4*>(x)[i];\n    v.x += 1;\n    v.w *= 2;\n    reinterpret_cast<float4*>(y)[i] = v;\n  }",
        lambda x: (x.reshape(-1, 4) * np.array([1, 1, 1, 2], np.float32) + np.array([1, 0, 0, 0], np.float32)).reshape(-1),
    ),
    Construct(
        "float2 by C cast",
        "  if (i < n / 2) {\n    const float2* p = (const float2*)x;\n    ((float2*)y)[i] = make_float2(p[i].y, p[i].x);\n  }",
        lambda x: x.reshape(-1, 2)[:, ::-1].reshape(-1),
    ),
    Construct(
        "float4 in shared memory",
        "  __shared__ float s[64];\n  s[threadIdx.x] = x[i];\n  __syncthreads();\n  float4 v = *reinterpret_cast<float4*>(&s[threadIdx.x / 4 * 4]);\n"
        "  y[i] = v.x + v.y + v.z + v.w;",
        lambda x: np.repeat(x.reshape(-1, 4).sum(1), 4),
    ),
    Construct("static_cast", "  y[i] = static_cast<float>(static_cast<int>(x[i] * 10.0f));", lambda x: np.floor(x * 10)),
    Construct("functional cast", "  y[i] = float(int(x[i] * 10.0f));", lambda x: np.floor(x * 10)),
    Construct(
        "constexpr",
        "  constexpr int W = 2 * T;\n  constexpr float F = 2.0f;\n  __shared__ float s[W];\n  s[threadIdx.x] = x[i] * Q * F;\n  y[i] = s[threadIdx.x];",
        lambda x: x,
        before="constexpr int T = 32;\nstatic constexpr float Q = 0.5f;",
    ),
    Construct(
        "const at file scope",
        "  __shared__ float s[T];\n  s[threadIdx.x] = x[i];\n  y[i] = s[threadIdx.x];",
        lambda x: x,
        before="const int T = 64;",
    ),
    Construct("constant memory", "  y[i] = x[i] * c[1];", lambda x: 2 * x, before="__constant__ float c[2] = {1.0f, 2.0f};"),
    Construct(
        "macros",
        "  __shared__ float s[T];\n  s[threadIdx.x] = TWICE(x[i]);\n  SYNC;\n  y[i] = s[threadIdx.x];",
        lambda x: 2 * x,
        before="#define T 64\n#define TWICE(v) (2.0f * (v))\n#define SYNC __syncthreads()",
    ),
    Construct(
        "struct",
        "  Pair p = {x[i], 1.0f};\n  y[i] = total(p);",
        lambda x: x + 1,
        before="struct Pair { float a; float b; };\n__device__ float total(Pair p) { return p.a + p.b; }",
    ),
    Construct("long long", "  long long a = 1LL << 40;\n  unsigned long long b = a;\n  y[i] = (float)(b >> 40) + x[i];", lambda x: x + 1),
    Construct("unrolled loop", "  float v = 0;\n#pragma unroll\n  for (int j = 0; j < 4; ++j) v += x[i];\n  y[i] = v;", lambda x: 4 * x),
    Construct(
        "early return",
        "  if (i >= n / 2) return;\n  y[i] = x[i];",
        lambda x: np.concatenate((x[: COUNT // 2], np.zeros(COUNT // 2, np.float32))),
    ),
    Construct(
        "host code beside the kernel",
        "  y[i] = x[i];",
        lambda x: x,
        before="#include <cuda_runtime.h>\n#include <vector>\n#include <cstdio>\nusing namespace std;\nstatic vector<float> table;\n"
        '__global__ void other(float** p) { printf("%p", p); }\nint main() { other<<<1, 1>>>(nullptr); return 0; }',
    ),
    Construct(
        "helper template",
        "  y[i] = add(x[i], x[i]) + times<3>(x + i);",
        lambda x: 5 * x,
        before="template <typename T> __device__ T add(T a, T b) { return a + b; }\ntemplate <int N> __device__ float times(const float* p) { return N * *p; }",
        pocl_refuses="a template",
    ),
    Construct(
        "template over a pointer's type",
        "  __shared__ float s[64];\n  s[threadIdx.x] = x[i];\n  y[i] = load(s, threadIdx.x) + load(x, i);",
        lambda x: 2 * x,
        before="template <typename T> __device__ T load(const T* p, int j) { return p[j]; }",
        pocl_refuses="a template",
    ),
    Construct(
        "reference parameter",
        "  float v = x[i];\n  bump(v);\n  y[i] = v;",
        lambda x: x + 1,
        before="__device__ void bump(float& v) { v += 1; }",
        pocl_refuses="a reference",
    ),
    Construct("lambda", "  auto f = [&](float v) { return v + x[i]; };\n  y[i] = f(1.0f);", lambda x: x + 1, pocl_refuses="a lambda"),
    Construct(
        "member function",
        "  Pair p = {x[i], 1.0f};\n  y[i] = p.total();",
        lambda x: x + 1,
        before="struct Pair { float a, b; __device__ float total() const { return a + b; } };",
        pocl_refuses="a member function",
    ),
    Construct("if constexpr", "  constexpr bool on = true;\n  if constexpr (on) y[i] = x[i];", lambda x: x),
    Construct(
        "shuffle down",
        "  float v = x[i];\n  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);\n  if (threadIdx.x % 32 == 0) y[i] = v;",
        lambda x: np.where(np.arange(COUNT) % 32 == 0, np.repeat(_warps(x).sum(1), 32), 0).astype(np.float32),
        pocl_refuses="__shfl_down_sync",
    ),
    Construct(
        "shuffle down past the edge",
        "  y[i] = __shfl_down_sync(0xffffffffu, x[i], 5);",
        lambda x: np.where(np.arange(COUNT) % 32 < 27, np.roll(x, -5), x),
        pocl_refuses="__shfl_down_sync",
    ),
    Construct(
        "shuffle up",
        "  y[i] = __shfl_up_sync(0xffffffffu, x[i], 1);",
        lambda x: np.where(np.arange(COUNT) % 32 > 0, np.roll(x, 1), x),
        pocl_refuses="__shfl_up_sync",
    ),
    Construct(
        "shuffle xor",
        "  float v = x[i];\n  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffff, v, d);\n  y[i] = v;",
        lambda x: np.repeat(_warps(x).sum(1), 32),
        pocl_refuses="__shfl_xor_sync",
    ),
    Construct(
        "shuffle from a lane", "  y[i] = __shfl_sync(0xffffffff, x[i], 3, 8);", lambda x: np.repeat(x[3::8], 8), pocl_refuses="__shfl_sync"
    ),
    Construct(
        "warp votes",
        "  y[i] = __any_sync(0xffffffff, threadIdx.x == 3) + 2 * __all_sync(0xffffffff, n > 0) + 4 * __popc(__ballot_sync(0xffffffff, i % 2));",
        lambda x: np.where(np.arange(COUNT) % THREADS < 32, 1, 0).astype(np.float32) + 2 + 64,
        pocl_refuses="__any_sync",
    ),
)


def _erf(x: Array) -> Array:
    from math import erf

    return np.array([erf(value) for value in x], np.float32)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What no OpenCL runtime takes: construct and line as the error names them."""

    name: str
    text: str
    line: int
    names: str


REFUSALS = (
    Refusal("printf", '__global__ void k(float* y) {\n  printf("%f", y[0]);\n}', 2, "printf"),
    Refusal("half", "__global__ void k(float* y) {\n\n  __half h;\n}", 3, "__half"),
    Refusal("header", "#include <cuda_fp16.h>\n__global__ void k(float* y) { y[0] = 1; }", 1, "cuda_fp16.h"),
    Refusal("own header", '\n#include "mine.h"\n__global__ void k(float* y) { y[0] = 1; }', 2, "mine.h"),
    Refusal("template kernel", "template <typename T>\n__global__ void k(T* y) { y[0] = 1; }", 2, "template kernel k<typename T>"),
    Refusal("pointer to pointers", "__global__ void k(\n    float** y) { y[0][0] = 1; }", 2, "a pointer to pointers"),
    Refusal("device variable", "__device__ float g;\n__global__ void k(float* y) { y[0] = g; }", 1, "the __device__ variable g"),
    Refusal(
        "constant without value", "__constant__ float c[4];\n__global__ void k(float* y) { y[0] = c[0]; }", 1, "the __constant__ variable c"
    ),
    Refusal(
        "shared memory in a helper",
        "__device__ float f() {\n  __shared__ float s[2];\n  s[0] = 1;\n  return s[0];\n}\n__global__ void k(float* y) { y[0] = f(); }",
        2,
        "__shared__ in a __device__ function",
    ),
    Refusal("assembly", '__global__ void k(float* y) {\n  asm volatile("nop;");\n}', 2, "inline assembly"),
    Refusal(
        "nested launch",
        "__global__ void j(float* y) {}\n__global__ void k(float* y) {\n  j<<<1, 1>>>(y);\n}",
        3,
        "a kernel launch inside device code",
    ),
    Refusal("float3 array", "__global__ void k(float3* y) {\n  y[0].x = 1;\n}", 1, "float3 in memory"),
)

POCL_REFUSALS = (
    Refusal(
        "pointer of unknown memory",
        "__global__ void k(float* y, int n) {\n  __shared__ float s[4];\n  float* p;\n  if (n > 2)\n    p = y;\n  else\n    p = s;\n  p[0] = 1;\n}",
        7,
        "the pointer p",
    ),
    Refusal(
        "pointer into two memories",
        "__global__ void k(float* y, int n) {\n  __shared__ float s[4];\n  float* p = y;\n  p = s;\n  p[0] = 1;\n}",
        4,
        "the pointer p",
    ),
    Refusal(
        "function returning a pointer",
        "__device__ float* at(float* p, int j) { return p + j; }\n__global__ void k(float* y) {\n  *at(y, 1) = 1;\n}",
        1,
        "returns a pointer",
    ),
)
