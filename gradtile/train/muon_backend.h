#pragma once
/// What the two devices implement for muon.h. All tensors contiguous; gradient, momentum, update and master
/// in the gradients' dtype; scale [1] float64 or undefined.
#include <gradtile/train/muon.h>

namespace gradtile::cpu {
/// momentum = lerp(momentum, scale * gradient), update = lerp towards it once more (Nesterov). Momentum stays
/// when scale is 0; update is 0 then.
void muon_momentum(const Context& ctx, const Tensor& gradient, const Tensor& scale, double momentum_decay,
                   const Tensor& momentum, const Tensor& update);
/// x = x / (norm + 1e-7).
void divide_by_norm(const Context& ctx, const Tensor& x, const Tensor& norm);
/// master = keep * master - rate * update, value rounded from it, gradient = 0 if asked; nothing when the
/// gradient scale is 0.
void muon_apply(const Context& ctx, const Tensor& update, double keep, double rate, const Tensor& master,
                const Tensor& value, const Tensor& gradient, const UpdateOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void muon_momentum(const Context& ctx, const Tensor& gradient, const Tensor& scale, double momentum_decay,
                   const Tensor& momentum, const Tensor& update);
void divide_by_norm(const Context& ctx, const Tensor& x, const Tensor& norm);
void muon_apply(const Context& ctx, const Tensor& update, double keep, double rate, const Tensor& master,
                const Tensor& value, const Tensor& gradient, const UpdateOptions& options);
}  // namespace gradtile::cuda
