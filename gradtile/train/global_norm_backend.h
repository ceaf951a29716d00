#pragma once
/// What the two devices implement for global_norm.h.
#include <gradtile/train/global_norm.h>

namespace gradtile {
inline constexpr std::int64_t norm_block = 1 << 15;
}

namespace gradtile::cpu {
/// norm [1] float64 by way of partial, float64, one sum for each norm_block elements of x.
void global_norm(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& norm);
/// Reads norm, writes scale.
void clip_scale(const Context& ctx, const Tensor& norm, const Tensor& scale, const ClipOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void global_norm(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& norm);
void clip_scale(const Context& ctx, const Tensor& norm, const Tensor& scale, const ClipOptions& options);
}  // namespace gradtile::cuda
