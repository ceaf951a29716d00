#include <cmath>

#include <gradtile/core/cpu/lanes.h>
#include <gradtile/layers/internal/head_gate_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

template <class S>
S sigmoid(S x) {
    return 1 / (1 + std::exp(-x));
}

/// y = gate x, or y += gate x.
template <bool adds, class T>
void gate_row(T* __restrict y, const T* __restrict x, Accumulator<T> gate, std::int64_t dim) {
    using S = Accumulator<T>;
    for (std::int64_t i = 0; i < dim; ++i) {
        S value = gate * convert<S>(x[i]);
        if constexpr (adds) value += convert<S>(y[i]);
        y[i] = convert<T>(value);
    }
}

/// dx = gate dy; returns the sum of dy x. dx may be dy.
template <class T, class S = Accumulator<T>>
S differentiate_row(T* dx, const T* dy, const T* __restrict x, S gate, std::int64_t dim) {
    Lanes<S> sums;
    for_lanes(dim, [&](std::int64_t i, int lane) { sums[lane] += convert<S>(dy[i]) * convert<S>(x[i]); });
#pragma GCC ivdep
    for (std::int64_t i = 0; i < dim; ++i) dx[i] = convert<T>(gate * convert<S>(dy[i]));
    return sums.sum();
}

}  // namespace

void gate_heads(const Context& ctx, const GatedHeads& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const TensorRows<T> xs(op.x, "head_gate"), ys(op.y, "head_gate");
        const T* const logits = op.logits.data<T>();
        const S scale = static_cast<S>(op.scale);
        for_rows(ctx, xs.count(), xs.width(), [&](std::int64_t r) {
            const S gate = scale * sigmoid(convert<S>(logits[r]));
            (op.adds ? gate_row<true, T> : gate_row<false, T>)(ys[r], xs[r], gate, xs.width());
        });
    });
}

void differentiate_gated_heads(const Context& ctx, const GatedHeadsGradient& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const TensorRows<T> xs(op.x, "head_gate"), dys(op.dy, "head_gate"), dxs(op.dx, "head_gate");
        const T* const logits = op.logits.data<T>();
        T* const d_logits = op.d_logits.data<T>();
        const S scale = static_cast<S>(op.scale);
        for_rows(ctx, xs.count(), xs.width(), [&](std::int64_t r) {
            const S s = sigmoid(convert<S>(logits[r]));
            const S product = differentiate_row(dxs[r], dys[r], xs[r], scale * s, xs.width());
            d_logits[r] = convert<T>(scale * s * (1 - s) * product);
        });
    });
}

}  // namespace gradtile::cpu
