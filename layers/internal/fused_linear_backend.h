#pragma once
/// INTERNAL. The one-kernel form of fused_linear.h on a GPU.
#include <gradtile/layers/fused_linear.h>

namespace gradtile::cuda {

/// Thread blocks of the kernel: 8 or 16 warps. Each thread has up to `stages` copies of 16 bytes in flight.
struct FusedLinearTiles {
    static constexpr int stages = 12;
    int warps = 16, blocks_of_multiprocessor = 1;

    /// Two small thread blocks of a multiprocessor wait and read by turns: for 1280 x 3840 the product takes
    /// 3.9 us instead of 4.3. They pay when each has many more rows of the weights than warps. With fewer, a
    /// large block divides the rows among its warps more evenly, and normalises x once and not twice.
    static FusedLinearTiles of(std::int64_t weight_rows, int multiprocessors) {
        constexpr FusedLinearTiles small{.warps = 8, .blocks_of_multiprocessor = 2};
        const std::int64_t blocks = multiprocessors * small.blocks_of_multiprocessor;
        return 2 * weight_rows >= 3 * small.warps * blocks ? small : FusedLinearTiles{};
    }
};

/// Computes fused_linear() for up to 8 rows in one kernel. Returns false and does nothing for other rows,
/// for float64 and for rows that are no whole 16-byte vectors.
bool fused_linear(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op);
/// The same with the given thread blocks, for bench/fused_linear_bench.cpp.
bool fused_linear(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op,
                  const FusedLinearTiles& tiles);

}  // namespace gradtile::cuda
