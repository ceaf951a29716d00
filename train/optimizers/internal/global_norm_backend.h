#pragma once
/// The functions that each device implements for global_norm.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/train/optimizers/global_norm.h>

namespace gradtile {
inline constexpr std::int64_t norm_block = 1 << 15;
}

namespace gradtile::cpu {
/// Writes norm, [1] float64, from `partial`: float64, one sum of squares per norm_block elements in x.
void global_norm(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& norm);
/// Writes the sum of squares, [1] float64, without the square root, so that it can be added to other sums.
void sum_of_squares(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& sum);
/// Replaces x, [1] float64, by its square root.
void square_root(const Context& ctx, const Tensor& x);
/// Computes `scale` (see Clip) from `norm`, which an interruption makes NaN.
void clip_scale(const Context& ctx, const Tensor& norm, const Tensor& scale, const ClipOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(global_norm);
GRADTILE_CUDA_TWIN(sum_of_squares);
GRADTILE_CUDA_TWIN(square_root);
GRADTILE_CUDA_TWIN(clip_scale);
}  // namespace gradtile::cuda
