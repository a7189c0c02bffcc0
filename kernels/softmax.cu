// y = softmax of every row of x; x and y are M x N, row-major.
//
// One block per row, three passes over it: its maximum (so that no exponential overflows), the sum of the exponentials,
// the quotients. Needs blocks of a power of two, and blockDim.x * 4 bytes of dynamic shared memory.

__device__ float block_maximum(float* values, float value) {
    values[threadIdx.x] = value;
    __syncthreads();
    for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) {
            values[threadIdx.x] = fmaxf(values[threadIdx.x], values[threadIdx.x + distance]);
        }
        __syncthreads();
    }
    const float result = values[0];
    __syncthreads();  // everyone has read before the next use overwrites
    return result;
}

__device__ float block_sum(float* values, float value) {
    values[threadIdx.x] = value;
    __syncthreads();
    for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) {
            values[threadIdx.x] += values[threadIdx.x + distance];
        }
        __syncthreads();
    }
    const float result = values[0];
    __syncthreads();
    return result;
}

extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    extern __shared__ float values[];
    const int row = blockIdx.x;
    if (row >= M) {
        return;  // the whole block leaves, so no barrier is missed
    }
    const float* input = x + row * N;
    float* output = y + row * N;

    float maximum = -INFINITY;
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        maximum = fmaxf(maximum, input[i]);
    }
    maximum = block_maximum(values, maximum);

    float sum = 0.0f;
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        const float exponential = expf(input[i] - maximum);
        output[i] = exponential;
        sum += exponential;
    }
    sum = block_sum(values, sum);

    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        output[i] /= sum;
    }
}
