// What device memory can deliver at most. Which of the four patterns is fastest depends on the device: a CPU reads a line
// of memory before it writes one, so a copy moves half as much again as it seems to; an update in place and a read do not.
// The float4 forms are for GPUs, whose threads have to ask for 16 bytes at a time, and for several of them before they wait.

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

__global__ void ceiling_copy_float4(const float4 *source, float4 *target, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        target[index] = source[index];
    }
}

__global__ void ceiling_triad_float4(const float4 *left, const float4 *right, float4 *target, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        float4 a = left[index], b = right[index];
        target[index] = make_float4(a.x + 3.0f * b.x, a.y + 3.0f * b.y, a.z + 3.0f * b.z, a.w + 3.0f * b.w);
    }
}

__global__ void ceiling_update_float4(const float4 *source, float4 *target, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        float4 a = target[index], b = source[index];
        target[index] = make_float4(a.x + 3.0f * b.x, a.y + 3.0f * b.y, a.z + 3.0f * b.z, a.w + 3.0f * b.w);
    }
}

// Four times 16 bytes a thread, all on their way before the first is written. The count is a multiple of what a block takes.
__global__ void ceiling_copy_ahead(const float4 *source, float4 *target, int count) {
    int index = blockIdx.x * blockDim.x * 4 + threadIdx.x;
    int step = blockDim.x;
    if (index + 3 * step < count) {
        float4 a = source[index], b = source[index + step], c = source[index + 2 * step], d = source[index + 3 * step];
        target[index] = a;
        target[index + step] = b;
        target[index + 2 * step] = c;
        target[index + 3 * step] = d;
    }
}

// As above, telling the caches that nothing will be asked for again. CUDA alone.
__global__ void ceiling_copy_streaming(const float4 *source, float4 *target, int count) {
    int index = blockIdx.x * blockDim.x * 4 + threadIdx.x;
    int step = blockDim.x;
    if (index + 3 * step < count) {
        float4 a = __ldcs(source + index), b = __ldcs(source + index + step);
        float4 c = __ldcs(source + index + 2 * step), d = __ldcs(source + index + 3 * step);
        __stcs(target + index, a);
        __stcs(target + index + step, b);
        __stcs(target + index + 2 * step, c);
        __stcs(target + index + 3 * step, d);
    }
}

// Sixteen times 16 bytes a thread, eight at a time. One sum in 64 elements is written.
__global__ void ceiling_read_float4(const float4 *source, float *sums, int count) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    int start = blockIdx.x * blockDim.x * 16 + threadIdx.x;
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
#pragma unroll 8
    for (int step = 0; step < 16; step++) {
        int position = start + step * blockDim.x;
        if (position < count) {
            float4 value = source[position];
            a += value.x;
            b += value.y;
            c += value.z;
            d += value.w;
        }
    }
    sums[index] = a + b + c + d;
}
