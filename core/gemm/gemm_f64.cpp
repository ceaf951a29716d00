// float64 products: cache- and register-blocked loops in GCC's vector types. They compute reference values
// and finite differences, so they must be correct, reasonably fast, and independent of the matrix library.
#include <algorithm>
#include <vector>

#include <gradtile/core/gemm/internal/gemm_library.h>

namespace gradtile::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif
using Vector = double __attribute__((vector_size(lanes * sizeof(double))));

// The tile of c in registers: 6 x 2 vectors for c, two for b and one for a fit in 16 registers.
constexpr int tile_rows = 6;
constexpr int tile_vectors = 2;
constexpr int tile_columns = tile_vectors * lanes;
// A strip of b [depth, tile_columns] (32 KiB with AVX-512) stays in the L1 cache, while a panel of a [rows,
// depth] (192 KiB) is read from the L2 cache.
constexpr std::int64_t depth = 256;
constexpr std::int64_t panel_rows = 16 * tile_rows;

/// The matrix op(x).
struct Matrix {
    const double* data;
    std::int64_t row_step, column_step;
    double at(std::int64_t row, std::int64_t column) const {
        return data[row * row_step + column * column_step];
    }
};

/// sum[i][j] = sum over p of a[p, i] b[p, j], for packed strips a [k, tile_rows] and b [k, tile_columns].
void multiply_tile(std::int64_t k, const double* a, const double* b, Vector (&sum)[tile_rows][tile_vectors]) {
    Vector held[tile_rows][tile_vectors] = {};
    for (std::int64_t p = 0; p < k; ++p) {
        Vector right[tile_vectors];
        __builtin_memcpy(right, b + p * tile_columns, sizeof right);
#pragma GCC unroll 6
        for (int i = 0; i < tile_rows; ++i)
#pragma GCC unroll 2
            for (int j = 0; j < tile_vectors; ++j) held[i][j] += a[p * tile_rows + i] * right[j];
    }
    __builtin_memcpy(sum, held, sizeof held);
}

}  // namespace

void gemm_f64(const GemmBlock& block, double alpha, const double* a, const double* b, double* c) {
    const Matrix left{a, block.trans_a ? 1 : block.lda, block.trans_a ? block.lda : 1};
    const Matrix right{b, block.trans_b ? 1 : block.ldb, block.trans_b ? block.ldb : 1};
    thread_local std::vector<double> a_panel(panel_rows * depth), b_strip(depth * tile_columns);

    for (std::int64_t p0 = 0; p0 < block.k; p0 += depth) {
        const std::int64_t k = std::min(depth, block.k - p0);
        const bool add = block.accumulate || p0 > 0;
        for (std::int64_t i0 = 0; i0 < block.m; i0 += panel_rows) {
            const std::int64_t rows = std::min(panel_rows, block.m - i0);
            for (std::int64_t i = 0; i < rows; i += tile_rows)
                for (std::int64_t p = 0; p < k; ++p)
                    for (std::int64_t r = 0; r < tile_rows; ++r)
                        a_panel[i * k + p * tile_rows + r] = i + r < rows ? left.at(i0 + i + r, p0 + p) : 0.0;
            for (std::int64_t j0 = 0; j0 < block.n; j0 += tile_columns) {
                const std::int64_t columns = std::min<std::int64_t>(tile_columns, block.n - j0);
                for (std::int64_t p = 0; p < k; ++p)
                    for (std::int64_t j = 0; j < tile_columns; ++j)
                        b_strip[p * tile_columns + j] = j < columns ? right.at(p0 + p, j0 + j) : 0.0;
                for (std::int64_t i = 0; i < rows; i += tile_rows) {
                    Vector sum[tile_rows][tile_vectors];
                    multiply_tile(k, a_panel.data() + i * k, b_strip.data(), sum);
                    const double* sums = reinterpret_cast<const double*>(sum);
                    for (std::int64_t r = 0; r < std::min<std::int64_t>(tile_rows, rows - i); ++r) {
                        double* target = c + (i0 + i + r) * block.ldc + j0;
                        for (std::int64_t j = 0; j < columns; ++j)
                            target[j] = (add ? target[j] : 0.0) + alpha * sums[r * tile_columns + j];
                    }
                }
            }
        }
    }
}

}  // namespace gradtile::cpu
