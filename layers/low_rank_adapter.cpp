#include <gradtile/layers/linear.h>

#include <cmath>

#include <gradtile/core/gemm/gemm.h>

namespace gradtile {

LowRankAdapter::LowRankAdapter(ParameterStore& parameters, const std::string& name, std::int64_t in,
                               std::int64_t out, const LowRankOptions& options)
    : scale(options.alpha / static_cast<double>(options.rank)) {
    check(options.rank >= 1, "low_rank_adapter ", name, ": rank ", options.rank, "; expected at least 1");
    // The elements of A x then have the same variance as those of x.
    a = parameters.add(name + ".lora_a", {options.rank, in},
                       Init::normal(1.0 / std::sqrt(static_cast<double>(in))));
    b = parameters.add(name + ".lora_b", {out, options.rank}, Init::zeros());
}

namespace {

void check_matrix(const char* what, const Tensor& x, std::int64_t columns) {
    check(x.rank() == 2 && x.size(1) == columns, "low_rank_adapter: ", what, " is ", x, "; expected [N, ",
          columns, "]");
}

/// alpha/r x A^T. The factor is applied in this product, which has the smallest result, because a matrix
/// library may multiply the result in a separate pass.
Tensor scaled_features(const Context& ctx, const Tensor& x, const Parameter& a, double scale) {
    const Tensor u = empty(ctx, {x.size(0), a.shape()[0]}, x.dtype());
    gemm(ctx, u, x, a.value(), {.trans_b = true, .alpha = scale});
    return u;
}

}  // namespace

void LowRankAdapter::add_forward(const Context& ctx, const Tensor& y, const Tensor& x) const {
    check_matrix("x", x, a.shape()[1]);
    check_matrix("y", y, b.shape()[0]);
    gemm(ctx, y, scaled_features(ctx, x, a, scale), b.value(), {.trans_b = true, .accumulate = true});
}

void LowRankAdapter::add_backward(const Context& ctx, const Tensor& dx, const Tensor& dy,
                                  const Tensor& x) const {
    check_matrix("x", x, a.shape()[1]);
    check_matrix("dy", dy, b.shape()[0]);
    if (dx.defined()) check_matrix("dx", dx, a.shape()[1]);
    {
        const GradientTarget db = b.begin_gradient_write();
        gemm(ctx, db.grad, dy, scaled_features(ctx, x, a, scale),
             {.trans_a = true, .accumulate = db.accumulates()});
    }
    const Tensor du = empty(ctx, {dy.size(0), a.shape()[0]}, dy.dtype());
    gemm(ctx, du, dy, b.value(), {.alpha = scale});
    const GradientTarget da = a.begin_gradient_write();
    gemm(ctx, da.grad, du, x, {.trans_a = true, .accumulate = da.accumulates()});
    if (dx.defined()) gemm(ctx, dx, du, a.value(), {.accumulate = true});
}

}  // namespace gradtile
