// C = A * B for row-major matrices with ROWS rows of C per thread: A is M x K, B is K x N, C is M x N. A thread reads each
// element of its column of B once for all its rows, and neighbours read neighbouring columns, so a CPU keeps ROWS vectors of
// sums in registers. Nothing is kept in shared memory: what GPUs gain by that, CPUs lose at every barrier.

#ifndef ROWS
#define ROWS 8
#endif

// sums = the thread's ROWS elements of A * B, from first_row on. A row beyond the last one is the last one again.
__device__ __forceinline__ void multiply_rows(const float* A, const float* B, float* sums, int first_row, int column, int M,
                                              int N, int K) {
    int offsets[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        sums[row] = 0.0f;
        offsets[row] = min(first_row + row, M - 1) * K;
    }
    for (int k = 0; k < K; ++k) {
        const float b = B[k * N + column];
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            sums[row] += A[offsets[row] + k] * b;
        }
    }
}

__device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void matmul_rows(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M,
                                       int N, int K) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int first_row = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    if (column < N && first_row < M) {
        float sums[ROWS];
        multiply_rows(A, B, sums, first_row, column, M, N, K);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (first_row + row < M) {
                C[(first_row + row) * N + column] = sums[row];
            }
        }
    }
}

// C = A * B + bias in every row.
extern "C" __global__ void matmul_rows_bias(const float* __restrict__ A, const float* __restrict__ B,
                                            const float* __restrict__ bias, float* __restrict__ C, int M, int N, int K) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int first_row = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    if (column < N && first_row < M) {
        float sums[ROWS];
        multiply_rows(A, B, sums, first_row, column, M, N, K);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (first_row + row < M) {
                C[(first_row + row) * N + column] = sums[row] + bias[column];
            }
        }
    }
}

// C = GELU(A * B + bias).
extern "C" __global__ void matmul_rows_bias_gelu(const float* __restrict__ A, const float* __restrict__ B,
                                                 const float* __restrict__ bias, float* __restrict__ C, int M, int N, int K) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int first_row = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    if (column < N && first_row < M) {
        float sums[ROWS];
        multiply_rows(A, B, sums, first_row, column, M, N, K);
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (first_row + row < M) {
                C[(first_row + row) * N + column] = gelu(sums[row] + bias[column]);
            }
        }
    }
}
