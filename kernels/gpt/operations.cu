// The operations of a GPT, one naive kernel each. Activations are row-major: a row for each token of each sequence,
// M = batch * T of them. Products and layer norms are the catalogue's matmul_naive and layernorm.

// x[row] = token_table[tokens[row]] + position_table[row % T]; rows of D channels, one thread per channel.
extern "C" __global__ void embedding(const int* __restrict__ tokens, const float* __restrict__ token_table,
                                     const float* __restrict__ position_table, float* __restrict__ x, int M, int T, int D) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < M * D) {
        const int row = i / D;
        const int channel = i % D;
        x[i] = token_table[tokens[row] * D + channel] + position_table[row % T * D + channel];
    }
}

// x[row] += bias for M rows of N channels.
extern "C" __global__ void add_bias(float* __restrict__ x, const float* __restrict__ bias, int M, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < M * N) {
        x[i] += bias[i % N];
    }
}

// x += delta.
extern "C" __global__ void add_residual(float* __restrict__ x, const float* __restrict__ delta, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        x[i] += delta[i];
    }
}

// x = GELU(x), in its tanh form.
extern "C" __global__ void gelu(float* __restrict__ x, int N) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        const float value = x[i];
        x[i] = 0.5f * value * (1.0f + tanhf(0.7978845608f * (value + 0.044715f * value * value * value)));
    }
}

// Scaled products of each query with the keys up to its own place. qkv has rows of 3 * H * D channels: queries, keys and
// values of H heads of D channels. scores is batch x H x T x T; what lies after a query's place is left as it is.
extern "C" __global__ void attention_scores(const float* __restrict__ qkv, float* __restrict__ scores, float scale, int H,
                                            int T, int D) {
    const int key = blockIdx.x * blockDim.x + threadIdx.x;
    const int query = blockIdx.y * blockDim.y + threadIdx.y;
    if (query < T && key <= query) {
        const int batch = blockIdx.z / H;
        const int head = blockIdx.z % H;
        const int stride = 3 * H * D;
        const int q = (batch * T + query) * stride + head * D;
        const int k = (batch * T + key) * stride + (H + head) * D;
        float sum = 0.0f;
        for (int channel = 0; channel < D; ++channel) {
            sum += qkv[q + channel] * qkv[k + channel];
        }
        scores[(blockIdx.z * T + query) * T + key] = sum * scale;
    }
}

// Softmax over the first row % T + 1 of the T scores in each of R rows, in place. One block per row: its maximum (so that no
// exponential overflows), the exponentials and their sum, the quotients. Needs blocks of a power of two, and blockDim.x * 4
// bytes of dynamic shared memory.
extern "C" __global__ void causal_softmax(float* __restrict__ scores, int R, int T) {
    extern __shared__ float values[];
    const int row = blockIdx.x;
    if (row >= R) {
        return;  // the whole block leaves, so no barrier is missed
    }
    float* line = scores + row * T;
    const int count = row % T + 1;

    float maximum = -INFINITY;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        maximum = fmaxf(maximum, line[i]);
    }
    values[threadIdx.x] = maximum;
    __syncthreads();
    for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) {
            values[threadIdx.x] = fmaxf(values[threadIdx.x], values[threadIdx.x + distance]);
        }
        __syncthreads();
    }
    maximum = values[0];
    __syncthreads();  // everyone has read before the sums overwrite it

    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const float exponential = expf(line[i] - maximum);
        line[i] = exponential;
        sum += exponential;
    }
    values[threadIdx.x] = sum;
    __syncthreads();
    for (int distance = blockDim.x / 2; distance > 0; distance /= 2) {
        if (threadIdx.x < distance) {
            values[threadIdx.x] += values[threadIdx.x + distance];
        }
        __syncthreads();
    }
    sum = values[0];

    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        line[i] /= sum;
    }
}

// Values weighted by the scores up to each query's place: rows of H * D channels. qkv and scores as in attention_scores.
extern "C" __global__ void attention_values(const float* __restrict__ scores, const float* __restrict__ qkv,
                                            float* __restrict__ output, int H, int T, int D) {
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    const int query = blockIdx.y * blockDim.y + threadIdx.y;
    if (query < T && channel < D) {
        const int batch = blockIdx.z / H;
        const int head = blockIdx.z % H;
        float sum = 0.0f;
        for (int key = 0; key <= query; ++key) {
            const int v = (batch * T + key) * 3 * H * D + (2 * H + head) * D;
            sum += scores[(blockIdx.z * T + query) * T + key] * qkv[v + channel];
        }
        output[(batch * T + query) * H * D + head * D + channel] = sum;
    }
}
