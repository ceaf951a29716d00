#pragma once
/// The device functions behind matrix_optimizer.h. Each works on a whole group of equally shaped matrices, on
/// a GPU in one kernel. Arithmetic is in MatrixArrays::arithmetic(), in which gradients are kept, or in
/// bfloat16; rate [1] float64, scale [1] float64 or undefined.
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/train/optimizers/matrix_optimizer.h>

namespace gradtile {

/// Computes a matrix's learning rate from the optimizer's. Kernels call it, because the optimizer's rate is
/// in device memory.
struct MatrixRate {
    double lr_ratio, weight_decay;
    bool cautious_decay;
    double step_factor;  ///< see MatrixOptimizer::step_factor()

    template <class Real>
    GRADTILE_HOST_DEVICE DecayFactors<Real> decay(double lr) const {
        return DecayFactors<Real>::at(lr * lr_ratio, weight_decay, cautious_decay);
    }
    GRADTILE_HOST_DEVICE double step(double lr) const { return lr * lr_ratio * step_factor; }
};

/// What NorMuon multiplies a group's updates by. Undefined tensors: nothing.
struct RowFactors {
    Tensor factors = {};  ///< [count, rows], in the arithmetic's dtype
    /// [count, matrix_norm_parts, 2] float64: partial sums of squares, before and after the multiplication by
    /// the factors. An update keeps its norm, so it is also multiplied by the root of the sums' ratio.
    Tensor squares = {};

    bool defined() const { return factors.defined(); }
};
/// Added to the root of a second moment, and to a norm that is divided by.
inline constexpr double row_factor_epsilon = 1e-10;

/// Added to a matrix's norm before the matrix is divided by the norm.
inline constexpr double matrix_norm_epsilon = 1e-7;

/// A matrix's sum of squares is computed in this many parts.
inline constexpr std::int64_t matrix_norm_parts = 256;

/// Calls visit(TypeTag) with the C++ type of the arithmetic for a dtype: float64 or float32.
template <class Visit>
void visit_arithmetic_type(DType dtype, const Visit& visit) {
    if (accumulator_of(dtype) == DType::f64) {
        visit(TypeTag<double>{});
    } else {
        visit(TypeTag<float>{});
    }
}

}  // namespace gradtile

namespace gradtile::cpu {
/// With g = scale * gradient and the rule's decay d: momentum = d * momentum + (1 - d) * g, and then updates
/// [count, rows, cols] = d * momentum + (1 - d) * g (Nesterov), or the momentum. When scale is 0, momentum
/// does not change and updates are 0. `partial` [count, matrix_norm_parts] float64 = the updates'
/// sums_of_squares().
void matrix_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                     const Tensor& scale, const MomentumRule& rule, const Tensor& updates,
                     const Tensor& partial);
/// momentum, float32, [count, rows, cols] in the order of the group's matrices = the group's momentum in 8
/// bits.
void decode_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                     const Tensor& momentum);
/// Rounds such a momentum to 8 bits and stores it in `arrays`, unless scale is 0.
void encode_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                     const Tensor& scale, const Tensor& momentum);
/// partial [count, matrix_norm_parts] float64 = partial sums of squares for each matrix in x [count, rows,
/// cols]; a matrix's parts add up to its sum of squares.
void sums_of_squares(const Context& ctx, const Tensor& x, const Tensor& partial);
/// out [count, rows, cols] = each matrix in x divided by its norm + epsilon; `out` may be x itself, or may
/// have a shorter dtype. `partial` is what sums_of_squares() computes for x.
void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& out);
/// squares = a I + b A + c A^2, for A in gram [count, n, n] and A^2 in squares [count, n, n] at the call.
void add_lower_powers(const Context& ctx, const Tensor& squares, const Tensor& gram,
                      const MatrixPolynomial& polynomial);
/// second_moment = beta2 * second_moment + (1 - beta2) * the mean square of each row in updates [count, rows,
/// cols], unless the scale is 0. rows.factors = 1 / (the second moment's root + row_factor_epsilon).
void row_factors(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                 const Tensor& updates, const Tensor& scale, double beta2, const RowFactors& rows);
/// weights = decayed weights - step * rows * updates (see MatrixRate); values are the rounded weights. Does
/// nothing when the gradient scale is 0. updates is [count, rows, cols], in a floating-point dtype that is
/// not longer than the weights' dtype.
void matrix_apply(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                  const Tensor& updates, const RowFactors& rows, const Tensor& rate,
                  const MatrixRate& derived, const UpdateOptions& options);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(matrix_momentum);
GRADTILE_CUDA_TWIN(decode_momentum);
GRADTILE_CUDA_TWIN(encode_momentum);
GRADTILE_CUDA_TWIN(sums_of_squares);
GRADTILE_CUDA_TWIN(normalize_matrices);
GRADTILE_CUDA_TWIN(add_lower_powers);
GRADTILE_CUDA_TWIN(row_factors);
GRADTILE_CUDA_TWIN(matrix_apply);
}  // namespace gradtile::cuda
