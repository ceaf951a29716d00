#include <gradtile/core/gemm/gemm.h>

#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/internal/overlap.h>

namespace gradtile {
namespace {

/// A matrix with contiguous rows. A transposed view is stored as the matrix before the transposition, and a
/// flag.
struct MatrixOperand {
    Tensor matrix;  // [.., rows, columns], last stride 1 (or one column)
    bool transposed;
};

MatrixOperand normalized(const Tensor& x, bool transposed, const char* name) {
    const bool rows_packed = x.stride(-1) == 1 || x.size(-1) <= 1;
    if (rows_packed && (x.stride(-2) >= x.size(-1) || x.size(-2) <= 1)) return {x, transposed};
    check(x.stride(-2) == 1 || x.size(-2) <= 1, "gemm: ", name, " has strides ", x.strides(),
          "; one of the last two must be 1");
    return {x.transpose(-1, -2), !transposed};
}

}  // namespace

void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options) {
    check(a.rank() >= 2 && a.rank() <= 4 && a.rank() == b.rank() && a.rank() == c.rank(), "gemm: ", c, " = ",
          a, " * ", b, "; ranks must be equal, 2 to 4");
    const std::int64_t m = c.size(-2), n = c.size(-1), k = a.size(options.trans_a ? -2 : -1);
    check(a.size(options.trans_a ? -1 : -2) == m && b.size(options.trans_b ? -1 : -2) == k &&
              b.size(options.trans_b ? -2 : -1) == n,
          "gemm: ", c, " = ", a, (options.trans_a ? "^T" : ""), " * ", b, (options.trans_b ? "^T" : ""),
          "; shapes do not fit");
    for (int axis = 0; axis < c.rank() - 2; ++axis)
        check(a.size(axis) == c.size(axis) && b.size(axis) == c.size(axis), "gemm: ", c, " = ", a, " * ", b,
              "; batch axes must be equal");
    check(a.dtype() == b.dtype() && (c.dtype() == a.dtype() || c.dtype() == accumulator_of(a.dtype())),
          "gemm: dtypes ", c.dtype(), " = ", a.dtype(), " * ", b.dtype(), " are not supported");
    check((c.stride(-1) == 1 || n <= 1) && (c.stride(-2) >= n || m <= 1), "gemm: c has strides ", c.strides(),
          "; the last must be 1 and rows must not overlap");
    if (options.bias.defined())
        check(options.bias.rank() == 1 && options.bias.size(0) == n && options.bias.is_contiguous() &&
                  (options.bias.dtype() == a.dtype() || options.bias.dtype() == accumulator_of(a.dtype())),
              "gemm: bias ", options.bias, " does not fit ", n, " columns of ", c.dtype());
    for (const Tensor* const x : {&c, &a, &b, &options.bias})
        check(x->device().is_cpu() || ctx.device().is_cuda(), "gemm: ", *x, " in a context of ", ctx.device(),
              "; devices must be equal");
    if (c.elements() == 0) return;
    for (int axis = 0; axis < c.rank() - 2; ++axis)
        check(c.stride(axis) != 0 || c.size(axis) <= 1, "gemm: c has strides ", c.strides(),
              "; its matrices must not overlap");

    check_sharing(ctx, "gemm", {"c", c}, {{"a", a}, {"b", b}, {"bias", options.bias}});
    const MatrixOperand left = normalized(a, options.trans_a, "a");
    const MatrixOperand right = normalized(b, options.trans_b, "b");
    GemmOptions normal = options;
    normal.trans_a = left.transposed;
    normal.trans_b = right.transposed;
    on_device(ctx, cpu::gemm, cuda::gemm, c, left.matrix, right.matrix, normal);
}

std::vector<GemmAlgorithm> gemm_algorithms(const Context& ctx) {
    return ctx.device().is_cpu() ? std::vector<GemmAlgorithm>{} : cuda::gemm_algorithms(ctx);
}

std::size_t restore_gemm_algorithms(const Context& ctx, std::span<const GemmAlgorithm> algorithms) {
    return ctx.device().is_cpu() ? 0 : cuda::restore_gemm_algorithms(ctx, algorithms);
}

std::size_t refused_gemm_algorithms(const Context& ctx) {
    return ctx.device().is_cpu() ? 0 : cuda::refused_gemm_algorithms(ctx);
}

}  // namespace gradtile
