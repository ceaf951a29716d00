#pragma once
/// Products of a matrix with its transpose. The result is symmetric, so computing half of it is enough.
#include <gradtile/core/tensor.h>

namespace gradtile {

/// The coefficients in a I + b A + c A^2.
struct MatrixPolynomial {
    double a, b, c;
};

/// What symmetric_product() computes from each matrix x in a stack.
struct SymmetricProduct {
    enum class Kind {
        gram_of_rows,     ///< x x^T, for x [count, n, k]
        gram_of_columns,  ///< x^T x, for x [count, k, n]
        polynomial        ///< a I + b x + c x^2, for a symmetric x [count, n, n]
    };
    Kind kind = Kind::gram_of_rows;
    MatrixPolynomial polynomial{};  ///< used by Kind::polynomial alone
};

/// Computes result [count, n, n] by one kernel that computes the tiles on and below the diagonal only and
/// stores each tile and its transpose. The result is symmetric to the bit; sums are float32, and each element
/// is rounded once. Returns false, and does nothing, where there is no such kernel: it exists for bfloat16
/// matrices on GPUs with compute capability 9.0, with n above 128 and rows that are whole 16-byte pieces (see
/// gemm/internal/hopper_product.h; GRADTILE_HOPPER_GEMM=off turns it off, too). Throws Error on shapes that
/// do not fit and on different dtypes, and if x and result share memory.
bool symmetric_product(const Context& ctx, const Tensor& result, const Tensor& x,
                       const SymmetricProduct& product);

}  // namespace gradtile
