#pragma once
/// INTERNAL. The one-kernel form of fused_linear.h on a GPU.
#include <gradtile/layers/fused_linear.h>

namespace gradtile::cuda {

/// Thread blocks of the kernel. `stages` vectors of 16 bytes are on their way for each thread.
struct FusedLinearTiles {
    int warps = 16, stages = 12, blocks_of_multiprocessor = 1;
};

/// Computes fused_linear() for up to 8 rows in one kernel. Returns false and does nothing for other rows,
/// for float64 and for rows that are no whole 16-byte vectors.
bool fused_linear(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op,
                  const FusedLinearTiles& tiles = {});

}  // namespace gradtile::cuda
