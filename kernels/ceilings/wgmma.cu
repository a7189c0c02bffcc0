// Tensor cores by wgmma, which four warps issue together, with operands in shared memory: for compute capability 9.0 alone,
// compiled for sm_90a.
//
// A block is two warpgroups. Each multiplies 64 rows by the 256 columns that both share, 128 bytes of each, again and again;
// the sums of a thread take half of its registers. While the sums of one warpgroup are waited for, the other keeps the units
// busy. operands holds the 128 rows and then the 256 columns, 128 bytes each; results gets every block's 128 x 256 sums, row
// by row: after one round they are the product itself. Operands have to be random: on zeros the units draw less power and
// run at a higher clock than with any real work. -DTYPE=Float16 and so on says of what type the operands are.

#define WARPGROUPS 2
#define THREADS (WARPGROUPS * 128)
#define ROWS 64  // of one warpgroup
#define COLUMNS 256
#define ROW_BYTES 128
#define STEP_BYTES 32  // of each row that one instruction takes: 16 elements of two bytes, 32 of one, 8 of four
#define STEPS (ROW_BYTES / STEP_BYTES)
#ifndef TYPE
#define TYPE Float16
#endif

// Names of the registers of an instruction, and what stands behind them.
#define NAMES_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128 \
    NAMES_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define VALUES_8(kind, d, i) \
    kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3]), kind(d[i + 4]), kind(d[i + 5]), kind(d[i + 6]), kind(d[i + 7])
#define VALUES_32(kind, d, i) VALUES_8(kind, d, i), VALUES_8(kind, d, i + 8), VALUES_8(kind, d, i + 16), VALUES_8(kind, d, i + 24)
#define VALUES_64(kind, d) VALUES_32(kind, d, 0), VALUES_32(kind, d, 32)
#define VALUES_128(kind, d) VALUES_64(kind, d), VALUES_32(kind, d, 64), VALUES_32(kind, d, 96)

// The predicate says to add to what the registers hold. ENDING: what the type takes besides: signs, and which operand is
// transposed.
#define MULTIPLY_128(SHAPE, ENDING, kind, d, rows, columns) \
    asm volatile( \
        "{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned." SHAPE " {" NAMES_128 "}, %128, %129, add" ENDING "; }" \
        : VALUES_128(kind, d) : "l"(rows), "l"(columns))
#define MULTIPLY_64(SHAPE, ENDING, kind, d, rows, columns) \
    asm volatile( \
        "{ .reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned." SHAPE " {" NAMES_64 "}, %64, %65, add" ENDING "; }" \
        : VALUES_64(kind, d) : "l"(rows), "l"(columns))

__device__ __forceinline__ unsigned bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ unsigned bits(int value) { return value; }
__device__ __forceinline__ unsigned bits(unsigned value) { return value; }

// Keeps the compiler from moving a register across this place: the units write it when the compiler does not see it.
__device__ __forceinline__ void hold(float &value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ __forceinline__ void hold(int &value) { asm volatile("" : "+r"(value)::"memory"); }
__device__ __forceinline__ void hold(unsigned &value) { asm volatile("" : "+r"(value)::"memory"); }

// What each type makes of the same bytes. Sums: the type of a register that accumulates; WORDS: registers for two
// neighbouring columns.
struct Float16 {
    typedef float Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(float (&d)[128], unsigned long long rows, unsigned long long columns) {
        MULTIPLY_128("m64n256k16.f32.f16.f16", ", 1, 1, 0, 0", "+f", d, rows, columns);
    }
};

struct Float16Accumulate16 {
    typedef unsigned Sums;
    static const int WORDS = 1;
    static __device__ __forceinline__ void add(unsigned (&d)[64], unsigned long long rows, unsigned long long columns) {
        MULTIPLY_64("m64n256k16.f16.f16.f16", ", 1, 1, 0, 0", "+r", d, rows, columns);
    }
};

struct Bfloat16 {
    typedef float Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(float (&d)[128], unsigned long long rows, unsigned long long columns) {
        MULTIPLY_128("m64n256k16.f32.bf16.bf16", ", 1, 1, 0, 0", "+f", d, rows, columns);
    }
};

struct Tfloat32 {
    typedef float Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(float (&d)[128], unsigned long long rows, unsigned long long columns) {
        MULTIPLY_128("m64n256k8.f32.tf32.tf32", ", 1, 1", "+f", d, rows, columns);
    }
};

struct Float8 {
    typedef float Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(float (&d)[128], unsigned long long rows, unsigned long long columns) {
        MULTIPLY_128("m64n256k32.f32.e4m3.e4m3", ", 1, 1", "+f", d, rows, columns);
    }
};

struct Int8 {
    typedef int Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(int (&d)[128], unsigned long long rows, unsigned long long columns) {
        MULTIPLY_128("m64n256k32.s32.s8.s8", "", "+r", d, rows, columns);
    }
};

// Rows of 128 bytes in shared memory, swizzled as the descriptor below says: within eight rows, 1024 bytes, the 16-byte
// piece p of row r lies at piece p ^ r.
__device__ __forceinline__ void place(unsigned char *tile, const uint4 *rows, int row_count) {
    const int pieces = ROW_BYTES / 16;
    for (int index = threadIdx.x; index < row_count * pieces; index += THREADS) {
        int row = index / pieces, piece = index % pieces;
        reinterpret_cast<uint4 *>(tile)[row * pieces + (piece ^ (row % 8))] = rows[index];
    }
}

// Describes rows of 128 bytes to the tensor cores: address, distance of eight rows (1024 bytes) and swizzle of 128 bytes;
// addresses in units of 16. The distance along a row (bits 16 to 29) does not count with this swizzle.
__device__ __forceinline__ unsigned long long describe(const unsigned char *tile) {
    unsigned long long address = __cvta_generic_to_shared(tile);
    return (address & 0x3FFFF) >> 4 | 1ull << 16 | (8ull * ROW_BYTES >> 4) << 32 | 1ull << 62;
}

template <typename Type>
__device__ __forceinline__ void multiply_tiles(const uint4 *operands, unsigned *results, int rounds) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ __align__(1024) unsigned char tiles[(WARPGROUPS * ROWS + COLUMNS) * ROW_BYTES];
    place(tiles, operands, WARPGROUPS * ROWS + COLUMNS);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor cores read what was written just now
    __syncthreads();

    int warpgroup = threadIdx.x / 128;
    unsigned long long rows = describe(tiles + warpgroup * ROWS * ROW_BYTES);
    unsigned long long columns = describe(tiles + WARPGROUPS * ROWS * ROW_BYTES);
    typename Type::Sums sums[COLUMNS / 4 * Type::WORDS];
#pragma unroll
    for (int index = 0; index < COLUMNS / 4 * Type::WORDS; index++) {
        sums[index] = 0;
        hold(sums[index]);
    }
    // At least one round: were none possible, the compiler would keep the sums twice and wait for every single instruction.
    int round = 0;
#pragma unroll 1
    do {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            Type::add(sums, rows + step * (STEP_BYTES >> 4), columns + step * (STEP_BYTES >> 4));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    } while (++round < rounds);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int index = 0; index < COLUMNS / 4 * Type::WORDS; index++) {
        hold(sums[index]);
    }

    int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 + lane / 4;
    unsigned *tile = results + blockIdx.x * (WARPGROUPS * ROWS * COLUMNS / 2 * Type::WORDS);
#pragma unroll
    for (int index = 0; index < COLUMNS / 4 * Type::WORDS; index++) {
        int pair = index / Type::WORDS;  // of columns: rows first_row and first_row + 8 of eight columns by turns
        int y = first_row + 8 * (pair % 2), x = (pair / 2 * 4 + lane % 4) * Type::WORDS + index % Type::WORDS;
        tile[y * (COLUMNS / 2 * Type::WORDS) + x] = bits(sums[index]);
    }
#else
    __trap();  // nothing is measured where there is no such instruction
#endif
}

__global__ void __launch_bounds__(THREADS, 1) ceiling_wgmma(const uint4 *operands, unsigned *results, int rounds) {
    multiply_tiles<TYPE>(operands, results, rounds);
}
