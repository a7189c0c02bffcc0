// The four kernels of the STREAM benchmark: what the memory of a device delivers to simple loops.

extern "C" __global__ void stream_copy(const float* __restrict__ a, float* __restrict__ c, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        c[i] = a[i];
    }
}

extern "C" __global__ void stream_scale(const float* __restrict__ c, float* __restrict__ b, float alpha, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        b[i] = alpha * c[i];
    }
}

extern "C" __global__ void stream_add(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        c[i] = a[i] + b[i];
    }
}

extern "C" __global__ void stream_triad(const float* __restrict__ b, const float* __restrict__ c, float* __restrict__ a, float alpha, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        a[i] = b[i] + alpha * c[i];
    }
}
