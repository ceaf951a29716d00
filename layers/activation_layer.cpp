// ActivationLayer: checks, allocation, and backend choice.
#include <gradtile/layers/activation.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

void check_same(const char* op, const Tensor& a, const Tensor& b) {
    check(a.shape() == b.shape() && a.dtype() == b.dtype(), op, ": ", a, " and ", b,
          "; expected equal shapes and dtypes");
    check(is_floating(a.dtype()), op, ": ", a, " is not floating-point");
    row_layout(a, op);
    row_layout(b, op);
}

void check_halves(const char* op, const Tensor& packed, const Tensor& half) {
    check(packed.rank() == half.rank() && packed.dtype() == half.dtype() &&
              packed.size(-1) == 2 * half.size(-1),
          op, ": packed gate and up ", packed, " and y or dy ", half,
          "; expected a last axis of half the length");
    for (int axis = 0; axis < half.rank() - 1; ++axis)
        check(packed.size(axis) == half.size(axis), op, ": packed gate and up ", packed, " and y or dy ",
              half, "; expected equal leading axes");
    row_layout(packed, op);
    row_layout(half, op);
}

void check_operands(const ActivationTraits& traits, const Tensor& x, const Tensor& y) {
    (traits.gated ? check_halves : check_same)(traits.name.data(), x, y);
}

}  // namespace

Tensor ActivationLayer::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    const ActivationTraits& traits = traits_of(activation);
    Shape shape = x.shape();
    if (traits.gated) {
        check(x.rank() >= 1 && x.size(-1) % 2 == 0, traits.name, ": x ", x,
              "; the last axis must hold gate and up");
        shape[-1] /= 2;
    }
    saved.x = x;
    Tensor y = empty(ctx, shape, x.dtype());
    forward_into(ctx, y, x);
    return y;
}

Tensor ActivationLayer::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    Tensor dx = empty(ctx, saved.x.shape(), saved.x.dtype());
    backward_into(ctx, dx, dy, saved.x);
    return dx;
}

void ActivationLayer::forward_into(const Context& ctx, const Tensor& y, const Tensor& x) const {
    const ActivationTraits& traits = traits_of(activation);
    check_operands(traits, x, y);
    check_sharing(ctx, traits.name.data(), {"y", y}, {{"x", x}},
                  traits.gated ? Sharing::none : Sharing::same_view);
    if (x.elements() == 0) return;
    on_device(ctx, cpu::activation_forward, cuda::activation_forward, y, x, activation);
}

void ActivationLayer::backward_into(const Context& ctx, const Tensor& dx, const Tensor& dy,
                                    const Tensor& x) const {
    const ActivationTraits& traits = traits_of(activation);
    const char* const op = traits.name.data();
    check_operands(traits, x, dy);
    check_same(op, dx, x);
    check_sharing(ctx, op, {"dx", dx}, {{"x", x}}, traits.gated ? Sharing::same_view : Sharing::none);
    check_sharing(ctx, op, {"dx", dx}, {{"dy", dy}}, traits.gated ? Sharing::none : Sharing::same_view);
    if (x.elements() == 0) return;
    on_device(ctx, cpu::activation_backward, cuda::activation_backward, dx, dy, x, activation);
}

}  // namespace gradtile
