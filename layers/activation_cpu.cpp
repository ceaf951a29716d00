#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/layers/internal/activation_backend.h>
#include <gradtile/layers/internal/activation_formulas.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

/// Passes vector_math's functions to the formulas, so that the compiler can vectorise loops over the
/// formulas.
struct Math {
    template <class S>
    static constexpr S sigmoid_factor = 1;
    template <class S>
    static S scaled_sigmoid(S x) {
        return vector_math::sigmoid(x);
    }
    template <class S>
    static S sigmoid(S x) {
        return vector_math::sigmoid(x);
    }
    template <class S>
    static vector_math::Normal<S> normal(S x) {
        return vector_math::normal(x);
    }
    template <class S>
    static S times_normal(S x) {
        return x * normal(x).distribution;
    }
};

constexpr const char* op = "activation";

template <class Formula, class T>
void forward_row(T* y, const T* x, std::int64_t width) {
    using S = Accumulator<T>;
#pragma GCC ivdep  // y may be x itself
    for (std::int64_t i = 0; i < width; ++i) y[i] = convert<T>(Formula::value(convert<S>(x[i])));
}

template <class Formula, class T>
void backward_row(T* dx, const T* dy, const T* x, std::int64_t width) {
    using S = Accumulator<T>;
#pragma GCC ivdep  // dx may be dy itself
    for (std::int64_t i = 0; i < width; ++i)
        dx[i] = convert<T>(convert<S>(dy[i]) * Formula::slope(convert<S>(x[i])));
}

template <class Formula, class T>
void gated_forward_row(T* __restrict y, const T* __restrict gate, const T* __restrict up,
                       std::int64_t width) {
    using S = Accumulator<T>;
    for (std::int64_t i = 0; i < width; ++i)
        y[i] = convert<T>(Formula::value(convert<S>(gate[i]), convert<S>(up[i])));
}

template <class Formula, class T>
void gated_backward_row(T* d_gate, T* d_up, const T* dy, const T* gate, const T* up, std::int64_t width) {
    using S = Accumulator<T>;
#pragma GCC ivdep  // d_gate and d_up may be gate and up themselves
    for (std::int64_t i = 0; i < width; ++i) {
        const auto gradient = Formula::gradient(convert<S>(dy[i]), convert<S>(gate[i]), convert<S>(up[i]));
        d_gate[i] = convert<T>(gradient.gate);
        d_up[i] = convert<T>(gradient.up);
    }
}

/// Calls f(TypeTag<T>{}, TypeTag<Formula>{}) with the element type T and the formula in T's accumulator type.
template <class F>
void visit(DType dtype, Activation activation, F&& f) {
    visit_floating(dtype, [&]<class T>(TypeTag<T> type) {
        activation_formulas::visit<Math, Accumulator<T>>(activation, [&](auto formula) { f(type, formula); });
    });
}

}  // namespace

void activation_forward(const Context& ctx, const Tensor& y, const Tensor& x, Activation activation) {
    visit(x.dtype(), activation, [&]<class T, class Formula>(TypeTag<T>, TypeTag<Formula>) {
        const TensorRows<T> ys(y, op), xs(x, op);
        const std::int64_t width = ys.width();
        for_rows(ctx, ys.count(), width, [&](std::int64_t r) {
            if constexpr (activation_formulas::Gated<Formula>) {
                gated_forward_row<Formula>(ys[r], xs[r], xs[r] + width, width);
            } else {
                forward_row<Formula>(ys[r], xs[r], width);
            }
        });
    });
}

void activation_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         Activation activation) {
    visit(x.dtype(), activation, [&]<class T, class Formula>(TypeTag<T>, TypeTag<Formula>) {
        const TensorRows<T> dxs(dx, op), dys(dy, op), xs(x, op);
        const std::int64_t width = dys.width();
        for_rows(ctx, dys.count(), width, [&](std::int64_t r) {
            if constexpr (activation_formulas::Gated<Formula>) {
                gated_backward_row<Formula>(dxs[r], dxs[r] + width, dys[r], xs[r], xs[r] + width, width);
            } else {
                backward_row<Formula>(dxs[r], dys[r], xs[r], width);
            }
        });
    });
}

}  // namespace gradtile::cpu
