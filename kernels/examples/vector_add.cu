// A whole program: adds two vectors on the GPU a few times and checks the sum.
//   nvcc -o vector_add vector_add.cu && ./vector_add [elements]
//   kernalyse profile --target vector_add.cu
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                       \
    do {                                                                                                  \
        cudaError_t status = (call);                                                                      \
        if (status != cudaSuccess) {                                                                      \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
            std::exit(1);                                                                                 \
        }                                                                                                 \
    } while (0)

constexpr int BLOCK_SIZE = 256;
constexpr int LAUNCH_COUNT = 10;

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

int main(int argc, char** argv) {
    const int n = argc > 1 ? std::atoi(argv[1]) : 1 << 24;
    if (n <= 0) {
        std::fprintf(stderr, "elements: found %s; expected a number over 0\n", argv[1]);
        return 2;
    }
    const size_t bytes = sizeof(float) * n;
    std::vector<float> a(n), b(n), c(n);
    for (int i = 0; i < n; ++i) {
        a[i] = 0.5f * (i % 1000);
        b[i] = 0.25f * (i % 1000);
    }
    float *device_a, *device_b, *device_c;
    CHECK(cudaMalloc(&device_a, bytes));
    CHECK(cudaMalloc(&device_b, bytes));
    CHECK(cudaMalloc(&device_c, bytes));
    CHECK(cudaMemcpy(device_a, a.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(device_b, b.data(), bytes, cudaMemcpyHostToDevice));
    for (int launch = 0; launch < LAUNCH_COUNT; ++launch) {
        vector_add<<<(n + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(device_a, device_b, device_c, n);
        CHECK(cudaGetLastError());
    }
    CHECK(cudaMemcpy(c.data(), device_c, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; ++i) {
        if (c[i] != a[i] + b[i]) {
            std::fprintf(stderr, "element %d: found %g; expected %g\n", i, c[i], a[i] + b[i]);
            return 1;
        }
    }
    CHECK(cudaFree(device_a));
    CHECK(cudaFree(device_b));
    CHECK(cudaFree(device_c));
    std::printf("%d elements added %d times\n", n, LAUNCH_COUNT);
    return 0;
}
