#pragma once
/// What the two devices implement for rope.h.
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
/// x [B,S,H,D] in place; cosines, sines [S, D/2] in accumulator_of(x.dtype()).
void rope_rotate(const Context& ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                 bool inverse);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void rope_rotate(const Context& ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                 bool inverse);
}  // namespace gradtile::cuda
