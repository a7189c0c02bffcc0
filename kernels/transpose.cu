// output = transpose of input: input is M x N, output N x M, both row-major.

#ifndef TILE
#define TILE 16
#endif

// Reads rows, writes columns: neighbouring threads write addresses M elements apart.
extern "C" __global__ void transpose_naive(const float* __restrict__ input, float* __restrict__ output, int M, int N) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < M && column < N) {
        output[column * M + row] = input[row * N + column];
    }
}

// Turns a tile in shared memory, so that reads and writes both run along rows. The column of padding keeps threads that
// read down a column on different memory banks. Needs blocks of exactly TILE x TILE threads.
extern "C" __global__ void __launch_bounds__(TILE * TILE)
    transpose_tiled(const float* __restrict__ input, float* __restrict__ output, int M, int N) {
    __shared__ float tile[TILE][TILE + 1];
    const int column = blockIdx.x * TILE + threadIdx.x;
    const int row = blockIdx.y * TILE + threadIdx.y;
    if (row < M && column < N) {
        tile[threadIdx.y][threadIdx.x] = input[row * N + column];
    }
    __syncthreads();
    const int output_column = blockIdx.y * TILE + threadIdx.x;
    const int output_row = blockIdx.x * TILE + threadIdx.y;
    if (output_row < N && output_column < M) {
        output[output_row * M + output_column] = tile[threadIdx.x][threadIdx.y];
    }
}
