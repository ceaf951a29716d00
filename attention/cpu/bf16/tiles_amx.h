#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. The tile algebra (see
/// attention/cpu/bf16/tiles.h) on AMX (Intel Instruction Set Extensions Programming Reference, ch. 3).
#include <cstdint>

#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {
namespace {

/// Configures the thread's tile registers and releases them at the end. The class uses inline assembly for
/// two reasons: the compiler's intrinsics do not accept a template argument as tile number, and GCC 12 may
/// move an intrinsic's load ahead of a store to the same memory.
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
