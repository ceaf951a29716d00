#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. Block sizes and scratch memory for the
/// bf16 kernels, forward and backward.
#include <gradtile/attention/cpu/bf16/softmax.h>

namespace gradtile::attention::cpu {
namespace {

/// Block sizes, multiples of `square`. The numbers in the comments below are GFLOP/s for one causal call with
/// 12 heads and 4096 tokens, on 2 threads of a Xeon with AMX.
struct BlockPolicy {
    std::int64_t forward_rows, forward_keys, backward_keys;
};
/// Head dim 128: 1391 with 128 rows, 1250 with 64, 1310 with 256.
constexpr std::int64_t backward_rows = 128;
constexpr std::int64_t max_backward_keys = 512;
inline BlockPolicy block_policy(const Geometry& geometry) {
    const std::int64_t queries = round_up(larger(geometry.mask.queries, 1), square);
    const std::int64_t keys = round_up(larger(geometry.mask.keys, 1), square);
    const std::int64_t head_dim = larger(geometry.d_qk, geometry.d_v);
    const bool narrow = head_dim <= 64, wide = head_dim > 128, long_keys = keys >= 4096;
    return {
        // Every task packs K and V. The packing costs 1/rows of the task's work (head dim 64, one thread: 436
        // with 512 rows, 408 with 256). O and a K/V block fit the L2 cache. Short sequences get smaller
        // tasks, so that all threads have work.
        .forward_rows = smaller(wide || queries < 2048 ? 128
                                : queries < 4096       ? 256
                                                       : 512,
                                queries),
        // Head dim 64: 974 with 256 keys, 892 with 128. With more keys a strip's scores would not fit the L1
        // cache.
        .forward_keys = smaller(wide ? 128 : 256, keys),
        // Every task packs Q and dO and adds to every dQ row. These two steps cost 1/keys of the task's work
        // (head dim 64: 1320 with 256 keys, 1049 with 128). K, V, dK, dV, and a row block's P and dS, fit the
        // L2 cache.
        .backward_keys = smaller(narrow && long_keys ? max_backward_keys
                                 : wide              ? 128
                                                     : 256,
                                 keys)};
}

/// Allocates arrays from a task's scratch memory. Each array starts on its own cache line. If the pointer to
/// the memory is null, the class only counts bytes.
class ScratchPieces {
  public:
    explicit ScratchPieces(std::byte* base) : base_(base) {}
    std::size_t bytes() const { return used_; }
    /// An operand with `extent` rows (left) or columns (right) and `summed` elements along the summed axis.
    Operand operand(std::int64_t extent, std::int64_t summed) {
        const std::int64_t depth = round_up(summed, tile_depth) / tile_depth;
        return {piece<bfloat16>(round_up(extent, square) / tile_rows * depth * tile_elements), depth};
    }
    /// A float32 matrix. One padding cache line per row puts a tile's 16 rows into different cache sets.
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

/// Returns the squares that contain the given tokens. Square 0 begins at token `first`.
inline IndexRange squares_of(IndexRange tokens, std::int64_t first) {
    return {(tokens.begin - first) / square, (tokens.end - first + square - 1) / square};
}

/// Calls body(run) for every run of neighbouring squares among 0 .. count - 1 for which seen(square) holds.
template <class Seen, class Body>
inline void for_runs(std::int64_t count, Seen seen, Body body) {
    for (std::int64_t begin = 0; begin < count; ++begin) {
        if (!seen(begin)) continue;
        std::int64_t end = begin + 1;
        while (end < count && seen(end)) ++end;
        body(IndexRange{begin, end});
        begin = end;
    }
}

/// Removes squares from both ends of a range while hidden(square) holds.
template <class Hidden>
inline IndexRange without_hidden_ends(IndexRange squares, Hidden hidden) {
    while (squares.begin < squares.end && hidden(squares.begin)) ++squares.begin;
    while (squares.begin < squares.end && hidden(squares.end - 1)) --squares.end;
    return squares;
}

/// |scale| * log2(e), at least 1e-30. The softmax needs a positive factor; for a negative scale the kernels
/// negate Q. Scale 0 becomes 1e-30, because 0 * -inf would make masked scores NaN; 1e-30 is too small to
/// change a probability.
inline float positive_scale(const Geometry& geometry) {
    return geometry.scale_log2() > 1e-30f ? geometry.scale_log2() : 1e-30f;
}

inline void clear(const Matrix& x, std::int64_t rows, std::int64_t columns) {
    for (std::int64_t i = 0; i < round_up(rows, square); ++i)
        for (std::int64_t j = 0; j < round_up(columns, square); j += 16)
            _mm512_storeu_ps(x.at(i, j), _mm512_setzero_ps());
}

}  // namespace
}  // namespace gradtile::attention::cpu
