#include <gradtile/layers/linear_activation.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/linear_activation_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

Tensor matrix_of(const Tensor& x, const char* op) {
    check(x.rank() >= 1 && is_floating(x.dtype()), op, ": ", x, " is not a floating-point matrix");
    const Tensor matrix = as_matrix(x);
    const std::int64_t columns = matrix.size(1);
    check(matrix.stride(1) == 1 || columns <= 1, op, ": ", x, " with strides ", x.strides(),
          "; rows must be contiguous");
    check(matrix.stride(0) >= columns || matrix.size(0) <= 1, op, ": ", x, " with strides ", x.strides(),
          "; rows must not overlap");
    return matrix;
}

}  // namespace

void linear_activation_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                               const Tensor& weight, const Tensor& bias, Activation activation) {
    constexpr const char* op = "linear_activation";
    const std::int64_t halves = traits_of(activation).gated ? 2 : 1;
    const Tensor ys = matrix_of(y, op), hiddens = matrix_of(hidden, op), xs = matrix_of(x, op);
    const Tensor w = matrix_of(weight, op);
    check(ys.size(0) == hiddens.size(0) && hiddens.size(1) == halves * ys.size(1) &&
              hiddens.size(0) == xs.size(0) && hiddens.size(1) == w.size(0) && xs.size(1) == w.size(1),
          op, ": hidden ", hidden, " and y ", y, " do not fit x ", x, " and weight ", weight);
    check(x.dtype() == w.dtype() && hidden.dtype() == w.dtype() && y.dtype() == w.dtype(), op, ": hidden ",
          hidden, ", y ", y, ", x ", x, " and weight ", weight, "; dtypes must be equal");
    if (bias.defined())
        check(bias.rank() == 1 && bias.size(0) == w.size(0) && bias.is_contiguous() &&
                  (bias.dtype() == w.dtype() || bias.dtype() == accumulator_of(w.dtype())),
              op, ": bias ", bias, " does not fit weight ", weight);
    check_sharing(ctx, op, {"hidden", hidden}, {{"y", y}, {"x", x}, {"weight", weight}, {"bias", bias}});
    check_sharing(ctx, op, {"y", y}, {{"x", x}, {"weight", weight}, {"bias", bias}});
    if (hidden.elements() == 0) return;
    on_device(ctx, cpu::linear_activation_forward, cuda::linear_activation_forward, ys, hiddens, xs, w, bias,
              activation);
}

void linear_activation_backward(const Context& ctx, const SummedGradient& into, const Tensor& dy,
                                const Tensor& weight, const Tensor& hidden, Activation activation) {
    constexpr const char* op = "linear_activation backward";
    const bool gated = traits_of(activation).gated;
    const Tensor &d_hidden = into.dy, &column_sums = into.column_sums;
    const Tensor d_hiddens = matrix_of(d_hidden, op), dys = matrix_of(dy, op);
    const Tensor hiddens = matrix_of(hidden, op), w = matrix_of(weight, op);
    check(d_hidden.shape() == hidden.shape() && hiddens.size(0) == dys.size(0) &&
              hiddens.size(1) == (gated ? 2 : 1) * w.size(1) && dys.size(1) == w.size(0),
          op, ": d_hidden ", d_hidden, " does not fit dy ", dy, ", weight ", weight, " and hidden ", hidden);
    check(dy.dtype() == w.dtype() && hidden.dtype() == w.dtype() && d_hidden.dtype() == w.dtype(), op,
          ": d_hidden ", d_hidden, ", dy ", dy, ", weight ", weight, " and hidden ", hidden,
          "; dtypes must be equal");
    check(!gated || !column_sums.defined(), op, ": no column sums for the gated activation ",
          name_of(activation));
    if (column_sums.defined()) {
        const std::int64_t parts = ceil_div(hiddens.size(0), column_sum_rows);
        check(column_sums.shape() == Shape{parts, hiddens.size(1)} && column_sums.is_contiguous() &&
                  column_sums.dtype() == accumulator_of(hidden.dtype()),
              op, ": column sums ", column_sums, " do not fit d_hidden ", d_hidden);
    }
    check_sharing(ctx, op, {"d_hidden", d_hidden},
                  {{"column sums", column_sums}, {"dy", dy}, {"weight", weight}, {"hidden", hidden}});
    check_sharing(ctx, op, {"column sums", column_sums},
                  {{"dy", dy}, {"weight", weight}, {"hidden", hidden}});
    if (hidden.elements() == 0) return;
    const Tensor d_activated = gated ? empty(ctx, {dys.size(0), w.size(1)}, w.dtype()) : Tensor();
    on_device(ctx, cpu::linear_activation_backward, cuda::linear_activation_backward,
              SummedGradient{d_hiddens, column_sums}, dys, w, hiddens, activation, d_activated);
}

}  // namespace gradtile
