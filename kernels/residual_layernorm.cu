// x += delta, and y = layer norm of it: (x - mean) / sqrt(variance + epsilon) * gamma + beta over every row. x, delta and y
// are M x N, row-major.
//
// One block per row, as in layernorm.cu. Needs blocks of a power of two, and blockDim.x * 4 bytes of dynamic shared memory.

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
    __syncthreads();  // everyone has read before the next use overwrites
    return result;
}

extern "C" __global__ void residual_layernorm(float* __restrict__ x, const float* __restrict__ delta,
                                              const float* __restrict__ gamma, const float* __restrict__ beta,
                                              float* __restrict__ y, float epsilon, int M, int N) {
    extern __shared__ float values[];
    const int row = blockIdx.x;
    if (row >= M) {
        return;  // the whole block leaves, so no barrier is missed
    }
    float* input = x + row * N;
    float* output = y + row * N;

    float sum = 0.0f;
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        const float value = input[i] + delta[row * N + i];
        input[i] = value;  // read again by this thread alone
        sum += value;
    }
    const float mean = block_sum(values, sum) / N;

    float squares = 0.0f;
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        const float difference = input[i] - mean;
        squares += difference * difference;
    }
    const float scale = rsqrtf(block_sum(values, squares) / N + epsilon);

    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        output[i] = (input[i] - mean) * scale * gamma[i] + beta[i];
    }
}
