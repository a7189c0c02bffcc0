"""The prelude that defines CUDA's names in OpenCL, and the constructs that OpenCL cannot express."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NoReturn

from tree_sitter import Node

from kernalyse.services.core.errors import UnsupportedConstructError
from kernalyse.services.profiler.kernel_sources.syntax import descendants, node_text, source_location

# ---------------------------------------------------------------- prelude
# The prelude goes before a translated kernel and defines CUDA's names in terms of OpenCL's.
#
# `CPLUSPLUS` is for runtimes with C++ for OpenCL 2021, `C` for those with OpenCL C 1.2. Names come as macros where OpenCL has
# the same thing under another name, and as overloads where CUDA accepts types that OpenCL finds ambiguous.

_ONE_ARGUMENT_MATH: Final = """
    acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 exp10 expm1 fabs floor log log2 log10 log1p
    rint round rsqrt sin sinh sqrt tan tanh tgamma trunc
""".split()  # noqa: SIM905 - words read better as words
_TWO_ARGUMENT_MATH: Final = ("atan2", "copysign", "fdim", "fmax", "fmin", "fmod", "hypot", "pow")
_VECTOR_TYPES: Final = {"float": "float", "int": "int", "uint": "uint", "double": "double", "char": "char", "uchar": "uchar"}


def _math_macros() -> str:
    """Return macros for single-precision functions: `expf(x)` is OpenCL's `exp` at float."""
    one = [f"#define {name}f(x) {name}((float)(x))" for name in _ONE_ARGUMENT_MATH]
    two = [f"#define {name}f(x, y) {name}((float)(x), (float)(y))" for name in _TWO_ARGUMENT_MATH]
    return "\n".join(one + two)


def _vector_macros(construct: str) -> str:
    """Return macros for `make_float4(x, y, z, w)` and the like; `construct` is how the dialect writes a vector literal."""
    lines = []
    for name, element in _VECTOR_TYPES.items():
        for count in (2, 3, 4):
            letters = ", ".join("xyzw"[:count])
            values = ", ".join(f"({element})({letter})" for letter in "xyzw"[:count])
            lines.append(f"#define make_{name}{count}({letters}) " + construct.format(type=f"{name}{count}", values=values))
    return "\n".join(lines)


_COMMON: Final = """
#define __global__ __kernel
#define __shared__ __local
#define __constant__ __constant
#define __host__
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))
#define __syncthreads() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define __threadfence_block() mem_fence(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define __ldg(p) (*(p))
#define warpSize 32
#define dim3 uint3
#define int8_t char
#define uint8_t uchar
#define int16_t short
#define uint16_t ushort
#define int32_t int
#define uint32_t uint
#define int64_t long
#define uint64_t ulong
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_PI_F M_PI_F
#define fmaf(x, y, z) fma((float)(x), (float)(y), (float)(z))
#define sincosf(x, s, c) (*(s) = sincos((float)(x), c))
#define __expf(x) native_exp((float)(x))
#define __exp10f(x) native_exp10((float)(x))
#define __logf(x) native_log((float)(x))
#define __log2f(x) native_log2((float)(x))
#define __log10f(x) native_log10((float)(x))
#define __sinf(x) native_sin((float)(x))
#define __cosf(x) native_cos((float)(x))
#define __tanf(x) native_tan((float)(x))
#define __powf(x, y) native_powr((float)(x), (float)(y))
#define __fdividef(x, y) native_divide((float)(x), (float)(y))
#define __frcp_rn(x) (1.0f / (float)(x))
#define __fsqrt_rn(x) sqrt((float)(x))
#define __fadd_rn(x, y) ((float)(x) + (float)(y))
#define __fmul_rn(x, y) ((float)(x) * (float)(y))
#define __fmaf_rn(x, y, z) fma((float)(x), (float)(y), (float)(z))
#define __saturatef(x) clamp((float)(x), 0.0f, 1.0f)
#define __float_as_int(x) as_int(x)
#define __int_as_float(x) as_float(x)
#define __float_as_uint(x) as_uint(x)
#define __uint_as_float(x) as_float(x)
#define __float2int_rn(x) convert_int_rte(x)
#define __float2int_rz(x) convert_int_rtz(x)
#define __float2int_rd(x) convert_int_rtn(x)
#define __float2int_ru(x) convert_int_rtp(x)
#define __int2float_rn(x) convert_float_rte(x)
#define __mul24(x, y) mul24(x, y)
#define __popc(x) popcount((uint)(x))
#define __clz(x) ((int)clz((uint)(x)))
#define __ffs(x) ((x) == 0 ? 0 : 32 - (int)clz((uint)((x) & -(x))))
"""

_CPLUSPLUS_ONLY: Final = """
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __threadfence() atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_acq_rel, memory_scope_device)
inline uint3 kernalyse_local_id() { return (uint3)((uint)get_local_id(0), (uint)get_local_id(1), (uint)get_local_id(2)); }
inline uint3 kernalyse_group_id() { return (uint3)((uint)get_group_id(0), (uint)get_group_id(1), (uint)get_group_id(2)); }
inline uint3 kernalyse_local_size() { return (uint3)((uint)get_local_size(0), (uint)get_local_size(1), (uint)get_local_size(2)); }
inline uint3 kernalyse_group_count() { return (uint3)((uint)get_num_groups(0), (uint)get_num_groups(1), (uint)get_num_groups(2)); }
#define threadIdx kernalyse_local_id()
#define blockIdx kernalyse_group_id()
#define blockDim kernalyse_local_size()
#define gridDim kernalyse_group_count()

inline uint min(uint a, int b) { return min(a, (uint)b); }
inline uint min(int a, uint b) { return min((uint)a, b); }
inline uint max(uint a, int b) { return max(a, (uint)b); }
inline uint max(int a, uint b) { return max((uint)a, b); }
inline float abs(float x) { return fabs(x); }
inline double abs(double x) { return fabs(x); }
inline float pow(float x, int y) { return pown(x, y); }

#define KERNALYSE_RELAXED static_cast<memory_order>(memory_order_relaxed), static_cast<memory_scope>(memory_scope_device)
#define KERNALYSE_FETCH(cuda_name, type, atomic_type, opencl_name) \\
  inline type cuda_name(type* p, type v) { return opencl_name((volatile atomic_type*)p, v, KERNALYSE_RELAXED); }
KERNALYSE_FETCH(atomicAdd, int, atomic_int, atomic_fetch_add_explicit)
KERNALYSE_FETCH(atomicAdd, uint, atomic_uint, atomic_fetch_add_explicit)
KERNALYSE_FETCH(atomicSub, int, atomic_int, atomic_fetch_sub_explicit)
KERNALYSE_FETCH(atomicSub, uint, atomic_uint, atomic_fetch_sub_explicit)
KERNALYSE_FETCH(atomicMin, int, atomic_int, atomic_fetch_min_explicit)
KERNALYSE_FETCH(atomicMin, uint, atomic_uint, atomic_fetch_min_explicit)
KERNALYSE_FETCH(atomicMax, int, atomic_int, atomic_fetch_max_explicit)
KERNALYSE_FETCH(atomicMax, uint, atomic_uint, atomic_fetch_max_explicit)
KERNALYSE_FETCH(atomicAnd, uint, atomic_uint, atomic_fetch_and_explicit)
KERNALYSE_FETCH(atomicAnd, int, atomic_int, atomic_fetch_and_explicit)
KERNALYSE_FETCH(atomicOr, uint, atomic_uint, atomic_fetch_or_explicit)
KERNALYSE_FETCH(atomicOr, int, atomic_int, atomic_fetch_or_explicit)
KERNALYSE_FETCH(atomicXor, uint, atomic_uint, atomic_fetch_xor_explicit)
KERNALYSE_FETCH(atomicXor, int, atomic_int, atomic_fetch_xor_explicit)
KERNALYSE_FETCH(atomicExch, int, atomic_int, atomic_exchange_explicit)
KERNALYSE_FETCH(atomicExch, uint, atomic_uint, atomic_exchange_explicit)
inline bool kernalyse_replace(volatile atomic_uint* p, uint* expected, uint wanted) {
  return atomic_compare_exchange_strong_explicit(p, expected, wanted, static_cast<memory_order>(memory_order_relaxed), KERNALYSE_RELAXED);
}
inline uint atomicCAS(uint* p, uint expected, uint wanted) {
  kernalyse_replace((volatile atomic_uint*)p, &expected, wanted);
  return expected;
}
inline int atomicCAS(int* p, int expected, int wanted) { return (int)atomicCAS((uint*)p, (uint)expected, (uint)wanted); }
inline float atomicAdd(float* p, float v) {
  uint before = atomic_load_explicit((volatile atomic_uint*)p, KERNALYSE_RELAXED);
  while (!kernalyse_replace((volatile atomic_uint*)p, &before, as_uint(as_float(before) + v))) {}
  return as_float(before);
}
inline float atomicExch(float* p, float v) { return as_float(atomicExch((uint*)p, as_uint(v))); }
"""

SHUFFLES: Final = """
#define __syncwarp(...) sub_group_barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define __any_sync(mask, p) sub_group_any(p)
#define __all_sync(mask, p) sub_group_all(p)
#define __ballot_sync(mask, p) (sub_group_ballot(p).x)
template <typename T> inline T kernalyse_take(T v, uint from, int width) {
  uint lane = get_sub_group_local_id();
  return sub_group_shuffle(v, from / (uint)width == lane / (uint)width && from < 32u ? from : lane);
}
template <typename T> inline T __shfl_down_sync(uint mask, T v, uint delta, int width = 32) {
  return kernalyse_take(v, get_sub_group_local_id() + delta, width);
}
template <typename T> inline T __shfl_up_sync(uint mask, T v, uint delta, int width = 32) {
  return kernalyse_take(v, get_sub_group_local_id() - delta, width);
}
template <typename T> inline T __shfl_xor_sync(uint mask, T v, int bits, int width = 32) {
  return kernalyse_take(v, get_sub_group_local_id() ^ (uint)bits, width);
}
template <typename T> inline T __shfl_sync(uint mask, T v, int from, int width = 32) {
  uint first = get_sub_group_local_id() / (uint)width * (uint)width;
  return sub_group_shuffle(v, first + (uint)from % (uint)width);
}
"""

_C_ONLY: Final = """
#define OVERLOAD __attribute__((overloadable))
#define __forceinline__ inline __attribute__((always_inline))
#define __threadfence() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define nullptr 0
#define threadIdx ((uint3)(get_local_id(0), get_local_id(1), get_local_id(2)))
#define blockIdx ((uint3)(get_group_id(0), get_group_id(1), get_group_id(2)))
#define blockDim ((uint3)(get_local_size(0), get_local_size(1), get_local_size(2)))
#define gridDim ((uint3)(get_num_groups(0), get_num_groups(1), get_num_groups(2)))

static inline OVERLOAD uint min(uint a, int b) { return min(a, (uint)b); }
static inline OVERLOAD uint min(int a, uint b) { return min((uint)a, b); }
static inline OVERLOAD uint max(uint a, int b) { return max(a, (uint)b); }
static inline OVERLOAD uint max(int a, uint b) { return max((uint)a, b); }
static inline OVERLOAD float abs(float x) { return fabs(x); }
static inline OVERLOAD float pow(float x, int y) { return pown(x, y); }

#define KERNALYSE_FETCH(cuda_name, space, type, opencl_name) \\
  static inline OVERLOAD type cuda_name(volatile space type* p, type v) { return opencl_name(p, v); }
#define KERNALYSE_INTEGERS(cuda_name, opencl_name) \\
  KERNALYSE_FETCH(cuda_name, __global, int, opencl_name) KERNALYSE_FETCH(cuda_name, __global, uint, opencl_name) \\
  KERNALYSE_FETCH(cuda_name, __local, int, opencl_name) KERNALYSE_FETCH(cuda_name, __local, uint, opencl_name)
KERNALYSE_INTEGERS(atomicAdd, atomic_add)
KERNALYSE_INTEGERS(atomicSub, atomic_sub)
KERNALYSE_INTEGERS(atomicMin, atomic_min)
KERNALYSE_INTEGERS(atomicMax, atomic_max)
KERNALYSE_INTEGERS(atomicAnd, atomic_and)
KERNALYSE_INTEGERS(atomicOr, atomic_or)
KERNALYSE_INTEGERS(atomicXor, atomic_xor)
KERNALYSE_INTEGERS(atomicExch, atomic_xchg)
#define KERNALYSE_SPACE(space) \\
  static inline OVERLOAD int atomicCAS(volatile space int* p, int expected, int wanted) { return atomic_cmpxchg(p, expected, wanted); } \\
  static inline OVERLOAD uint atomicCAS(volatile space uint* p, uint expected, uint wanted) { \\
    return atomic_cmpxchg(p, expected, wanted); \\
  } \\
  static inline OVERLOAD float atomicExch(volatile space float* p, float v) { return atomic_xchg(p, v); } \\
  static inline OVERLOAD float atomicAdd(volatile space float* p, float v) { \\
    volatile space uint* bits = (volatile space uint*)p; \\
    uint expected, before = *bits; \\
    do { expected = before; before = atomic_cmpxchg(bits, expected, as_uint(as_float(expected) + v)); } while (before != expected); \\
    return as_float(before); \\
  }
KERNALYSE_SPACE(__global)
KERNALYSE_SPACE(__local)
"""

CPLUSPLUS: Final = "\n".join((_COMMON, _math_macros(), _vector_macros("({type})({values})"), _CPLUSPLUS_ONLY))
C: Final = "\n".join((_COMMON, _math_macros(), _vector_macros("(({type})({values}))"), _C_ONLY))


# ---------------------------------------------------------------- unsupported constructs
# Constructs of CUDA sources that an OpenCL runtime does not support are reported by name and line.


class Dialect(StrEnum):
    """The OpenCL language that a source is translated to."""

    CPLUSPLUS = "C++ for OpenCL 2021"  # templates, references, casts, generic pointers
    C = "OpenCL C"  # the smaller set


PYCUDA: Final = "the PYCUDA backend on an NVIDIA GPU"
INTEL: Final = "the Intel CPU runtime (OPENCL=intel)"

HARMLESS_HEADERS: Final = frozenset(
    """
    cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h device_functions.h math_constants.h
    math.h cmath stdint.h cstdint stddef.h cstddef float.h cfloat limits.h climits
    stdio.h cstdio stdlib.h cstdlib iostream string vector cassert assert.h
    """.split()  # noqa: SIM905 - words read better as words
)
"""Headers whose device-side content the prelude carries, or that only host code needs (which is left out)."""

NO_OPENCL_CALLS: Final = {
    "printf": "printf",
    "assert": "assert",
    "malloc": "malloc in device code",
    "free": "free in device code",
    "clock": "clock",
    "clock64": "clock64",
    "__trap": "__trap",
    "__nanosleep": "__nanosleep",
    "tex1Dfetch": "texture fetch",
    "tex2D": "texture fetch",
    "tex3D": "texture fetch",
    "__activemask": "__activemask",
    "__match_any_sync": "__match_any_sync",
    "__match_all_sync": "__match_all_sync",
    "__reduce_add_sync": "__reduce_add_sync",
    "__syncthreads_count": "__syncthreads_count",
    "__syncthreads_and": "__syncthreads_and",
    "__syncthreads_or": "__syncthreads_or",
    "__dp4a": "__dp4a",
}

WARP_CALLS: Final = frozenset(
    ["__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__any_sync", "__all_sync", "__ballot_sync", "__syncwarp"]
)

NO_OPENCL_TYPES: Final = {
    "__half": "the type __half",
    "__half2": "the type __half2",
    "half2": "the type half2",
    "__nv_bfloat16": "the type __nv_bfloat16",
    "__nv_bfloat162": "the type __nv_bfloat162",
    "cudaTextureObject_t": "a texture object",
    "cudaSurfaceObject_t": "a surface object",
}

THREE_COMPONENT_TYPES: Final = frozenset({"float3", "int3", "uint3", "double3", "char3", "uchar3"})

NODES_NO_OPENCL: Final = {
    "kernel_call_syntax": "a kernel launch inside device code",
    "gnu_asm_expression": "inline assembly",
    "new_expression": "new",
    "delete_expression": "delete",
    "try_statement": "try",
    "throw_statement": "throw",
}

NODES_NOT_IN_C: Final = {
    "template_declaration": "a template",
    "reference_declarator": "a reference",
    "abstract_reference_declarator": "a reference",
    "lambda_expression": "a lambda",
    "for_range_loop": "a range-based for",
    "class_specifier": "a class",
    "alias_declaration": "using T = …",
    "optional_parameter_declaration": "a default argument",
    "namespace_definition": "a namespace",
    "qualified_identifier": "a qualified name (a::b)",
    "compound_literal_expression": "a braced value T{…}",
    "static_assert_declaration": "static_assert",
    "decltype": "decltype",
}

CASTS: Final = frozenset({"static_cast", "reinterpret_cast", "const_cast"})


def raise_unsupported(node: Node, construct: str, file_name: str, runtime: str, *, possible: str, advice: str = "") -> NoReturn:
    """Raise UnsupportedConstructError with the construct, its line, and a runtime that supports it."""
    raise UnsupportedConstructError(
        str(source_location(node, file_name)),
        found=construct,
        expected=f"CUDA C++ that {runtime} can take",
        remedy=(f"{advice} " if advice else "") + f"It runs on {possible}.",
    )


def check_supported(nodes: Iterable[Node], dialect: Dialect, file_name: str, runtime: str) -> None:
    """Raise UnsupportedConstructError at the first unsupported construct in the definitions that a kernel needs."""
    for root in nodes:
        for node in _with_root(root):
            construct = _never(node)
            if construct:
                raise_unsupported(node, construct, file_name, runtime, possible=PYCUDA)
            construct = _not_in_c(node) if dialect is Dialect.C else None
            if construct:
                raise_unsupported(node, construct, file_name, runtime, possible=f"{INTEL} and on {PYCUDA}")


def first_warp_call(nodes: Iterable[Node]) -> Node | None:
    """Return the first use of a warp shuffle or vote, which needs sub-groups of 32."""
    return next((node for root in nodes for node in _with_root(root) if node.type == "identifier" and node_text(node) in WARP_CALLS), None)


def _with_root(root: Node) -> Iterator[Node]:
    yield root
    yield from descendants(root)


def _never(node: Node) -> str | None:
    if node.type in NODES_NO_OPENCL:
        return NODES_NO_OPENCL[node.type]
    if node.type == "identifier" and node.parent is not None and node.parent.type == "call_expression":
        return NO_OPENCL_CALLS.get(node_text(node))
    if node.type == "type_identifier":
        name = node_text(node)
        if name in THREE_COMPONENT_TYPES and _in_memory(node):
            return f"{name} in memory (12 bytes in CUDA, 16 in OpenCL)"
        return NO_OPENCL_TYPES.get(name)
    if node.type == "namespace_identifier" and node_text(node) in ("cooperative_groups", "cg", "wmma", "nvcuda", "cuda"):
        return f"the namespace {node_text(node)}"
    return None


def _in_memory(node: Node) -> bool:
    """Return whether a type is used through a pointer or in an array, where its size matters."""
    parent = node.parent
    if parent is None:
        return False
    return any(child.type in ("pointer_declarator", "abstract_pointer_declarator", "array_declarator") for child in descendants(parent))


def _not_in_c(node: Node) -> str | None:
    if node.type in NODES_NOT_IN_C:
        return NODES_NOT_IN_C[node.type]
    if node.type == "identifier" and node_text(node) in WARP_CALLS:
        return f"the warp function {node_text(node)}"
    if node.type == "template_function":
        name = node_text(node.children[0])
        return None if name in CASTS else f"the template {name}<…>"
    if node.type == "function_definition" and node.parent is not None and node.parent.type == "field_declaration_list":
        return "a member function"
    if node.type == "init_declarator" and any(child.type == "initializer_list" for child in node.children):
        if any(child.type == "function_declarator" for child in node.children):
            return None  # a function whose body cannot be read: the compiler says why
        braces_only = not any(node_text(child) == "=" for child in node.children)
        return "initialization by T name{…}" if braces_only else None
    return None
