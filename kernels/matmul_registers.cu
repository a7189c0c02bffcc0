// C = A * B for row-major matrices, ROWS x 2 elements of C per thread: A is M x K, B is K x N, C is M x N. For each k a thread
// reads ROWS elements of A and two of B and adds ROWS * 2 products; its two columns lie blockDim.x apart, so that neighbours
// read neighbouring elements. A CPU keeps the sums of a vector of threads in ROWS * 2 registers; 6 is what sixteen registers
// hold. Nothing is kept in shared memory: what GPUs gain by that, CPUs lose at every barrier.

#ifndef ROWS
#define ROWS 6
#endif

// sums = the thread's elements of A * B, row by row. A row beyond the last one is the last one again. Where the block reaches
// over the last column, each column goes by itself: to bend an index back would turn neighbouring reads into scattered ones.
__device__ __forceinline__ void multiply(const float* A, const float* B, float* sums, int first_row, int column, int is_whole,
                                         int M, int N, int K) {
    int offsets[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        sums[2 * row] = 0.0f;
        sums[2 * row + 1] = 0.0f;
        offsets[row] = min(first_row + row, M - 1) * K;
    }
    const int step = blockDim.x;
    if (is_whole) {
        for (int k = 0; k < K; ++k) {
            const float b = B[k * N + column];
            const float b_next = B[k * N + column + step];
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const float a = A[offsets[row] + k];
                sums[2 * row] += a * b;
                sums[2 * row + 1] += a * b_next;
            }
        }
        return;
    }
    if (column < N) {
        for (int k = 0; k < K; ++k) {
            const float b = B[k * N + column];
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                sums[2 * row] += A[offsets[row] + k] * b;
            }
        }
    }
    if (column + step < N) {
        for (int k = 0; k < K; ++k) {
            const float b = B[k * N + column + step];
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                sums[2 * row + 1] += A[offsets[row] + k] * b;
            }
        }
    }
}

__device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void matmul_registers(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                                            int M, int N, int K) {
    const int column = 2 * blockIdx.x * blockDim.x + threadIdx.x;
    const int next_column = column + blockDim.x;
    const int first_row = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    if (column < N && first_row < M) {
        float sums[2 * ROWS];
        multiply(A, B, sums, first_row, column, 2 * (blockIdx.x + 1) * blockDim.x <= N, M, N, K);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (first_row + row < M) {
                C[(first_row + row) * N + column] = sums[2 * row];
            }
        }
        if (next_column < N) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                if (first_row + row < M) {
                    C[(first_row + row) * N + next_column] = sums[2 * row + 1];
                }
            }
        }
    }
}

// C = A * B + bias in every row.
extern "C" __global__ void matmul_registers_bias(const float* __restrict__ A, const float* __restrict__ B,
                                                 const float* __restrict__ bias, float* __restrict__ C, int M, int N, int K) {
    const int column = 2 * blockIdx.x * blockDim.x + threadIdx.x;
    const int next_column = column + blockDim.x;
    const int first_row = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    if (column < N && first_row < M) {
        float sums[2 * ROWS];
        multiply(A, B, sums, first_row, column, 2 * (blockIdx.x + 1) * blockDim.x <= N, M, N, K);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (first_row + row < M) {
                C[(first_row + row) * N + column] = sums[2 * row] + bias[column];
            }
        }
        if (next_column < N) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                if (first_row + row < M) {
                    C[(first_row + row) * N + next_column] = sums[2 * row + 1] + bias[next_column];
                }
            }
        }
    }
}

// C = GELU(A * B + bias).
extern "C" __global__ void matmul_registers_bias_gelu(const float* __restrict__ A, const float* __restrict__ B,
                                                      const float* __restrict__ bias, float* __restrict__ C, int M, int N,
                                                      int K) {
    const int column = 2 * blockIdx.x * blockDim.x + threadIdx.x;
    const int next_column = column + blockDim.x;
    const int first_row = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    if (column < N && first_row < M) {
        float sums[2 * ROWS];
        multiply(A, B, sums, first_row, column, 2 * (blockIdx.x + 1) * blockDim.x <= N, M, N, K);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (first_row + row < M) {
                C[(first_row + row) * N + column] = gelu(sums[2 * row] + bias[column]);
            }
        }
        if (next_column < N) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                if (first_row + row < M) {
                    C[(first_row + row) * N + next_column] = gelu(sums[2 * row + 1] + bias[next_column]);
                }
            }
        }
    }
}
