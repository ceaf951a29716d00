#pragma once
/// The tile algebra from attention/cpu/bf16/tiles.h in plain C++, with the semantics of AMX's tileloadd,
/// tilestored and tdpbf16ps (Intel Instruction Set Extensions Programming Reference, ch. 3). A product sums
/// the even and the odd elements in each bf16 pair separately before it adds both to the accumulator.
/// Subnormal numbers are kept; AMX flushes them to 0.
#include <bit>
#include <cstdint>
#include <cstring>

#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {
namespace {

class EmulatedTiles {
  public:
    template <int tile>
    void zero() {
        std::memset(tile_[tile], 0, sizeof(Tile));
    }
    template <int tile>
    void load(const float* c, std::int64_t stride) {
        for (int row = 0; row < 16; ++row) std::memcpy(tile_[tile][row], c + row * stride, 64);
    }
    template <int tile>
    void load(const bfloat16* operand) {
        std::memcpy(tile_[tile], operand, sizeof(Tile));
    }
    template <int tile>
    void store(float* c, std::int64_t stride) {
        for (int row = 0; row < 16; ++row) std::memcpy(c + row * stride, tile_[tile][row], 64);
    }
    template <int c, int a, int b>
    void multiply_add() {
        for (int row = 0; row < 16; ++row) {
            float even[16] = {}, odd[16] = {};
            for (int pair = 0; pair < 16; ++pair) {
                const std::uint32_t a_pair = tile_[a][row][pair];
                for (int column = 0; column < 16; ++column) {
                    const std::uint32_t b_pair = tile_[b][pair][column];
                    even[column] += low_half(a_pair) * low_half(b_pair);
                    odd[column] += high_half(a_pair) * high_half(b_pair);
                }
            }
            for (int column = 0; column < 16; ++column) {
                const float before = std::bit_cast<float>(tile_[c][row][column]);
                tile_[c][row][column] = std::bit_cast<std::uint32_t>(before + (even[column] + odd[column]));
            }
        }
    }

  private:
    using Tile = std::uint32_t[16][16];
    static float low_half(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
    static float high_half(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
    Tile tile_[8];
};

}  // namespace
}  // namespace gradtile::attention::cpu
