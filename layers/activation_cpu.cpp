#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/core/cpu/wide_row.h>
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

template <class Formula, class S>
void forward_row(S* y, const S* x, std::int64_t width) {
#pragma GCC ivdep  // y may be x itself
    for (std::int64_t i = 0; i < width; ++i) y[i] = Formula::value(x[i]);
}

template <class Formula, class S>
void backward_row(S* dx, const S* dy, const S* x, std::int64_t width) {
#pragma GCC ivdep  // dx may be dy itself
    for (std::int64_t i = 0; i < width; ++i) dx[i] = dy[i] * Formula::slope(x[i]);
}

template <class Formula, class S>
void gated_forward_row(S* __restrict y, const S* __restrict gate, const S* __restrict up,
                       std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i) y[i] = Formula::value(gate[i], up[i]);
}

template <class Formula, class S>
void gated_backward_row(S* d_gate, S* d_up, const S* dy, const S* gate, const S* up, std::int64_t width) {
#pragma GCC ivdep  // d_gate and d_up may be gate and up themselves
    for (std::int64_t i = 0; i < width; ++i) {
        const auto gradient = Formula::gradient(dy[i], gate[i], up[i]);
        d_gate[i] = gradient.gate;
        d_up[i] = gradient.up;
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
        constexpr bool gated = activation_formulas::Gated<Formula>;
        parallel_ranges(ctx, ys.count(), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
            WideRow<T> y_row(width), x_row(gated ? 2 * width : width);
            for (std::int64_t r = begin; r < end; ++r) {
                auto* const to = y_row.target(ys[r]);
                const auto* const from = x_row.load(xs[r]);
                if constexpr (gated) {
                    gated_forward_row<Formula>(to, from, from + width, width);
                } else {
                    forward_row<Formula>(to, from, width);
                }
                y_row.store(ys[r]);
            }
        });
    });
}

void activation_backward(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         Activation activation) {
    visit(x.dtype(), activation, [&]<class T, class Formula>(TypeTag<T>, TypeTag<Formula>) {
        const TensorRows<T> dxs(dx, op), dys(dy, op), xs(x, op);
        const std::int64_t width = dys.width();
        constexpr bool gated = activation_formulas::Gated<Formula>;
        parallel_ranges(ctx, dys.count(), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
            const std::int64_t input_width = gated ? 2 * width : width;
            WideRow<T> dx_row(input_width), x_row(input_width), dy_row(width);
            for (std::int64_t r = begin; r < end; ++r) {
                auto* const to = dx_row.target(dxs[r]);
                const auto *const dy_from = dy_row.load(dys[r]), *const from = x_row.load(xs[r]);
                if constexpr (gated) {
                    gated_backward_row<Formula>(to, to + width, dy_from, from, from + width, width);
                } else {
                    backward_row<Formula>(to, dy_from, from, width);
                }
                dx_row.store(dxs[r]);
            }
        });
    });
}

}  // namespace gradtile::cpu
