#pragma once
/// What the two devices implement for muon.h. All tensors contiguous; gradient, momentum, update and master
/// in the gradients' dtype; rate [1] float64, scale [1] float64 or undefined.
#include <gradtile/core/philox.h>
#include <gradtile/train/muon.h>

namespace gradtile {

/// How a matrix's own rate follows from the optimizer's, on the device since that rate lies there.
struct MuonRate {
    double lr_ratio, weight_decay;
    double shape_factor;  ///< sqrt(max(1, rows / cols))

    GRADTILE_HOST_DEVICE double keep(double lr) const { return 1.0 - lr * lr_ratio * weight_decay; }
    GRADTILE_HOST_DEVICE double step(double lr) const { return lr * lr_ratio * shape_factor; }
};

/// Of Newton-Schulz's quintic, a X + b (X X^T) X + c (X X^T)^2 X.
struct Quintic {
    static constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
};

}  // namespace gradtile

namespace gradtile::cpu {
/// momentum = lerp(momentum, scale * gradient), update = lerp towards it once more (Nesterov). Momentum stays
/// when scale is 0; update is 0 then.
void muon_momentum(const Context& ctx, const Tensor& gradient, const Tensor& scale, double momentum_decay,
                   const Tensor& momentum, const Tensor& update);
/// x = x / (norm + 1e-7).
void divide_by_norm(const Context& ctx, const Tensor& x, const Tensor& norm);
/// polynomial, which holds A^2, becomes a I + b A + c A^2; both [count, n, n].
void add_lower_powers(const Context& ctx, const Tensor& polynomial, const Tensor& gram);
/// master = keep * master - step * update (see MuonRate), value rounded from it; nothing when the
/// gradient scale is 0.
void muon_apply(const Context& ctx, const Tensor& update, const Tensor& rate, const MuonRate& derived,
                const Tensor& master, const Tensor& value, const UpdateOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void muon_momentum(const Context& ctx, const Tensor& gradient, const Tensor& scale, double momentum_decay,
                   const Tensor& momentum, const Tensor& update);
void divide_by_norm(const Context& ctx, const Tensor& x, const Tensor& norm);
void add_lower_powers(const Context& ctx, const Tensor& polynomial, const Tensor& gram);
void muon_apply(const Context& ctx, const Tensor& update, const Tensor& rate, const MuonRate& derived,
                const Tensor& master, const Tensor& value, const UpdateOptions& options);
}  // namespace gradtile::cuda
