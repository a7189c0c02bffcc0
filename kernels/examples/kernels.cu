// One kernel that works with blocks of any shape: c = a * b + c for row-major matrices, a N x K, b K x M, c N x M.

__global__ void my_kernel(float *a, float *b, float *c, int N, int M, int K) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < N && column < M) {
        float sum = c[row * M + column];
        for (int k = 0; k < K; k++) {
            sum += a[row * K + k] * b[k * M + column];
        }
        c[row * M + column] = sum;
    }
}
