#pragma once
/// Products of a matrix and its transpose. The result is symmetric, so half of its elements are enough.
#include <gradtile/core/tensor.h>

namespace gradtile {

/// The coefficients of a I + b A + c A^2.
struct MatrixPolynomial {
    double a, b, c;
};

/// Which product of each matrix x of a stack.
struct SymmetricProduct {
    enum class Of {
        rows,       ///< x x^T, for x [count, n, k]
        columns,    ///< x^T x, for x [count, k, n]
        polynomial  ///< a I + b x + c x^2, for a symmetric x [count, n, n]
    };
    Of of = Of::rows;
    MatrixPolynomial polynomial{};  ///< used by Of::polynomial alone
};

/// Computes c [count, n, n] by one kernel that computes the tiles on and below the diagonal only and stores
/// each of them and its transpose. The result is symmetric to the bit; sums are float32, and each element is
/// rounded once. Returns false, and does nothing, where there is no such kernel: it exists for bfloat16
/// matrices on GPUs of compute capability 9.0 with n above 128 and rows of whole 16-byte pieces (see
/// hopper/internal/product.h; GRADTILE_HOPPER_GEMM=off turns it off, too). x and c must not overlap.
bool symmetric_product(const Context& ctx, const Tensor& c, const Tensor& x, const SymmetricProduct& product);

}  // namespace gradtile
