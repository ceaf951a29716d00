#include <gradtile/core/vector_math.h>
#include <gradtile/layers/activation_backend.h>
#include <gradtile/layers/gelu_rows_cpu.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

/// y = silu(gate) * up with silu(g) = g sigmoid(g).
template <class T>
void swiglu_row(T* __restrict y, const T* __restrict gate, const T* __restrict up, std::int64_t width) {
    using S = Accumulator<T>;
    for (std::int64_t i = 0; i < width; ++i) {
        const S g = convert<S>(gate[i]);
        y[i] = convert<T>(g * vector_math::sigmoid(g) * convert<S>(up[i]));
    }
}

/// silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g).
template <class T>
void swiglu_row_backward(T* d_gate, T* d_up, const T* dy, const T* gate, const T* up, std::int64_t width) {
    using S = Accumulator<T>;
#pragma GCC ivdep  // d_gate and d_up may be gate and up themselves
    for (std::int64_t i = 0; i < width; ++i) {
        const S g = convert<S>(gate[i]), u = convert<S>(up[i]), d = convert<S>(dy[i]);
        const S s = vector_math::sigmoid(g);
        d_gate[i] = convert<T>(d * u * s * (1 + g * (1 - s)));
        d_up[i] = convert<T>(d * g * s);
    }
}

}  // namespace

void gelu_forward(const Context& ctx, const Tensor& y, const Tensor& x, Gelu::Form form) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        visit_gelu<Accumulator<T>>(form, [&]<class Form>(TypeTag<Form>) {
            const Rows<T> ys(y, "gelu"), xs(x, "gelu");
            for_rows(ctx, xs.count(), xs.width(),
                     [&](std::int64_t r) { gelu_row<T, Form>(ys[r], xs[r], xs.width()); });
        });
    });
}

void gelu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu::Form form) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        visit_gelu<Accumulator<T>>(form, [&]<class Form>(TypeTag<Form>) {
            const Rows<T> dxs(dx, "gelu"), dys(dy, "gelu"), xs(x, "gelu");
            for_rows(ctx, xs.count(), xs.width(),
                     [&](std::int64_t r) { gelu_row_backward<T, Form>(dxs[r], dys[r], xs[r], xs.width()); });
        });
    });
}

void swiglu_forward(const Context& ctx, const Tensor& y, const Tensor& x) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        const Rows<T> ys(y, "swiglu"), xs(x, "swiglu");
        const std::int64_t width = ys.width();
        for_rows(ctx, ys.count(), width,
                 [&](std::int64_t r) { swiglu_row(ys[r], xs[r], xs[r] + width, width); });
    });
}

void swiglu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        const Rows<T> dxs(dx, "swiglu"), dys(dy, "swiglu"), xs(x, "swiglu");
        const std::int64_t width = dys.width();
        for_rows(ctx, dys.count(), width, [&](std::int64_t r) {
            swiglu_row_backward(dxs[r], dxs[r] + width, dys[r], xs[r], xs[r] + width, width);
        });
    });
}

}  // namespace gradtile::cpu
