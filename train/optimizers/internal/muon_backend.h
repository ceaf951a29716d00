#pragma once
/// The device functions of muon.h. Each works on a whole group of matrices of one shape, on a GPU in one
/// kernel. Arithmetic is in the gradients' dtype; rate [1] float64, scale [1] float64 or undefined.
#include <gradtile/core/philox.h>
#include <gradtile/train/optimizers/muon.h>

namespace gradtile {

/// Computes a matrix's learning rate from the optimizer's. Kernels call it, because the optimizer's rate is
/// in device memory.
struct MuonRate {
    double lr_ratio, weight_decay;
    double shape_factor;  ///< sqrt(max(1, rows / cols))

    GRADTILE_HOST_DEVICE double keep(double lr) const { return 1.0 - lr * lr_ratio * weight_decay; }
    GRADTILE_HOST_DEVICE double step(double lr) const { return lr * lr_ratio * shape_factor; }
};

/// The coefficients of Newton-Schulz's quintic, a X + b (X X^T) X + c (X X^T)^2 X.
struct Quintic {
    static constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
};

/// Added to a matrix's norm before the matrix is divided by the norm.
inline constexpr double muon_norm_epsilon = 1e-7;

/// The number of parts in which a matrix's sum of squares is computed.
inline constexpr std::int64_t muon_norm_parts = 64;

/// Calls visit(TypeTag) with the C++ type of gradients: float64 or float32.
template <class Visit>
void visit_gradient_type(DType dtype, const Visit& visit) {
    if (accumulator_of(dtype) == DType::f64) {
        visit(TypeTag<double>{});
    } else {
        visit(TypeTag<float>{});
    }
}

}  // namespace gradtile

namespace gradtile::cpu {
/// With g = scale * gradient and d = momentum_decay: momentum = d * momentum + (1 - d) * g, and then updates
/// [count, rows, cols] = d * momentum + (1 - d) * g (Nesterov). When scale is 0, momentum does not change and
/// updates are 0.
void muon_momentum(const Context& ctx, const MuonArrays& arrays, const MuonGroup& group, const Tensor& scale,
                   double momentum_decay, const Tensor& updates);
/// out [count, rows, cols] = each matrix of x divided by its norm + epsilon; `out` may be x itself, or may
/// have a shorter dtype. `partial` is scratch memory, [count, muon_norm_parts] float64.
void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& out);
/// polynomial = a I + b A + c A^2, for A in gram [count, n, n] and A^2 in polynomial [count, n, n] at the
/// call.
void add_lower_powers(const Context& ctx, const Tensor& polynomial, const Tensor& gram);
/// weights = keep * weights - step * updates (see MuonRate); values are the rounded weights. Does nothing
/// when the gradient scale is 0. updates is [count, rows, cols], of a floating-point dtype that is not longer
/// than that of the weights.
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
