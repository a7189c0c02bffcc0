// Tensor cores in double precision by mma.sync: for compute capability 8.0 on. CUDA alone.
//
// As mma.cu: every warp multiplies a tile of 32 rows by one of 32 columns, again and again, from registers. operands holds the
// rows and then the columns; results gets each warp's 32 x 32 sums, row by row: after one round the product itself.

#define TILE 32

// The instruction of compute capability 8.0: 8 x 8 products over four values; 32 bytes of each row and column.
__global__ void ceiling_mma_float64(const double *operands, double *results, int rounds) {
#if __CUDA_ARCH__ >= 800
    int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    double a[4], b[4], sums[4][4][2] = {};
#pragma unroll
    for (int part = 0; part < 4; part++) {
        a[part] = operands[(8 * part + group) * 4 + place];
        b[part] = operands[(TILE + 8 * part + group) * 4 + place];
    }
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int row = 0; row < 4; row++) {
#pragma unroll
            for (int column = 0; column < 4; column++) {
                asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                    : "+d"(sums[row][column][0]), "+d"(sums[row][column][1]) : "d"(a[row]), "d"(b[column]));
            }
        }
    }
    double *tile = results + (blockIdx.x * blockDim.x + threadIdx.x) / 32 * TILE * TILE;
#pragma unroll
    for (int row = 0; row < 4; row++) {
#pragma unroll
        for (int column = 0; column < 4; column++) {
            tile[(8 * row + group) * TILE + 8 * column + 2 * place] = sums[row][column][0];
            tile[(8 * row + group) * TILE + 8 * column + 2 * place + 1] = sums[row][column][1];
        }
    }
#else
    __trap();  // nothing is measured where there is no such instruction
#endif
}

// That of compute capability 9.0: 16 x 8 products over 16 values; 128 bytes of each row and column.
__global__ void ceiling_mma_deep_float64(const double *operands, double *results, int rounds) {
#if __CUDA_ARCH__ >= 900
    int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    double a[2][8], b[4][4], sums[2][4][4] = {};
#pragma unroll
    for (int part = 0; part < 2; part++) {
#pragma unroll
        for (int index = 0; index < 8; index++) {
            a[part][index] = operands[(16 * part + 8 * (index % 2) + group) * 16 + 4 * (index / 2) + place];
        }
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
#pragma unroll
        for (int index = 0; index < 4; index++) {
            b[part][index] = operands[(TILE + 8 * part + group) * 16 + 4 * index + place];
        }
    }
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
#pragma unroll
            for (int column = 0; column < 4; column++) {
                double(&d)[4] = sums[row][column];
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3},"
                    " {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                    : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                    : "d"(a[row][0]), "d"(a[row][1]), "d"(a[row][2]), "d"(a[row][3]), "d"(a[row][4]), "d"(a[row][5]), "d"(a[row][6]),
                      "d"(a[row][7]), "d"(b[column][0]), "d"(b[column][1]), "d"(b[column][2]), "d"(b[column][3]));
            }
        }
    }
    double *tile = results + (blockIdx.x * blockDim.x + threadIdx.x) / 32 * TILE * TILE;
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int column = 0; column < 4; column++) {
#pragma unroll
            for (int index = 0; index < 4; index++) {
                tile[(16 * row + 8 * (index / 2) + group) * TILE + 8 * column + 2 * place + index % 2] = sums[row][column][index];
            }
        }
    }
#else
    __trap();  // nothing is measured where there is no such instruction
#endif
}
