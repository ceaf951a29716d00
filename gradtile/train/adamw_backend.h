#pragma once
/// What the two devices implement for adamw.h.
#include <span>

#include <gradtile/train/adamw.h>

namespace gradtile::cpu {
/// Adds 1 to updates and updates the blocks, unless the gradient scale is 0.
void adamw_step(const Context& ctx, const ParameterStore& store, std::span<const AdamWBlock> blocks,
                const Tensor& m, const Tensor& v, const Tensor& updates, double lr, const AdamWOptions& adamw,
                const UpdateOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void adamw_step(const Context& ctx, const ParameterStore& store, std::span<const AdamWBlock> blocks,
                const Tensor& m, const Tensor& v, const Tensor& updates, double lr, const AdamWOptions& adamw,
                const UpdateOptions& options);
}  // namespace gradtile::cuda
