#include <cmath>
#include <numbers>

#include <gradtile/layers/activation_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

template <class S>
S sigmoid(S x) {
    return S(1) / (S(1) + std::exp(-x));
}

// x/2 (1 + tanh u) = x sigmoid(2u), which costs one exponential.
template <class S>
struct GeluTanh {
    static constexpr S scale = S(2) * S(std::numbers::sqrt2) * S(std::numbers::inv_sqrtpi);  // 2 sqrt(2/pi)
    static constexpr S cubic = S(0.044715);
    static S value(S x) { return x * sigmoid(scale * (x + cubic * x * x * x)); }
    static S slope(S x) {
        const S s = sigmoid(scale * (x + cubic * x * x * x));
        return s + x * s * (1 - s) * scale * (1 + 3 * cubic * x * x);
    }
};

template <class S>
struct GeluExact {
    static S phi(S x) { return S(0.5) * (1 + std::erf(x * S(1 / std::numbers::sqrt2))); }
    static S value(S x) { return x * phi(x); }
    static S slope(S x) {
        constexpr S density = S(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
        return phi(x) + x * density * std::exp(S(-0.5) * x * x);
    }
};

template <class T, class Row>
void for_rows(const Context& ctx, std::int64_t rows, std::int64_t width, Row&& row) {
    parallel_ranges(ctx, rows, rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) row(r);
    });
}

template <class T, class Form>
void forward(const Context& ctx, const Tensor& y, const Tensor& x) {
    using Sum = Accumulator<T>;
    const Rows<T> ys(y, "gelu"), xs(x, "gelu");
    for_rows<T>(ctx, xs.count(), xs.width(), [&](std::int64_t r) {
        T* out = ys[r];
        const T* in = xs[r];
        for (std::int64_t i = 0; i < xs.width(); ++i) out[i] = convert<T>(Form::value(convert<Sum>(in[i])));
    });
}

template <class T, class Form>
void backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    using Sum = Accumulator<T>;
    const Rows<T> dxs(dx, "gelu"), dys(dy, "gelu"), xs(x, "gelu");
    for_rows<T>(ctx, xs.count(), xs.width(), [&](std::int64_t r) {
        T* out = dxs[r];
        const T* d = dys[r];
        const T* in = xs[r];
        for (std::int64_t i = 0; i < xs.width(); ++i)
            out[i] = convert<T>(convert<Sum>(d[i]) * Form::slope(convert<Sum>(in[i])));
    });
}

}  // namespace

void gelu_forward(const Context& ctx, const Tensor& y, const Tensor& x, Gelu::Form form) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        if (form == Gelu::Form::tanh) {
            forward<T, GeluTanh<Accumulator<T>>>(ctx, y, x);
        } else {
            forward<T, GeluExact<Accumulator<T>>>(ctx, y, x);
        }
    });
}

void gelu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu::Form form) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        if (form == Gelu::Form::tanh) {
            backward<T, GeluTanh<Accumulator<T>>>(ctx, dx, dy, x);
        } else {
            backward<T, GeluExact<Accumulator<T>>>(ctx, dx, dy, x);
        }
    });
}

void swiglu_forward(const Context& ctx, const Tensor& y, const Tensor& x) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        const Rows<T> ys(y, "swiglu"), xs(x, "swiglu");
        const std::int64_t width = ys.width();
        for_rows<T>(ctx, ys.count(), width, [&](std::int64_t r) {
            T* out = ys[r];
            const T* gate = xs[r];
            const T* up = gate + width;
            for (std::int64_t i = 0; i < width; ++i) {
                const Sum g = convert<Sum>(gate[i]);
                out[i] = convert<T>(g * sigmoid(g) * convert<Sum>(up[i]));
            }
        });
    });
}

void swiglu_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        const Rows<T> dxs(dx, "swiglu"), dys(dy, "swiglu"), xs(x, "swiglu");
        const std::int64_t width = dys.width();
        for_rows<T>(ctx, dys.count(), width, [&](std::int64_t r) {
            const T* d = dys[r];
            const T* gate = xs[r];
            const T* up = gate + width;
            T* d_gate = dxs[r];
            T* d_up = d_gate + width;
            for (std::int64_t i = 0; i < width; ++i) {
                const Sum g = convert<Sum>(gate[i]), u = convert<Sum>(up[i]), grad = convert<Sum>(d[i]);
                const Sum s = sigmoid(g);
                d_gate[i] = convert<T>(grad * u * s * (1 + g * (1 - s)));
                d_up[i] = convert<T>(grad * g * s);
            }
        });
    });
}

}  // namespace gradtile::cpu
