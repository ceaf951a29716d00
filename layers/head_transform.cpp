#include <gradtile/layers/head_transform.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/head_transform_backend.h>

namespace gradtile {
namespace {

void check_transform(const Tensor& y, const Tensor& rstd, const Tensor& x, const HeadTransform& transform) {
    const auto& [queries, q_weight, k_weight, epsilon, angles] = transform;
    check(transform.has_norm() || transform.rotates(), "head_transform: neither a norm nor a rotation");
    check(x.rank() == 4 && x.stride(3) == 1 && y.shape() == x.shape() && y.dtype() == x.dtype() &&
              y.stride(3) == 1,
          "head_transform: x ", x, " and y ", y, "; expected [B, T, H, D] with a contiguous last axis");
    const std::int64_t dim = x.size(3);
    check(queries >= 0 && queries <= x.size(2), "head_transform: ", queries, " queries among ", x.size(2),
          " heads");
    check(q_weight.defined() == k_weight.defined() && rstd.defined() == q_weight.defined(),
          "head_transform: weights of queries and keys, and rstd, must all be present or all be absent");
    if (q_weight.defined())
        for (const Tensor* weight : {&q_weight, &k_weight})
            check(weight->shape() == Shape{dim} && weight->dtype() == x.dtype() && weight->is_contiguous(),
                  "head_transform: weight ", *weight, " for x ", x, "; expected [", dim, "] of its dtype");
    if (rstd.defined())
        check(rstd.shape() == Shape{x.size(0), x.size(1), x.size(2)} && rstd.is_contiguous() &&
                  rstd.dtype() == accumulator_of(x.dtype()),
              "head_transform: rstd ", rstd, " for x ", x, "; expected contiguous [B, T, H]");
    if (!angles.cosines.defined() && !angles.sines.defined()) return;
    const Shape table{x.size(1), dim / 2};
    check(dim % 2 == 0 && angles.cosines.shape() == table && angles.sines.shape() == table &&
              angles.cosines.is_contiguous() && angles.sines.is_contiguous(),
          "head_transform: cosines ", angles.cosines, " and sines ", angles.sines, " for x ", x,
          "; expected [", x.size(1), ", ", dim, "/2]");
}

}  // namespace

void transform_heads(const Context& ctx, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const HeadTransform& transform) {
    check_transform(y, rstd, x, transform);
    if (x.elements() == 0 || ctx.is_planning()) return;
    check(transform.has_norm() || is_same_view(y, x), "head_transform: y ", y, " and x ", x,
          "; without a norm, y must be x");
    check_sharing(ctx, "head_transform", {"y", y},
                  {{"rstd", rstd},
                   {"weight of queries", transform.q_weight},
                   {"weight of keys", transform.k_weight},
                   {"cosines", transform.angles.cosines},
                   {"sines", transform.angles.sines}});
    check_sharing(ctx, "head_transform", {"x", x},
                  {{"y", transform.has_norm() ? y : Tensor()}, {"rstd", rstd}});
    on_device(ctx, cpu::transform_heads, cuda::transform_heads, y, rstd, x, transform, /*inverse=*/false);
}

void differentiate_heads(const Context& ctx, const Tensor& gradient, const Tensor& rstd, const Tensor& x,
                         const HeadTransform& transform, const HeadWeightGradients& weights) {
    check_transform(gradient, rstd, x, transform);
    check_sharing(ctx, "head_transform", {"gradient", gradient},
                  {{"x", transform.has_norm() ? x : Tensor()},
                   {"rstd", rstd},
                   {"weight of queries", transform.q_weight},
                   {"weight of keys", transform.k_weight},
                   {"cosines", transform.angles.cosines},
                   {"sines", transform.angles.sines},
                   {"gradient of queries' weight", weights.q.grad},
                   {"gradient of keys' weight", weights.k.grad}});
    const bool is_empty = x.elements() == 0;
    if (!transform.has_norm()) {
        if (!is_empty)
            on_device(ctx, cpu::transform_heads, cuda::transform_heads, gradient, rstd, gradient, transform,
                      /*inverse=*/true);
        return;
    }
    check(weights.q.grad.defined() == weights.k.grad.defined(),
          "head_transform: the gradients of both weights must be present or absent");
    for (const Tensor* grad : {&weights.q.grad, &weights.k.grad})
        check(!grad->defined() || (grad->shape() == transform.q_weight.shape() && grad->is_contiguous() &&
                                   grad->dtype() == accumulator_of(x.dtype())),
              "head_transform: gradient ", *grad, " of a weight ", transform.q_weight,
              "; expected its shape, contiguous, and ", accumulator_of(x.dtype()));
    if (is_empty) {
        for (const GradientTarget& target : {weights.q, weights.k}) ready_to_add(ctx, target);
        return;
    }
    const std::int64_t tokens = x.size(0) * x.size(1);
    const std::int64_t parts =
        (ctx.device().is_cpu() ? cpu::head_partials : cuda::head_partials)(tokens, x.size(2));
    const Tensor partials = empty(ctx, {parts, 2, x.size(3)}, accumulator_of(x.dtype()));
    on_device(ctx, cpu::differentiate_heads, cuda::differentiate_heads, gradient, rstd, x, transform, weights,
              partials);
}

}  // namespace gradtile
