#include <gradtile/core/gemm/symmetric_product.h>

#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/internal/overlap.h>

namespace gradtile {

bool symmetric_product(const Context& ctx, const Tensor& result, const Tensor& x,
                       const SymmetricProduct& product) {
    const bool transposed = product.kind == SymmetricProduct::Kind::gram_of_columns;
    check(result.rank() == 3 && x.rank() == 3 && result.size(1) == result.size(2) &&
              result.size(0) == x.size(0) && result.size(1) == x.size(transposed ? 2 : 1) &&
              result.dtype() == x.dtype() &&
              (product.kind != SymmetricProduct::Kind::polynomial || x.shape() == result.shape()),
          "symmetric_product: result ", result, " of x ", x, "; expected [count, n, n] of matrices with n ",
          transposed ? "columns" : "rows", ", of one dtype");
    check_sharing(ctx, "symmetric_product", {"result", result}, {{"x", x}});
    if (ctx.is_planning() || ctx.device().is_cpu() || result.elements() == 0) return false;
    return cuda::symmetric_product(ctx, result, x, product);
}

}  // namespace gradtile
