// partial[b] = the sum of the b-th of `blocks` equal shares of x. A second, much smaller sum over `partial` ends the
// reduction; it is left to the caller, so that this kernel is one launch and writes each of its outputs exactly once.
//
// Launched with `blocks` blocks. Neighbouring threads read neighbouring elements; then the block halves its sums in shared
// memory. Needs blocks of a power of two, and blockDim.x * 4 bytes of dynamic shared memory.

extern "C" __global__ void reduce_sum(const float* __restrict__ x, float* __restrict__ partial, int N, int blocks) {
    extern __shared__ float sums[];
    const int share = (N + blocks - 1) / blocks;
    const int first = blockIdx.x * share;
    const int last = min(first + share, N);
    float sum = 0.0f;
    for (int i = first + threadIdx.x; i < last; i += blockDim.x) {
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
