#include <gradtile/layers/dropout.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/dropout_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile {

DropoutMask dropout_mask(double p, const DropoutKey& key, const Tensor& x) {
    DropoutMask mask{dropout_draws("dropout", p, key, x.device())};
    for (int axis = x.rank() > 2 ? 1 : 0; axis < x.rank() - 1; ++axis) mask.tokens *= x.size(axis);
    return mask;
}

namespace {

Tensor apply(const Context& ctx, const Tensor& x, const DropoutMask& mask) {
    row_layout(x, "dropout");
    Tensor y = empty(ctx, x.shape(), x.dtype());
    if (y.elements() == 0) return y;
    on_device(ctx, cpu::dropout, cuda::dropout, y, Tensor(), x, mask);
    return y;
}

void check_saved(const Dropout::Saved& saved) {
    check(saved.key.first_sample >= 0, "dropout: backward needs the key that forward saved");
}

}  // namespace

Tensor Dropout::forward(const Context& ctx, const Tensor& x, const DropoutKey& key, Saved& saved) const {
    check(x.defined(), "dropout: x is no tensor");
    saved.key = key;
    const DropoutMask mask = dropout_mask(p, key, x);
    return mask.threshold == 0 ? x : apply(ctx, x, mask);
}

Tensor Dropout::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    check(dy.defined(), "dropout: dy is no tensor");
    check_saved(saved);
    const DropoutMask mask = dropout_mask(p, saved.key, dy);
    return mask.threshold == 0 ? dy : apply(ctx, dy, mask);
}

SummedGradient Dropout::backward(const Context& ctx, const SummedGradient& gradient,
                                 const Saved& saved) const {
    check_saved(saved);
    if (!drops(saved.key)) return gradient;
    return backward(ctx, gradient.dy, saved);
}

Tensor Dropout::add_residual(const Context& ctx, const Tensor& x, const Tensor& branch, const DropoutKey& key,
                             Saved& saved) const {
    check(x.shape() == branch.shape() && x.dtype() == branch.dtype(), "dropout: residual ", x, " + branch ",
          branch, "; shapes and dtypes must be equal");
    row_layout(x, "dropout");
    row_layout(branch, "dropout");
    check_sharing(ctx, "dropout", {"branch", branch}, {{"x", x}}, Sharing::same_view);
    saved.key = key;
    const DropoutMask mask = dropout_mask(p, key, branch);
    if (x.elements() == 0) return branch;
    on_device(ctx, cpu::dropout, cuda::dropout, branch, x, branch, mask);
    return branch;
}

}  // namespace gradtile
