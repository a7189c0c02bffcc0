// C = A * B for row-major matrices: A is M x K, B is K x N, C is M x N.

#ifndef TILE
#define TILE 16
#endif

// One thread per element of C. Every thread reads a row of A and a column of B from global memory: the caches alone
// keep it from moving 2 * M * N * K elements.
extern "C" __global__ void matmul_naive(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                                        int M, int N, int K) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < M && column < N) {
        float sum = 0.0f;
        for (int k = 0; k < K; ++k) {
            sum += A[row * K + k] * B[k * N + column];
        }
        C[row * N + column] = sum;
    }
}

// The block walks over K in tiles of TILE x TILE kept in shared memory, so that each element is read from global memory
// once per block row or column instead of once per thread. Needs blocks of exactly TILE x TILE threads.
extern "C" __global__ void __launch_bounds__(TILE * TILE)
    matmul_tiled(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int column = blockIdx.x * TILE + threadIdx.x;
    const int row = blockIdx.y * TILE + threadIdx.y;
    float sum = 0.0f;
    for (int first = 0; first < K; first += TILE) {
        const int a_column = first + threadIdx.x;
        const int b_row = first + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = row < M && a_column < K ? A[row * K + a_column] : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] = b_row < K && column < N ? B[b_row * N + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k) {
            sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
        }
        __syncthreads();  // before the next tile overwrites this one
    }
    if (row < M && column < N) {
        C[row * N + column] = sum;
    }
}
