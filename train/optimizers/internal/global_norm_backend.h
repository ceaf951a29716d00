#pragma once
/// What the two devices implement for global_norm.h.
#include <gradtile/train/optimizers/global_norm.h>

namespace gradtile {
inline constexpr std::int64_t norm_block = 1 << 15;
}

namespace gradtile::cpu {
/// norm [1] float64 by way of partial, float64, one sum for each norm_block elements of x.
void global_norm(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& norm);
/// The same without the root, for sums that are still to be added to others.
void sum_of_squares(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& sum);
/// x [1] float64 = its root.
void square_root(const Context& ctx, const Tensor& x);
/// Reads norm, writes scale.
void clip_scale(const Context& ctx, const Tensor& norm, const Tensor& scale, const ClipOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void global_norm(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& norm);
void sum_of_squares(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& sum);
void square_root(const Context& ctx, const Tensor& x);
void clip_scale(const Context& ctx, const Tensor& norm, const Tensor& scale, const ClipOptions& options);
}  // namespace gradtile::cuda
