// partial[b] = the sum of block b's share of x. A second, much smaller sum over `partial` ends the reduction; it is left
// to the caller, so that this kernel is one launch and writes each of its outputs exactly once.
//
// Each thread first adds up elements a whole grid apart, which keeps neighbouring threads on neighbouring addresses; then
// the block halves its sums in shared memory. Needs blocks of a power of two, and blockDim.x * 4 bytes of dynamic shared
// memory.

extern "C" __global__ void reduce_sum(const float* __restrict__ x, float* __restrict__ partial, int N) {
    extern __shared__ float sums[];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += gridDim.x * blockDim.x) {
        sum += x[i];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) {
            sums[threadIdx.x] += sums[threadIdx.x + distance];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sums[0];
    }
}
