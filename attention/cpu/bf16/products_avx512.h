#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. The products for the bf16 kernels on
/// AVX-512 with avx512_bf16.
#include <immintrin.h>

#include <gradtile/attention/cpu/bf16/tiles.h>

namespace gradtile::attention::cpu {
namespace {

struct Avx512Products {};

/// See attention/cpu/bf16/tiles.h. Eight rows x 32 columns are summed in 16 registers over the whole depth:
/// enough independent sums to hide the latency of two units, and 10 loads for 16 instructions. The function
/// is not inlined, because an inlined copy would share the registers with constants from the caller's loop.
[[gnu::noinline]] inline void multiply_square(Avx512Products&, const Matrix& c, const Operand& a,
                                              std::int64_t i, const Operand& b, std::int64_t j,
                                              IndexRange depth, Sum sum) {
    constexpr int rows = 8;
    for (std::int64_t first = 0; first < square; first += rows) {
        const auto* a_pairs = reinterpret_cast<const std::int32_t*>(
            a.tile(2 * i + first / tile_rows, depth.begin) + first % tile_rows * tile_depth);
        const bfloat16 *b0 = b.tile(2 * j, depth.begin), *b1 = b.tile(2 * j + 1, depth.begin);
        __m512 sums[rows][2];
#pragma GCC unroll 8
        for (int row = 0; row < rows; ++row) sums[row][0] = sums[row][1] = _mm512_setzero_ps();
        for (std::int64_t k = depth.begin; k < depth.end; ++k) {
#pragma GCC unroll 1
            for (int pair = 0; pair < tile_depth / 2; ++pair) {
                const auto b_low = reinterpret_cast<__m512bh>(_mm512_load_si512(b0)),
                           b_high = reinterpret_cast<__m512bh>(_mm512_load_si512(b1));
#pragma GCC unroll 8
                for (int row = 0; row < rows; ++row) {
                    __m512i a_pair = _mm512_set1_epi32(a_pairs[row * tile_depth / 2]);
                    asm("" : "+v"(a_pair));  // one broadcast for two products
                    sums[row][0] = _mm512_dpbf16_ps(sums[row][0], reinterpret_cast<__m512bh>(a_pair), b_low);
                    sums[row][1] = _mm512_dpbf16_ps(sums[row][1], reinterpret_cast<__m512bh>(a_pair), b_high);
                }
                ++a_pairs, b0 += 2 * tile_rows, b1 += 2 * tile_rows;
            }
            a_pairs += (tile_rows - 1) * tile_depth / 2;
        }
        // The products are summed apart from c, so that long sums stay accurate.
#pragma GCC unroll 8
        for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                float* const to = c.at(first + row, half * tile_rows);
                if (sum == Sum::accumulate)
                    sums[row][half] = _mm512_add_ps(sums[row][half], _mm512_loadu_ps(to));
                _mm512_storeu_ps(to, sums[row][half]);
            }
        }
    }
}

}  // namespace
}  // namespace gradtile::attention::cpu
