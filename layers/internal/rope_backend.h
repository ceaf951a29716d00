#pragma once
/// The CPU and CUDA implementations behind rope.h.
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
/// Rotates x [B,S,H,D] in place. cosines and sines [S, D/2] have accumulator_of(x.dtype()).
void rope_rotate(const Context& ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                 bool inverse);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void rope_rotate(const Context& ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                 bool inverse);
}  // namespace gradtile::cuda
