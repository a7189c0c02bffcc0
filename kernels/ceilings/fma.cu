// Fused multiply-adds on registers alone: eight independent chains a thread, so that one waiting for its own result leaves
// the unit to the others. 16 floating-point operations a round. The factor keeps every value finite and away from denormals.
// The "contracted" forms leave the fusing to the compiler: a runtime without a fused instruction emulates fma() in software.
// The "wide" forms give a compiler that does not vectorize across threads eight neighbouring values to put into one register.
// The "unrolled" forms are for GPUs, where every instruction of the loop itself takes the turn of a multiply-add.

__global__ void ceiling_fma_float32(float *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float a = index * 0.001f, b = a + 0.1f, c = a + 0.2f, d = a + 0.3f, e = a + 0.4f, f = a + 0.5f, g = a + 0.6f, h = a + 0.7f;
    for (int round = 0; round < rounds; round++) {
        a = fmaf(a, 0.5f, 0.5f);
        b = fmaf(b, 0.5f, 0.5f);
        c = fmaf(c, 0.5f, 0.5f);
        d = fmaf(d, 0.5f, 0.5f);
        e = fmaf(e, 0.5f, 0.5f);
        f = fmaf(f, 0.5f, 0.5f);
        g = fmaf(g, 0.5f, 0.5f);
        h = fmaf(h, 0.5f, 0.5f);
    }
    results[index] = a + b + c + d + e + f + g + h;
}

__global__ void ceiling_contracted_float32(float *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float a = index * 0.001f, b = a + 0.1f, c = a + 0.2f, d = a + 0.3f, e = a + 0.4f, f = a + 0.5f, g = a + 0.6f, h = a + 0.7f;
    for (int round = 0; round < rounds; round++) {
        a = a * 0.5f + 0.5f;
        b = b * 0.5f + 0.5f;
        c = c * 0.5f + 0.5f;
        d = d * 0.5f + 0.5f;
        e = e * 0.5f + 0.5f;
        f = f * 0.5f + 0.5f;
        g = g * 0.5f + 0.5f;
        h = h * 0.5f + 0.5f;
    }
    results[index] = a + b + c + d + e + f + g + h;
}

__global__ void ceiling_fma_float64(double *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    double a = index * 0.001, b = a + 0.1, c = a + 0.2, d = a + 0.3, e = a + 0.4, f = a + 0.5, g = a + 0.6, h = a + 0.7;
    for (int round = 0; round < rounds; round++) {
        a = fma(a, 0.5, 0.5);
        b = fma(b, 0.5, 0.5);
        c = fma(c, 0.5, 0.5);
        d = fma(d, 0.5, 0.5);
        e = fma(e, 0.5, 0.5);
        f = fma(f, 0.5, 0.5);
        g = fma(g, 0.5, 0.5);
        h = fma(h, 0.5, 0.5);
    }
    results[index] = a + b + c + d + e + f + g + h;
}

__global__ void ceiling_contracted_float64(double *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    double a = index * 0.001, b = a + 0.1, c = a + 0.2, d = a + 0.3, e = a + 0.4, f = a + 0.5, g = a + 0.6, h = a + 0.7;
    for (int round = 0; round < rounds; round++) {
        a = a * 0.5 + 0.5;
        b = b * 0.5 + 0.5;
        c = c * 0.5 + 0.5;
        d = d * 0.5 + 0.5;
        e = e * 0.5 + 0.5;
        f = f * 0.5 + 0.5;
        g = g * 0.5 + 0.5;
        h = h * 0.5 + 0.5;
    }
    results[index] = a + b + c + d + e + f + g + h;
}

__global__ void ceiling_wide_float32(float *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float values[64];
    for (int lane = 0; lane < 64; lane++) {
        values[lane] = (index + lane) * 0.001f;
    }
    for (int round = 0; round < rounds; round += 8) {
        for (int lane = 0; lane < 64; lane++) {
            values[lane] = values[lane] * 0.5f + 0.5f;
        }
    }
    float sum = 0.0f;
    for (int lane = 0; lane < 64; lane++) {
        sum += values[lane];
    }
    results[index] = sum;
}

__global__ void ceiling_wide_float64(double *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    double values[64];
    for (int lane = 0; lane < 64; lane++) {
        values[lane] = (index + lane) * 0.001;
    }
    for (int round = 0; round < rounds; round += 8) {
        for (int lane = 0; lane < 64; lane++) {
            values[lane] = values[lane] * 0.5 + 0.5;
        }
    }
    double sum = 0.0;
    for (int lane = 0; lane < 64; lane++) {
        sum += values[lane];
    }
    results[index] = sum;
}

__global__ void ceiling_unrolled_float32(float *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float a = index * 0.001f, b = a + 0.1f, c = a + 0.2f, d = a + 0.3f, e = a + 0.4f, f = a + 0.5f, g = a + 0.6f, h = a + 0.7f;
    for (int round = 0; round < rounds; round += 32) {
#pragma unroll
        for (int step = 0; step < 32; step++) {
            a = fmaf(a, 0.5f, 0.5f);
            b = fmaf(b, 0.5f, 0.5f);
            c = fmaf(c, 0.5f, 0.5f);
            d = fmaf(d, 0.5f, 0.5f);
            e = fmaf(e, 0.5f, 0.5f);
            f = fmaf(f, 0.5f, 0.5f);
            g = fmaf(g, 0.5f, 0.5f);
            h = fmaf(h, 0.5f, 0.5f);
        }
    }
    results[index] = a + b + c + d + e + f + g + h;
}

__global__ void ceiling_unrolled_float64(double *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    double a = index * 0.001, b = a + 0.1, c = a + 0.2, d = a + 0.3, e = a + 0.4, f = a + 0.5, g = a + 0.6, h = a + 0.7;
    for (int round = 0; round < rounds; round += 32) {
#pragma unroll
        for (int step = 0; step < 32; step++) {
            a = fma(a, 0.5, 0.5);
            b = fma(b, 0.5, 0.5);
            c = fma(c, 0.5, 0.5);
            d = fma(d, 0.5, 0.5);
            e = fma(e, 0.5, 0.5);
            f = fma(f, 0.5, 0.5);
            g = fma(g, 0.5, 0.5);
            h = fma(h, 0.5, 0.5);
        }
    }
    results[index] = a + b + c + d + e + f + g + h;
}

// Two half-precision values in each register: 32 floating-point operations a round. CUDA alone.
__device__ __forceinline__ unsigned fused_half2(unsigned value, unsigned halves) {
    unsigned result;
    asm("fma.rn.f16x2 %0, %1, %2, %2;" : "=r"(result) : "r"(value), "r"(halves));
    return result;
}

__global__ void ceiling_half2_float16(unsigned *results, int rounds) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    // 0.5 and 0.5, hidden from the compiler: of a constant it makes an immediate operand, which only one of the two pipes takes
    // that multiply-adds of halves go through on compute capability 8.0 and 9.0. Inside the loop it knows that rounds is positive.
    const unsigned halves = rounds < 0 ? 0 : 0x38003800;
    unsigned a = 0x30003400 + index % 1024, b = a + 1, c = a + 2, d = a + 3, e = a + 4, f = a + 5, g = a + 6, h = a + 7;
    for (int round = 0; round < rounds; round += 32) {
#pragma unroll
        for (int step = 0; step < 32; step++) {
            a = fused_half2(a, halves);
            b = fused_half2(b, halves);
            c = fused_half2(c, halves);
            d = fused_half2(d, halves);
            e = fused_half2(e, halves);
            f = fused_half2(f, halves);
            g = fused_half2(g, halves);
            h = fused_half2(h, halves);
        }
    }
    results[index] = a ^ b ^ c ^ d ^ e ^ f ^ g ^ h;
}
