// Kernels of other signatures: one dimension, double and int elements, scalars that are no sizes.

// out = |in|, each thread one element.
__global__ void my_kernel(float *in, float *out, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        out[i] = fabsf(in[i]);
    }
}

// y = alpha * x + y in double precision.
__global__ void daxpy(int N, double alpha, const double *x, double *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        y[i] = alpha * x[i] + y[i];
    }
}

// How often each of 100 values occurs; counts are added to.
__global__ void histogram(const int *values, int *counts, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        atomicAdd(&counts[values[i]], 1);
    }
}

// Softmax of each row: one block per row, one thread per column and step of the block's width.
__global__ void softmax_rows(const float *x, float *y, int M, int N) {
    __shared__ float partial[256];
    const float *row = x + blockIdx.x * N;
    float largest = -INFINITY;
    for (int j = threadIdx.x; j < N; j += blockDim.x) {
        largest = fmaxf(largest, row[j]);
    }
    partial[threadIdx.x] = largest;
    __syncthreads();
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) {
            partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + width]);
        }
        __syncthreads();
    }
    largest = partial[0];
    __syncthreads();  // before the sums overwrite it
    float sum = 0.0f;
    for (int j = threadIdx.x; j < N; j += blockDim.x) {
        sum += expf(row[j] - largest);
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) {
            partial[threadIdx.x] += partial[threadIdx.x + width];
        }
        __syncthreads();
    }
    for (int j = threadIdx.x; j < N; j += blockDim.x) {
        y[blockIdx.x * N + j] = expf(row[j] - largest) / partial[0];
    }
}
