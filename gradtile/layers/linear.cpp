#include <gradtile/layers/linear.h>

#include <gradtile/core/gemm.h>
#include <gradtile/layers/linear_backend.h>

namespace gradtile {
namespace {

/// [.., columns] as the matrix [rows, columns].
Tensor rows_of(const Tensor& x) {
    const std::int64_t columns = x.size(-1);
    return x.rank() == 2 ? x : x.reshape({columns == 0 ? 0 : x.elements() / columns, columns});
}

Shape with_last_axis(Shape shape, std::int64_t length) {
    shape[-1] = length;
    return shape;
}

void check_features(const char* what, const Tensor& x, std::int64_t features, const Parameter& weight) {
    check(x.rank() >= 1 && x.size(-1) == features && x.dtype() == weight.value().dtype(), "linear ",
          weight.name(), ": ", what, " is ", x, "; expected [.., ", features, "] ", weight.value().dtype());
}

}  // namespace

Linear::Linear(ParameterStore& parameters, const std::string& name, std::int64_t in, std::int64_t out,
               const LinearOptions& options)
    : weight(parameters.add(name + ".weight", {out, in}, options.init)) {
    if (options.bias) bias = parameters.add(name + ".bias", {out}, Init::zeros());
}

Tensor Linear::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    check_features("x", x, in_features(), weight);
    const Tensor y = empty(ctx, with_last_axis(x.shape(), out_features()), x.dtype());
    gemm(ctx, rows_of(y), rows_of(x), weight.value(),
         {.trans_b = true, .bias = bias.defined() ? bias.value() : Tensor{}});
    saved.x = x;
    return y;
}

void Linear::accumulate_gradients(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    check_features("dy", dy, out_features(), weight);
    const Tensor dy_rows = rows_of(dy), x_rows = rows_of(saved.x);
    gemm(ctx, weight.grad(), dy_rows, x_rows, {.trans_a = true, .accumulate = true});
    if (!bias.defined() || dy_rows.size(0) == 0) return;
    const std::int64_t blocks = (dy_rows.size(0) + column_sum_rows - 1) / column_sum_rows;
    const Tensor partial = empty(ctx, {blocks, out_features()}, bias.grad().dtype());
    on_device(ctx, cpu::add_column_sums, cuda::add_column_sums, bias.grad(), dy_rows, partial);
}

Tensor Linear::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    accumulate_gradients(ctx, dy, saved);
    const Tensor dx = empty(ctx, with_last_axis(dy.shape(), in_features()), dy.dtype());
    gemm(ctx, rows_of(dx), rows_of(dy), weight.value());
    return dx;
}

}  // namespace gradtile
