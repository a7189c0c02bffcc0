// res = a * b for row-major float matrices of any size: a is N x K, b is K x M, res is N x M.

#define TILE 16

// One thread per element of res.
__global__ void matmul_naive(const float *a, const float *b, float *res, int N, int M, int K) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < N && column < M) {
        float sum = 0.0f;
        for (int k = 0; k < K; k++) {
            sum += a[row * K + k] * b[k * M + column];
        }
        res[row * M + column] = sum;
    }
}

// The block walks along K in tiles kept in shared memory, so that an element is read from global memory once a block and
// not once a thread. Needs blocks of exactly TILE x TILE threads; beyond the matrices' edges a tile holds zeros.
__global__ void matmul_optimized(const float *a, const float *b, float *res, int N, int M, int K) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < K; first += TILE) {
        int a_column = first + threadIdx.x;
        int b_row = first + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < N && a_column < K ? a[row * K + a_column] : 0.0f;
        tile_b[threadIdx.y][threadIdx.x] = b_row < K && column < M ? b[b_row * M + column] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; k++) {
            sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        }
        __syncthreads();  // before the next tiles overwrite these
    }
    if (row < N && column < M) {
        res[row * M + column] = sum;
    }
}
