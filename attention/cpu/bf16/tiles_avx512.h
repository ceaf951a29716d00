#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. The tile algebra (see
/// attention/cpu/bf16/tiles.h) on AVX-512 with avx512_bf16.
#include <immintrin.h>

#include <cstdint>

#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {
namespace {

/// The accumulators are in memory. Each 16 x 16 x 32 product loads an accumulator into 16 vector registers
/// and stores it again; its 256 multiply-adds hide this cost. load() does not copy an operand, so the operand
/// must not change before the product. For an accumulator, load() does not read the memory either: store()
/// adds the memory's numbers to the summed products. The products between load() and store() are therefore
/// summed separately, so long sums stay accurate.
class Avx512Tiles {
  public:
    template <int tile>
    void zero() {
        before_[tile] = {nullptr, 0};
        for (int row = 0; row < 16; ++row)
            _mm512_store_ps(accumulator_[tile] + row * 16, _mm512_setzero_ps());
    }
    template <int tile>
    void load(const float* c, std::int64_t stride) {
        zero<tile>();
        before_[tile] = {c, stride};
    }
    template <int tile>
    void load(const bfloat16* operand) {
        operand_[tile] = operand;
    }
    template <int tile>
    void store(float* c, std::int64_t stride) {
        const Before before = before_[tile];
        for (int row = 0; row < 16; ++row) {
            __m512 sum = _mm512_load_ps(accumulator_[tile] + row * 16);
            if (before.c != nullptr)
                sum = _mm512_add_ps(sum, _mm512_loadu_ps(before.c + row * before.stride));
            _mm512_storeu_ps(c + row * stride, sum);
        }
    }
    template <int c, int a, int b>
    void multiply_add() {
        const auto* a_pairs = reinterpret_cast<const std::int32_t*>(operand_[a]);
        const auto* b_pairs = reinterpret_cast<const std::int32_t*>(operand_[b]);
        __m512 sum[16];
#pragma GCC unroll 16
        for (int row = 0; row < 16; ++row) sum[row] = _mm512_load_ps(accumulator_[c] + row * 16);
#pragma GCC unroll 1
        for (int pair = 0; pair < 16; ++pair) {
            const auto b_row = reinterpret_cast<__m512bh>(_mm512_load_si512(b_pairs + pair * 16));
#pragma GCC unroll 16
            for (int row = 0; row < 16; ++row) {
                __m512i a_pair = _mm512_set1_epi32(a_pairs[row * 16 + pair]);
#if defined(__clang__)
                asm("" : "+v"(a_pair));  // Clang 16 crashes if it sees a broadcast of bfloat16 pairs
#endif
                sum[row] = _mm512_dpbf16_ps(sum[row], reinterpret_cast<__m512bh>(a_pair), b_row);
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < 16; ++row) _mm512_store_ps(accumulator_[c] + row * 16, sum[row]);
    }

  private:
    struct Before {
        const float* c;
        std::int64_t stride;
    };
    alignas(64) float accumulator_[4][256];
    Before before_[4];
    const bfloat16* operand_[8];
};

}  // namespace
}  // namespace gradtile::attention::cpu
