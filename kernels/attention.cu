// Causal attention in one kernel: softmax(scale * q * k) * v for each query over the keys up to its own place, without ever
// writing the scores. qkv has rows of 3 * H * HEAD_WIDTH channels, one for each of T tokens of each sequence: queries, keys
// and values of H heads. output has rows of H * HEAD_WIDTH.
//
// One thread per query. It goes through the keys in groups of KEYS and keeps maximum, sum and weighted values of those seen
// so far; where a group raises the maximum, what was summed before is scaled down to it.

#ifndef HEAD_WIDTH
#define HEAD_WIDTH 32
#endif
#define KEYS 4  // scores at once: more take registers, fewer rescale more often

extern "C" __global__ void causal_attention(const float* __restrict__ qkv, float* __restrict__ output, float scale, int H,
                                            int T) {
    const int first_query = blockIdx.x * blockDim.x;
    const int query = first_query + threadIdx.x;
    const int last = min(first_query + (int)blockDim.x, T);  // the same for the block, whose threads stay together
    const int batch = blockIdx.y / H;
    const int head = blockIdx.y % H;
    const int stride = 3 * H * HEAD_WIDTH;
    const int tokens = batch * T;
    const int q_at = (tokens + min(query, T - 1)) * stride + head * HEAD_WIDTH;
    const int k_at = tokens * stride + (H + head) * HEAD_WIDTH;
    const int v_at = k_at + H * HEAD_WIDTH;

    float q[HEAD_WIDTH];
    float values[HEAD_WIDTH];
#pragma unroll
    for (int channel = 0; channel < HEAD_WIDTH; ++channel) {
        q[channel] = qkv[q_at + channel] * scale;
        values[channel] = 0.0f;
    }
    float maximum = -INFINITY;
    float sum = 0.0f;
    for (int first_key = 0; first_key < last; first_key += KEYS) {
        float scores[KEYS];
        float group_maximum = maximum;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const int row = k_at + min(first_key + i, T - 1) * stride;
            float score = 0.0f;
#pragma unroll
            for (int channel = 0; channel < HEAD_WIDTH; ++channel) {
                score += q[channel] * qkv[row + channel];
            }
            scores[i] = first_key + i <= query ? score : -INFINITY;
            group_maximum = fmaxf(group_maximum, scores[i]);
        }
        const float correction = expf(maximum - group_maximum);
        maximum = group_maximum;
        sum *= correction;
#pragma unroll
        for (int channel = 0; channel < HEAD_WIDTH; ++channel) {
            values[channel] *= correction;
        }
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const int row = v_at + min(first_key + i, T - 1) * stride;
            const float weight = expf(scores[i] - maximum);
            sum += weight;
#pragma unroll
            for (int channel = 0; channel < HEAD_WIDTH; ++channel) {
                values[channel] += weight * qkv[row + channel];
            }
        }
    }
    if (query < T) {
        const int output_at = ((tokens + query) * H + head) * HEAD_WIDTH;
#pragma unroll
        for (int channel = 0; channel < HEAD_WIDTH; ++channel) {
            output[output_at + channel] = values[channel] / sum;
        }
    }
}
