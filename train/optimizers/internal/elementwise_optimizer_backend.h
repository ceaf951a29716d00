#pragma once
/// The device functions behind elementwise_optimizer.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>

namespace gradtile::cpu {
/// Adds 1 to `updates` and updates the blocks by the rule, unless the gradient scale is 0. `rate` is [1]
/// float64.
void elementwise_step(const Context& ctx, const ElementArrays& arrays, const ElementBlocks& blocks,
                      const Tensor& updates, const Tensor& rate, const ElementwiseRule& rule,
                      const UpdateOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(elementwise_step);
}  // namespace gradtile::cuda
