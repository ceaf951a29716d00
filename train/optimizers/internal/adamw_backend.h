#pragma once
/// What the two devices implement for adamw.h.
#include <gradtile/train/optimizers/adamw.h>

namespace gradtile::cpu {
/// Adds 1 to updates and updates the blocks, unless the gradient scale is 0. rate [1] float64.
void adamw_step(const Context& ctx, const AdamWArrays& arrays, const AdamWBlocks& blocks,
                const Tensor& updates, const Tensor& rate, const AdamWOptions& adamw,
                const UpdateOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void adamw_step(const Context& ctx, const AdamWArrays& arrays, const AdamWBlocks& blocks,
                const Tensor& updates, const Tensor& rate, const AdamWOptions& adamw,
                const UpdateOptions& options);
}  // namespace gradtile::cuda
