// Tensor cores by mma.sync, which one warp issues: for compute capability 7.5 on. CUDA alone.
//
// Every warp multiplies a tile of 32 rows by one of 32 columns, 32 bytes of each, again and again, from registers; eight
// products are independent of each other. operands holds the rows and then the columns; results gets each warp's 32 x 32
// sums, row by row: after one round they are the product itself. Operands have to be random: on zeros the units draw less
// power and run at a higher clock than with any real work. -DTYPE=Float16 and so on says of what type the operands are.

#define TILE 32
#ifndef TYPE
#define TYPE Float16
#endif

__device__ __forceinline__ unsigned bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ unsigned bits(int value) { return value; }
__device__ __forceinline__ unsigned bits(unsigned value) { return value; }

// A product of 16 rows by 8 columns over 32 bytes: what each type makes of the same registers. Sums: the type of a register
// that accumulates; WORDS: registers for two neighbouring columns.
struct Float16 {
    typedef float Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
    }
};

struct Float16Accumulate16 {
    typedef unsigned Sums;
    static const int WORDS = 1;
    static __device__ __forceinline__ void add(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
            : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
            : "+r"(d[0]), "+r"(d[1]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
            : "+r"(d[0]), "+r"(d[1]) : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
    }
};

struct Bfloat16 {
    typedef float Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        __trap();  // nothing is measured where there is no such instruction
#endif
    }
};

struct Tfloat32 {
    typedef float Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        __trap();
#endif
    }
};

struct Float8 {
    typedef float Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 890
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        __trap();
#endif
    }
};

struct Int8 {
    typedef int Sums;
    static const int WORDS = 2;
    static __device__ __forceinline__ void add(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
        for (int half = 0; half < 2; half++) {
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+r"(d[0]), "+r"(d[1]) : "r"(a[2 * half]), "r"(b[half]));
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+r"(d[2]), "+r"(d[3]) : "r"(a[2 * half + 1]), "r"(b[half]));
        }
#endif
    }
};

// A register holds four bytes of a row: lane / 4 is the row within eight, lane % 4 the place within 16 bytes.
template <typename Type>
__device__ __forceinline__ void multiply_tiles(const unsigned *operands, unsigned *results, int rounds) {
    const int words = TILE / 4;  // of a row: 32 bytes
    int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    unsigned a[2][4], b[4][2];
#pragma unroll
    for (int part = 0; part < 2; part++) {
#pragma unroll
        for (int index = 0; index < 4; index++) {
            a[part][index] = operands[(16 * part + 8 * (index % 2) + group) * words + 4 * (index / 2) + place];
        }
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
#pragma unroll
        for (int index = 0; index < 2; index++) {
            b[part][index] = operands[(TILE + 8 * part + group) * words + 4 * index + place];
        }
    }
    typename Type::Sums sums[2][4][2 * Type::WORDS] = {};
#pragma unroll 4
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int column = 0; column < 4; column++) {
                Type::add(sums[row][column], a[row], b[column]);
            }
        }
    }
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    unsigned *tile = results + warp * TILE * TILE / 2 * Type::WORDS;
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int column = 0; column < 4; column++) {
#pragma unroll
            for (int index = 0; index < 2 * Type::WORDS; index++) {
                int y = 16 * row + 8 * (index / Type::WORDS) + group;
                int x = (4 * column + place) * Type::WORDS + index % Type::WORDS;
                tile[y * TILE / 2 * Type::WORDS + x] = bits(sums[row][column][index]);
            }
        }
    }
}

__global__ void ceiling_mma(const unsigned *operands, unsigned *results, int rounds) {
    multiply_tiles<TYPE>(operands, results, rounds);
}
