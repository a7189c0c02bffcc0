// res = a * b on tensor cores, for row-major matrices: a is N x K, b is K x M, res is N x M, all sizes multiples of 16.
// Each block is one warp and makes one 16 x 16 tile of res.

#include <cuda_fp16.h>
#include <mma.h>

#define TILE 16

__global__ void matmul_tensor(const half *a, const half *b, float *res, int N, int M, int K) {
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, half, wmma::row_major> tile_a;
    wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, half, wmma::row_major> tile_b;
    wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> sums;
    const int row = blockIdx.y * TILE;
    const int column = blockIdx.x * TILE;
    wmma::fill_fragment(sums, 0.0f);
    for (int first = 0; first < K; first += TILE) {
        wmma::load_matrix_sync(tile_a, a + row * K + first, K);
        wmma::load_matrix_sync(tile_b, b + first * M + column, M);
        wmma::mma_sync(sums, tile_a, tile_b, sums);
    }
    wmma::store_matrix_sync(res + row * M + column, sums, M, wmma::mem_row_major);
}
