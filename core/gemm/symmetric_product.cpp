#include <gradtile/core/gemm/symmetric_product.h>

#include <gradtile/core/gemm/internal/symmetric_backend.h>

namespace gradtile {

bool symmetric_product(const Context& ctx, const Tensor& c, const Tensor& x,
                       const SymmetricProduct& product) {
    const bool transposed = product.of == SymmetricProduct::Of::columns;
    check(c.rank() == 3 && x.rank() == 3 && c.size(1) == c.size(2) && c.size(0) == x.size(0) &&
              c.size(1) == x.size(transposed ? 2 : 1) && c.dtype() == x.dtype() &&
              (product.of != SymmetricProduct::Of::polynomial || x.shape() == c.shape()),
          "symmetric_product: c ", c, " of x ", x, "; expected [count, n, n] of matrices with n ",
          transposed ? "columns" : "rows", ", of one dtype");
    if (ctx.is_planning() || ctx.device().is_cpu() || c.elements() == 0) return false;
    return cuda::symmetric_product(ctx, c, x, product);
}

}  // namespace gradtile
