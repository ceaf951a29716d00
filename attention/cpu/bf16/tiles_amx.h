#pragma once
/// INTERNAL, for per-instruction-set sources only. The tile algebra on AMX (Intel Instruction Set Extensions
/// Programming Reference, ch. 3); attention/cpu/bf16/tiles.h says what a tile algebra is.
#include <cstdint>

#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {
namespace {

/// Owns the thread's tile registers while it lives. Inline assembly rather than the compiler's intrinsics,
/// because those paste the tile number as text (no template argument can name a tile) and GCC 12's loads do
/// not order themselves behind stores to the memory they read.
class AmxTiles {
  public:
    AmxTiles() {
        struct alignas(64) Configuration {
            std::uint8_t palette = 1;
            std::uint8_t start_row = 0;
            std::uint8_t reserved[14] = {};
            std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        };
        static_assert(sizeof(Configuration) == 64);
        const Configuration configuration;
        asm volatile("ldtilecfg %0" ::"m"(configuration));
    }
    ~AmxTiles() { asm volatile("tilerelease"); }
    AmxTiles(const AmxTiles&) = delete;
    AmxTiles& operator=(const AmxTiles&) = delete;

    template <int tile>
    void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(tile));
    }
    template <int tile>
    void load(const float* c, std::int64_t stride) {
        load_bytes<tile>(c, stride * 4);
    }
    template <int tile>
    void load(const bfloat16* operand) {
        load_bytes<tile>(operand, 64);
    }
    template <int tile>
    void store(float* c, std::int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(c), "r"(stride * 4), "i"(tile) : "memory");
    }
    template <int c, int a, int b>
    void multiply_add() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
    }

  private:
    template <int tile>
    void load_bytes(const void* base, std::int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride), "i"(tile) : "memory");
    }
};

}  // namespace
}  // namespace gradtile::attention::cpu
