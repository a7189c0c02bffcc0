// What device memory can deliver at most. Which of the four patterns is fastest depends on the device: a CPU reads a line
// of memory before it writes one, so a copy moves half as much again as it seems to; an update in place and a read do not.

__global__ void ceiling_copy(const float *source, float *target, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        target[index] = source[index];
    }
}

__global__ void ceiling_triad(const float *left, const float *right, float *target, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        target[index] = left[index] + 3.0f * right[index];
    }
}

__global__ void ceiling_update(const float *source, float *target, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        target[index] = target[index] + 3.0f * source[index];
    }
}

// Each block reads one stretch of 16 elements a thread, neighbouring threads neighbouring elements: whole lines on a GPU,
// and on a CPU a stretch short enough for its nearest cache and its prefetcher. One sum in 16 elements is written.
__global__ void ceiling_read(const float *source, float *sums, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    int start = blockIdx.x * blockDim.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int step = 0; step < 16; step++) {
        int position = start + step * blockDim.x;
        if (position < count) {
            sum += source[position];
        }
    }
    sums[index] = sum;
}
