#include <numbers>

#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

/// x/2 (1 + tanh(u/2)) = x sigmoid(u) with u = a x + b x^3, which costs one exponential.
template <class S>
struct GeluTanh {
    static constexpr S a = S(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    static constexpr S b = S(0.044715 * 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);

    static S value(S x) { return x * vector_math::sigmoid(x * (a + b * (x * x))); }
    static S slope(S x) {
        // Beyond 12 the sigmoid is 0 or 1 (to 1e-61), while x^2 may overflow.
        const S z = x > S(12) ? S(12) : (x < S(-12) ? S(-12) : x);
        const S square = z * z;
        const S s = vector_math::sigmoid(z * (a + b * square));
        return s + z * (s * (1 - s)) * (a + 3 * b * square);
    }
};

/// x Phi(x), whose slope is Phi(x) + x e^(-x^2/2) / sqrt(2 pi).
template <class S>
struct GeluExact {
    static S value(S x) { return x * vector_math::normal(x).distribution; }
    static S slope(S x) {
        constexpr S density = S(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
        const vector_math::Normal<S> normal = vector_math::normal(x);
        return normal.distribution + x * density * normal.gaussian;
    }
};

template <class T, class Form>
void gelu_row(T* y, const T* x, std::int64_t width) {
    using S = Accumulator<T>;
#pragma GCC ivdep  // y may be x itself
    for (std::int64_t i = 0; i < width; ++i) y[i] = convert<T>(Form::value(convert<S>(x[i])));
}

template <class T, class Form>
void gelu_row_backward(T* dx, const T* dy, const T* x, std::int64_t width) {
    using S = Accumulator<T>;
#pragma GCC ivdep  // dx may be dy itself
    for (std::int64_t i = 0; i < width; ++i)
        dx[i] = convert<T>(convert<S>(dy[i]) * Form::slope(convert<S>(x[i])));
}

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

template <class T, class Form>
void gelu_forward(const Context& ctx, const Tensor& y, const Tensor& x) {
    const Rows<T> ys(y, "gelu"), xs(x, "gelu");
    for_rows(ctx, xs.count(), xs.width(),
             [&](std::int64_t r) { gelu_row<T, Form>(ys[r], xs[r], xs.width()); });
}

template <class T, class Form>
void gelu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    const Rows<T> dxs(dx, "gelu"), dys(dy, "gelu"), xs(x, "gelu");
    for_rows(ctx, xs.count(), xs.width(),
             [&](std::int64_t r) { gelu_row_backward<T, Form>(dxs[r], dys[r], xs[r], xs.width()); });
}

}  // namespace

void gelu_forward(const Context& ctx, const Tensor& y, const Tensor& x, Gelu::Form form) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        if (form == Gelu::Form::tanh) {
            gelu_forward<T, GeluTanh<Accumulator<T>>>(ctx, y, x);
        } else {
            gelu_forward<T, GeluExact<Accumulator<T>>>(ctx, y, x);
        }
    });
}

void gelu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu::Form form) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        if (form == Gelu::Form::tanh) {
            gelu_backward<T, GeluTanh<Accumulator<T>>>(ctx, dx, dy, x);
        } else {
            gelu_backward<T, GeluExact<Accumulator<T>>>(ctx, dx, dy, x);
        }
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
