// Gelu and SwiGlu: checks, memory, and the choice of the device.
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/rows.h>
#include <gradtile/layers/swiglu.h>

namespace gradtile {
namespace {

void check_same(const char* op, const Tensor& a, const Tensor& b) {
    check(a.shape() == b.shape() && a.dtype() == b.dtype(), op, ": ", a, " beside ", b);
    check(is_floating(a.dtype()), op, ": ", a, " is not floating-point");
    row_layout(a, op);
    row_layout(b, op);
}

void check_halves(const char* op, const Tensor& packed, const Tensor& half) {
    check(packed.rank() == half.rank() && packed.dtype() == half.dtype() &&
              packed.size(-1) == 2 * half.size(-1),
          op, ": packed gate and up ", packed, " beside ", half);
    for (int axis = 0; axis < half.rank() - 1; ++axis)
        check(packed.size(axis) == half.size(axis), op, ": packed gate and up ", packed, " beside ", half);
    row_layout(packed, op);
    row_layout(half, op);
}

}  // namespace

Tensor Gelu::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    saved.x = x;
    Tensor y = empty(ctx, x.shape(), x.dtype());
    forward_into(ctx, y, x);
    return y;
}

Tensor Gelu::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    Tensor dx = empty(ctx, dy.shape(), dy.dtype());
    backward_into(ctx, dx, dy, saved.x);
    return dx;
}

void Gelu::forward_into(const Context& ctx, const Tensor& y, const Tensor& x) const {
    check_same("gelu", y, x);
    if (x.elements() == 0) return;
    on_device(ctx, cpu::gelu_forward, cuda::gelu_forward, y, x, form);
}

void Gelu::backward_into(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const {
    check_same("gelu", dy, x);
    check_same("gelu", dx, x);
    if (x.elements() == 0) return;
    on_device(ctx, cpu::gelu_backward, cuda::gelu_backward, dx, dy, x, form);
}

Tensor SwiGlu::forward(const Context& ctx, const Tensor& x, Saved& saved) const {
    check(x.rank() >= 1 && x.size(-1) % 2 == 0, "swiglu: x ", x, "; the last axis must hold gate and up");
    saved.x = x;
    Shape shape = x.shape();
    shape[-1] /= 2;
    Tensor y = empty(ctx, shape, x.dtype());
    forward_into(ctx, y, x);
    return y;
}

Tensor SwiGlu::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    Tensor dx = empty(ctx, saved.x.shape(), saved.x.dtype());
    backward_into(ctx, dx, dy, saved.x);
    return dx;
}

void SwiGlu::forward_into(const Context& ctx, const Tensor& y, const Tensor& x) const {
    check_halves("swiglu", x, y);
    if (x.elements() == 0) return;
    on_device(ctx, cpu::swiglu_forward, cuda::swiglu_forward, y, x);
}

void SwiGlu::backward_into(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const {
    check_halves("swiglu", x, dy);
    check_same("swiglu", dx, x);
    if (x.elements() == 0) return;
    on_device(ctx, cpu::swiglu_backward, cuda::swiglu_backward, dx, dy, x);
}

}  // namespace gradtile
