// C = A * B for row-major matrices, a TILE x TILE part of C per block: A is M x K, B is K x N, C is M x N. Each thread sums
// 4 x 4 elements in registers from tiles of A and B in shared memory, and fetches the next tiles while it works on these.
// Needs blocks of exactly TILE/4 x TILE/4 threads. TILE is 32 or 64: small matrices need the small one to fill a GPU.

#ifndef TILE
#define TILE 64
#endif
#define EDGE (TILE / 4)      // threads along a side of the block
#define DEPTH 16             // of a tile along K
#define FETCHES (TILE * DEPTH / (EDGE * EDGE))  // elements of a tile that each thread fetches

// The thread's share of the tiles at `depth` of A and B, zero outside the matrices.
__device__ __forceinline__ void fetch(const float* A, const float* B, float* a_next, float* b_next, int thread, int block_row,
                                      int block_column, int depth, int M, int N, int K) {
#pragma unroll
    for (int i = 0; i < FETCHES; ++i) {
        const int element = thread + i * EDGE * EDGE;
        const int a_row = block_row + element / DEPTH;
        const int a_column = depth + element % DEPTH;
        const int b_row = depth + element / TILE;
        const int b_column = block_column + element % TILE;
        a_next[i] = a_row < M && a_column < K ? A[a_row * K + a_column] : 0.0f;
        b_next[i] = b_row < K && b_column < N ? B[b_row * N + b_column] : 0.0f;
    }
}

// sums = the thread's 4 x 4 elements of A * B: rows EDGE apart from threadIdx.y on, columns from 4 * threadIdx.x on.
// a_tile holds DEPTH rows of TILE + 1 (A transposed; the odd width spreads its columns over the banks), b_tile DEPTH of TILE.
__device__ __forceinline__ void multiply_block(const float* A, const float* B, float* a_tile, float* b_tile, float* sums,
                                               int block_row, int block_column, int M, int N, int K) {
    const int thread = threadIdx.y * EDGE + threadIdx.x;
    float a_next[FETCHES];
    float b_next[FETCHES];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        sums[i] = 0.0f;
    }
    fetch(A, B, a_next, b_next, thread, block_row, block_column, 0, M, N, K);
    for (int depth = 0; depth < K; depth += DEPTH) {
#pragma unroll
        for (int i = 0; i < FETCHES; ++i) {
            const int element = thread + i * EDGE * EDGE;
            a_tile[element % DEPTH * (TILE + 1) + element / DEPTH] = a_next[i];
            b_tile[element] = b_next[i];
        }
        __syncthreads();
        fetch(A, B, a_next, b_next, thread, block_row, block_column, depth + DEPTH, M, N, K);
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float a[4];
            float b[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i] = a_tile[k * (TILE + 1) + threadIdx.y + i * EDGE];
                b[i] = b_tile[k * TILE + threadIdx.x * 4 + i];
            }
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                sums[i] += a[i / 4] * b[i % 4];
            }
        }
        __syncthreads();  // before the next tiles overwrite these
    }
}

__device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void __launch_bounds__(EDGE * EDGE)
    matmul_block(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    __shared__ float a_tile[DEPTH * (TILE + 1)];
    __shared__ float b_tile[DEPTH * TILE];
    float sums[16];
    multiply_block(A, B, a_tile, b_tile, sums, blockIdx.y * TILE, blockIdx.x * TILE, M, N, K);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int row = blockIdx.y * TILE + threadIdx.y + i / 4 * EDGE;
        const int column = blockIdx.x * TILE + threadIdx.x * 4 + i % 4;
        if (row < M && column < N) {
            C[row * N + column] = sums[i];
        }
    }
}

// C = A * B + bias in every row.
extern "C" __global__ void __launch_bounds__(EDGE * EDGE)
    matmul_block_bias(const float* __restrict__ A, const float* __restrict__ B, const float* __restrict__ bias,
                      float* __restrict__ C, int M, int N, int K) {
    __shared__ float a_tile[DEPTH * (TILE + 1)];
    __shared__ float b_tile[DEPTH * TILE];
    float sums[16];
    multiply_block(A, B, a_tile, b_tile, sums, blockIdx.y * TILE, blockIdx.x * TILE, M, N, K);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int row = blockIdx.y * TILE + threadIdx.y + i / 4 * EDGE;
        const int column = blockIdx.x * TILE + threadIdx.x * 4 + i % 4;
        if (row < M && column < N) {
            C[row * N + column] = sums[i] + bias[column];
        }
    }
}

// C = GELU(A * B + bias).
extern "C" __global__ void __launch_bounds__(EDGE * EDGE)
    matmul_block_bias_gelu(const float* __restrict__ A, const float* __restrict__ B, const float* __restrict__ bias,
                           float* __restrict__ C, int M, int N, int K) {
    __shared__ float a_tile[DEPTH * (TILE + 1)];
    __shared__ float b_tile[DEPTH * TILE];
    float sums[16];
    multiply_block(A, B, a_tile, b_tile, sums, blockIdx.y * TILE, blockIdx.x * TILE, M, N, K);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int row = blockIdx.y * TILE + threadIdx.y + i / 4 * EDGE;
        const int column = blockIdx.x * TILE + threadIdx.x * 4 + i % 4;
        if (row < M && column < N) {
            C[row * N + column] = gelu(sums[i] + bias[column]);
        }
    }
}
