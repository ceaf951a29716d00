#pragma once
/// INTERNAL, for per-instruction-set sources only (see flash_bf16_tiles.h). What the forward and the backward
/// bf16 kernels share: how large their blocks are and how a task's scratch is divided.
#include <gradtile/attention/flash_bf16_softmax.h>

namespace gradtile::attention::cpu {
namespace {

/// Block sizes: powers of two times a square, so that their borders are borders of squares.
struct BlockPolicy {
    // A forward task packs K and V anew, which costs 1/rows of the work; its O (float32) and one block of K
    // and V stay in the L2 cache. Short sequences are cut finer to give several threads something to do.
    std::int64_t forward_rows, forward_keys;
    // A backward task keeps K, V, dK and dV of its keys, and P and dS of rows x keys, in the L2 cache; it
    // packs Q and dO anew, which costs 1/keys of the work.
    std::int64_t backward_rows, backward_keys;
};
inline BlockPolicy block_policy(const Geometry& geometry) {
    const bool wide = larger(geometry.d_qk, geometry.d_v) > 128;
    const std::int64_t queries = geometry.mask.queries, keys = geometry.mask.keys;
    const std::int64_t most_keys = wide ? 128 : 256;
    return {.forward_rows =
                smaller(queries >= 2048 && !wide ? 256 : 128, larger(square, round_up(queries, square))),
            .forward_keys = most_keys,
            .backward_rows = 128,
            .backward_keys = smaller(keys >= 2048 ? most_keys : 128, larger(square, round_up(keys, square)))};
}

/// Hands out pieces of a task's scratch, each on a cache line; from a null base it only measures.
class ScratchPieces {
  public:
    explicit ScratchPieces(std::byte* base) : base_(base) {}
    std::size_t bytes() const { return used_; }
    /// Room for `count` groups of sixteen rows or columns, `depth` summed elements deep.
    Operand operand(std::int64_t extent, std::int64_t summed) {
        const std::int64_t depth = round_up(summed, tile_depth) / tile_depth;
        return {piece<bfloat16>(round_up(extent, square) / tile_rows * depth * tile_elements), depth};
    }
    /// A sixteenth of padding per row keeps a tile's sixteen rows in different cache sets.
    Matrix matrix(std::int64_t rows, std::int64_t columns) {
        const std::int64_t stride = round_up(columns, square) + 16;
        return {piece<float>(round_up(rows, square) * stride), stride};
    }
    template <class T>
    T* piece(std::int64_t count) {
        std::byte* const here = base_ == nullptr ? nullptr : base_ + used_;
        used_ += static_cast<std::size_t>(round_up(count * static_cast<std::int64_t>(sizeof(T)), 64));
        return reinterpret_cast<T*>(here);
    }

  private:
    std::byte* base_;
    std::size_t used_ = 0;
};

/// Squares that the columns of `keys` touch in a block starting at key `first`.
inline IndexRange squares_of(IndexRange keys, std::int64_t first) {
    return {(keys.begin - first) / square, (keys.end - first + square - 1) / square};
}

/// The scores' factor in base 2. The kernels want it positive: a negative one goes into Q, and 0 becomes a
/// number too small to show, since 0 * -inf would make a masked score NaN.
inline float positive_scale(const Geometry& geometry) {
    const double magnitude = geometry.scale < 0 ? -geometry.scale : geometry.scale;
    const float scale = static_cast<float>(magnitude) * log2_e;
    return scale > 1e-30f ? scale : 1e-30f;
}

inline void clear(const Matrix& x, std::int64_t rows, std::int64_t columns) {
    for (std::int64_t i = 0; i < round_up(rows, square); ++i)
        for (std::int64_t j = 0; j < round_up(columns, square); j += 16)
            _mm512_storeu_ps(x.at(i, j), _mm512_setzero_ps());
}

}  // namespace
}  // namespace gradtile::attention::cpu
