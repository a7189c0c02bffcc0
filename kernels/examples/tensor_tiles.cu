// C = A * B on tensor cores, for row-major matrices: A is M x K, B is K x N, C is M x N; M and N multiples of 128, K of 32.
// Each block of 256 threads makes a 128 x 128 tile of C from tiles of A and B in shared memory, and fetches the next tiles into
// registers while it works on these. Each of its 8 warps makes 32 x 64 of that tile, in fragments of 16 x 16.

#include <cuda_fp16.h>
#include <mma.h>

#define FRAGMENT 16
#define ROWS 128
#define COLUMNS 128
#define DEPTH 32
#define PADDING 8     // halves at the end of each row: spreads rows over the banks
#define AT_ONCE 8     // halves in one access of 16 bytes
#define THREADS 256
#define FETCHES (ROWS * DEPTH / AT_ONCE / THREADS)  // of A, and as many of B

__global__ void __launch_bounds__(THREADS) matmul_tensor_tiled(const half *A, const half *B, float *C, int M, int N, int K) {
    using namespace nvcuda;
    __shared__ __align__(32) half tile_a[ROWS][DEPTH + PADDING];
    __shared__ __align__(32) half tile_b[DEPTH][COLUMNS + PADDING];
    const int block_row = blockIdx.y * ROWS;
    const int block_column = blockIdx.x * COLUMNS;
    const int warp = threadIdx.x / 32;
    const int warp_row = warp / 2 * 32;
    const int warp_column = warp % 2 * 64;

    wmma::fragment<wmma::accumulator, FRAGMENT, FRAGMENT, FRAGMENT, float> sums[2][4];
    for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
            wmma::fill_fragment(sums[i][j], 0.0f);
        }
    }
    int4 next_a[FETCHES];
    int4 next_b[FETCHES];
#pragma unroll
    for (int i = 0; i < FETCHES; ++i) {
        const int part = threadIdx.x + i * THREADS;
        next_a[i] = *(const int4 *)(A + (size_t)(block_row + part / 4) * K + part % 4 * AT_ONCE);
        next_b[i] = *(const int4 *)(B + (size_t)(part / 16) * N + block_column + part % 16 * AT_ONCE);
    }
    for (int depth = 0; depth < K; depth += DEPTH) {
#pragma unroll
        for (int i = 0; i < FETCHES; ++i) {
            const int part = threadIdx.x + i * THREADS;
            *(int4 *)&tile_a[part / 4][part % 4 * AT_ONCE] = next_a[i];
            *(int4 *)&tile_b[part / 16][part % 16 * AT_ONCE] = next_b[i];
        }
        __syncthreads();
        if (depth + DEPTH < K) {
#pragma unroll
            for (int i = 0; i < FETCHES; ++i) {
                const int part = threadIdx.x + i * THREADS;
                next_a[i] = *(const int4 *)(A + (size_t)(block_row + part / 4) * K + depth + DEPTH + part % 4 * AT_ONCE);
                next_b[i] = *(const int4 *)(B + (size_t)(depth + DEPTH + part / 16) * N + block_column + part % 16 * AT_ONCE);
            }
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k += FRAGMENT) {
            wmma::fragment<wmma::matrix_a, FRAGMENT, FRAGMENT, FRAGMENT, half, wmma::row_major> a[2];
            wmma::fragment<wmma::matrix_b, FRAGMENT, FRAGMENT, FRAGMENT, half, wmma::row_major> b[4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(a[i], &tile_a[warp_row + i * FRAGMENT][k], DEPTH + PADDING);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                wmma::load_matrix_sync(b[j], &tile_b[k][warp_column + j * FRAGMENT], COLUMNS + PADDING);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
                }
            }
        }
        __syncthreads();  // before the next tiles overwrite these
    }
    for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
            float *part = C + (size_t)(block_row + warp_row + i * FRAGMENT) * N + block_column + warp_column + j * FRAGMENT;
            wmma::store_matrix_sync(part, sums[i][j], N, wmma::mem_row_major);
        }
    }
}
