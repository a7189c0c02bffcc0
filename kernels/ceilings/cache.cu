// What the caches and shared memory can deliver at most: each block reads windows of a region again and again. Which window
// comes next depends on arguments, so that no compiler can keep what it has read. Whether a region fits a level decides
// what is measured: 16 KiB lie in every core's L1, a quarter of the L2 in L2.

// Eight elements a thread and window; last_window is the count of windows less one, a power of two less one.
__global__ void ceiling_window(const float *region, float *sums, int rounds, int last_window) {
    int lane = threadIdx.x, width = blockDim.x;
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f, e = 0.0f, f = 0.0f, g = 0.0f, h = 0.0f;
    for (int round = 0; round < rounds; round++) {
        int at = lane + ((blockIdx.x + round) & last_window) * 8 * width;
        a += region[at];
        b += region[at + width];
        c += region[at + 2 * width];
        d += region[at + 3 * width];
        e += region[at + 4 * width];
        f += region[at + 5 * width];
        g += region[at + 6 * width];
        h += region[at + 7 * width];
    }
    sums[index] = a + b + c + d + e + f + g + h;
}

// Sixteen elements a thread, once: a runtime that does not vectorize loops across threads is many times faster on this.
__global__ void ceiling_glance(const float *region, float *sums) {
    int lane = threadIdx.x, width = blockDim.x;
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float a = region[lane], b = region[lane + width], c = region[lane + 2 * width], d = region[lane + 3 * width];
    a += region[lane + 4 * width];
    b += region[lane + 5 * width];
    c += region[lane + 6 * width];
    d += region[lane + 7 * width];
    a += region[lane + 8 * width];
    b += region[lane + 9 * width];
    c += region[lane + 10 * width];
    d += region[lane + 11 * width];
    a += region[lane + 12 * width];
    b += region[lane + 13 * width];
    c += region[lane + 14 * width];
    d += region[lane + 15 * width];
    sums[index] = a + b + c + d;
}

// The forms for GPUs: blocks of 256 threads, so that the distances between a thread's loads are constants of the code; a
// window is 16 KiB, four times 16 bytes a thread. A block walks through own_windows + 1 of them (a power of two), beginning
// at window blockIdx.x * block_stride: with stride 0 every block through the same, each from another one on.
#define THREADS 256
#define LOADS 4

__global__ void ceiling_window_float4(
    const float4 *region, float *sums, int rounds, int block_stride, int own_windows, int last_window) {
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
#pragma unroll 4
    for (int round = 0; round < rounds; round++) {
        int window = (blockIdx.x * block_stride + ((blockIdx.x + round) & own_windows)) & last_window;
        int at = window * LOADS * THREADS + threadIdx.x;
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            float4 value = region[at + load * THREADS];
            a += value.x;
            b += value.y;
            c += value.z;
            d += value.w;
        }
    }
    sums[blockIdx.x * THREADS + threadIdx.x] = a + b + c + d;
}

// As above past L1, straight from L2. CUDA alone.
__global__ void ceiling_window_past_l1(
    const float4 *region, float *sums, int rounds, int block_stride, int own_windows, int last_window) {
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
#pragma unroll 4
    for (int round = 0; round < rounds; round++) {
        int window = (blockIdx.x * block_stride + ((blockIdx.x + round) & own_windows)) & last_window;
        int at = window * LOADS * THREADS + threadIdx.x;
#pragma unroll
        for (int load = 0; load < LOADS; load++) {
            float4 value = __ldcg(region + at + load * THREADS);
            a += value.x;
            b += value.y;
            c += value.z;
            d += value.w;
        }
    }
    sums[blockIdx.x * THREADS + threadIdx.x] = a + b + c + d;
}

// Shared memory, 16 bytes a thread and load, neighbouring threads neighbouring places: free of bank conflicts. last_window
// is 1: the windows are the two halves of the array.
__global__ void ceiling_shared(const float4 *region, float *sums, int rounds, int last_window) {
    __shared__ float4 tile[LOADS * THREADS];
    for (int position = threadIdx.x; position < LOADS * THREADS; position += THREADS) {
        tile[position] = region[position];
    }
    __syncthreads();
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
#pragma unroll 8
    for (int round = 0; round < rounds; round++) {
        int at = (round & last_window) * (LOADS / 2) * THREADS + threadIdx.x;
#pragma unroll
        for (int load = 0; load < LOADS / 2; load++) {
            float4 value = tile[at + load * THREADS];
            a += value.x;
            b += value.y;
            c += value.z;
            d += value.w;
        }
    }
    sums[blockIdx.x * THREADS + threadIdx.x] = a + b + c + d;
}
