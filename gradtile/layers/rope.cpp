#include <gradtile/layers/rope.h>

#include <cmath>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/rope_backend.h>

namespace gradtile {

Rope::Rope(std::int64_t head_dim, std::int64_t max_positions, double base) {
    check(head_dim > 0 && head_dim % 2 == 0, "rope: head_dim ", head_dim, " is not even");
    check(max_positions >= 0, "rope: ", max_positions, " positions");
    check(base > 0, "rope: base ", base, " is not positive");
    const Context host(Device::cpu(), 1);
    const std::int64_t half = head_dim / 2;
    cosines_ = empty(host, {max_positions, half}, DType::f64);
    sines_ = empty(host, {max_positions, half}, DType::f64);
    for (std::int64_t i = 0; i < half; ++i) {
        const double frequency =
            std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        for (std::int64_t t = 0; t < max_positions; ++t) {
            cosines_.data<double>()[t * half + i] = std::cos(static_cast<double>(t) * frequency);
            sines_.data<double>()[t * half + i] = std::sin(static_cast<double>(t) * frequency);
        }
    }
    cosines_float_ = cast(host, cosines_, DType::f32);
    sines_float_ = cast(host, sines_, DType::f32);
}

void Rope::forward(const Context& ctx, const Tensor& x, std::int64_t start) const {
    rotate(ctx, x, start, /*inverse=*/false);
}

void Rope::backward(const Context& ctx, const Tensor& dx, std::int64_t start) const {
    rotate(ctx, dx, start, /*inverse=*/true);
}

void Rope::rotate(const Context& ctx, const Tensor& x, std::int64_t start, bool inverse) const {
    check(x.rank() == 4 && x.size(3) == head_dim(), "rope: x ", x, "; [B, S, H, ", head_dim(), "] expected");
    check(x.stride(3) == 1, "rope: x ", x, " with strides ", x.strides(), "; the last must be 1");
    check(start >= 0 && start + x.size(1) <= max_positions(), "rope: positions ", start, " to ",
          start + x.size(1), " of ", max_positions());
    if (x.elements() == 0) return;
    const bool wide = x.dtype() == DType::f64;
    on_device(ctx, cpu::rope_rotate, cuda::rope_rotate, x,
              (wide ? cosines_ : cosines_float_).slice(0, start, x.size(1)),
              (wide ? sines_ : sines_float_).slice(0, start, x.size(1)), inverse);
}

}  // namespace gradtile
