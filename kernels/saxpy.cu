// y[i] = alpha * x[i] + y[i], the level 1 routine of BLAS. One thread per element; bound by memory bandwidth.

extern "C" __global__ void saxpy(int N, float alpha, const float* __restrict__ x, float* __restrict__ y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        y[i] = alpha * x[i] + y[i];
    }
}
