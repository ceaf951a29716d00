#include <gradtile/layers/fused_linear.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/fused_linear_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

Tensor in_rows(const Tensor& x) {
    check(x.rank() >= 1, "fused_linear: an operand is ", x, "; expected [.., columns]");
    return as_matrix(x);
}

void check_fused_linear(const Context& ctx, const Tensor& y, const Tensor& x, const FusedLinear& op) {
    const bool gated = op.activation && traits_of(*op.activation).gated;
    check(x.rank() == 2 && y.rank() == 2 && op.weight.rank() == 2 && y.size(0) == x.size(0) &&
              op.weight.size(1) == x.size(1) && op.weight.size(0) == y.size(1) * (gated ? 2 : 1),
          "fused_linear: y ", y, ", x ", x, " and weight ", op.weight, "; shapes do not fit");
    check(is_floating(x.dtype()) && op.weight.dtype() == x.dtype() &&
              (y.dtype() == x.dtype() || y.dtype() == accumulator_of(x.dtype())),
          "fused_linear: y ", y, ", x ", x, " and weight ", op.weight, "; dtypes do not fit");
    for (const Tensor* rows : {&y, &x, &op.weight})
        check(rows->stride(1) == 1 || rows->size(1) <= 1, "fused_linear: ", *rows, " with strides ",
              rows->strides(), "; rows must be contiguous");
    check(!op.activation || y.dtype() == x.dtype(), "fused_linear: y ", y, " for x ", x,
          "; with an activation, dtypes must be equal");
    const auto check_vector = [&](const char* name, const Tensor& v, std::int64_t length) {
        check(!v.defined() ||
                  (v.rank() == 1 && v.size(0) == length && v.is_contiguous() && v.dtype() == x.dtype()),
              "fused_linear: ", name, ' ', v, "; expected contiguous [", length, "] ", x.dtype());
    };
    check_vector("bias", op.bias, op.weight.size(0));
    if (op.norm) {
        check(op.norm->weight.defined(), "fused_linear: the norm has no weight");
        check_vector("weight of the norm", op.norm->weight, x.size(1));
        check_vector("bias of the norm", op.norm->bias, x.size(1));
    }
    check(!op.residual.defined() || (op.residual.shape() == y.shape() && op.residual.dtype() == x.dtype() &&
                                     y.dtype() == x.dtype() && op.residual.stride(1) == 1),
          "fused_linear: residual ", op.residual, " for y ", y);
    const NormParameters norm = op.norm.value_or(NormParameters{});
    check_sharing(ctx, "fused_linear", {"y", y},
                  {{"x", x},
                   {"weight", op.weight},
                   {"bias", op.bias},
                   {"residual", op.residual},
                   {"weight of the norm", norm.weight},
                   {"bias of the norm", norm.bias}});
}

}  // namespace

bool fused_linear_in_one_kernel(const Context& ctx, const Tensor& y, const Tensor& x, FusedLinear op) {
    if (op.residual.defined()) op.residual = in_rows(op.residual);
    const Tensor ys = in_rows(y), xs = in_rows(x);
    check_fused_linear(ctx, ys, xs, op);
    if (y.elements() == 0) return true;
    // A dry run counts the memory of the separate steps, which need more memory than the kernel.
    return ctx.device().is_cuda() && !ctx.is_planning() && cuda::fused_linear(ctx, ys, xs, op);
}

bool fuses_products(const Context& ctx, const Tensor& x) {
    return ctx.device().is_cuda() && !ctx.is_planning() && cuda::fuses_products(in_rows(x));
}

}  // namespace gradtile
