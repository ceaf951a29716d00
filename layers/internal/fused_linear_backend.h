#pragma once
/// INTERNAL. The one-kernel form of fused_linear.h on a GPU.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/layers/fused_linear.h>

namespace gradtile::cuda {

/// The kernel's thread blocks: 8 or 16 warps. Each thread has up to `stages` 16-byte copies in flight.
struct FusedLinearTiles {
    static constexpr int stages = 12;
    int warps = 16, blocks_of_multiprocessor = 1;

    /// With two small thread blocks on a multiprocessor, one reads while the other waits: for a 1280 x 3840
    /// weight the product takes 3.9 us instead of 4.3 us. Small blocks are faster if each block has at least
    /// 1.5 times as many weight rows as warps. With fewer rows, one large block divides the rows more evenly
    /// among its warps, and x is normalised once per multiprocessor instead of twice.
    static FusedLinearTiles of(std::int64_t weight_rows, int multiprocessors) {
        constexpr FusedLinearTiles small{.warps = 8, .blocks_of_multiprocessor = 2};
        const std::int64_t blocks = multiprocessors * small.blocks_of_multiprocessor;
        return 2 * weight_rows >= 3 * small.warps * blocks ? small : FusedLinearTiles{};
    }
};

/// Whether the kernel accepts these rows of x [rows, in]: at most max_fused_rows, not float64, and aligned
/// rows whose size in bytes is divisible by 16.
GRADTILE_CUDA_FUNCTION(bool(const Tensor& x), fuses_products);
/// Computes fused_linear_in_one_kernel(). Returns false and does nothing if fuses_products(x) is false, and
/// if the weights are not aligned or the rows need too much shared memory.
GRADTILE_CUDA_FUNCTION(bool(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op),
                       fused_linear);
/// The same with the given thread blocks, for `gradtile bench few-rows`.
GRADTILE_CUDA_FUNCTION(bool(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op,
                            const FusedLinearTiles& tiles),
                       fused_linear_in_blocks);

}  // namespace gradtile::cuda
