#pragma once
/// What the two devices implement for muon.h. Everything is done for a group of matrices of one shape at
/// once: on a GPU one kernel, however many there are. Arithmetic in the gradients' dtype; rate [1] float64,
/// scale [1] float64 or undefined.
#include <gradtile/core/philox.h>
#include <gradtile/train/optimizers/muon.h>

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

/// Added to a matrix's norm before it is divided by it.
inline constexpr double muon_norm_epsilon = 1e-7;

/// A matrix's sum of squares is taken in so many parts.
inline constexpr std::int64_t muon_norm_parts = 64;

}  // namespace gradtile

namespace gradtile::cpu {
/// momentum = lerp(momentum, scale * gradient), updates [count, rows, cols] = lerp towards it once more
/// (Nesterov). Momentum stays when scale is 0; updates are 0 then.
void muon_momentum(const Context& ctx, const MuonArrays& arrays, const MuonGroup& group, const Tensor& scale,
                   double momentum_decay, const Tensor& updates);
/// out [count, rows, cols] = each matrix of x divided by its norm + epsilon; out may be x, or shorter
/// elements. partial: [count, muon_norm_parts] float64, scratch.
void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& out);
/// polynomial, which holds A^2, becomes a I + b A + c A^2; both [count, n, n].
void add_lower_powers(const Context& ctx, const Tensor& polynomial, const Tensor& gram);
/// weights = keep * weights - step * updates (see MuonRate), values rounded from them; nothing when the
/// gradient scale is 0. updates [count, rows, cols] of any floating-point dtype no longer than the weights'.
void muon_apply(const Context& ctx, const MuonArrays& arrays, const MuonGroup& group, const Tensor& updates,
                const Tensor& rate, const MuonRate& derived, const UpdateOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
void muon_momentum(const Context& ctx, const MuonArrays& arrays, const MuonGroup& group, const Tensor& scale,
                   double momentum_decay, const Tensor& updates);
void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& out);
void add_lower_powers(const Context& ctx, const Tensor& polynomial, const Tensor& gram);
void muon_apply(const Context& ctx, const MuonArrays& arrays, const MuonGroup& group, const Tensor& updates,
                const Tensor& rate, const MuonRate& derived, const UpdateOptions& options);
}  // namespace gradtile::cuda
