#include <cmath>

#include <gradtile/core/cpu/lanes.h>
#include <gradtile/core/cpu/wide_row.h>
#include <gradtile/layers/internal/norm_backend.h>
#include <gradtile/layers/internal/partial_sums.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

/// Rows per partial sum. There are at most 64 partial sums, enough for 64 threads. Each but the last covers
/// at least 16 rows.
std::int64_t rows_per_partial(std::int64_t rows) {
    return std::max<std::int64_t>(16, (rows + 63) / 64);
}

template <class S>
struct Statistics {
    S mean, rstd;
};

/// Computes the variance from differences to the mean, which avoids cancellation. The second pass over the
/// row reads the cache.
template <bool centred, class S>
Statistics<S> statistics_of(const S* x, std::int64_t width, S eps) {
    const S count = static_cast<S>(width);
    S mean = 0;
    if constexpr (centred) {
        Lanes<S> sum;
        for_lanes(width, [&](std::int64_t i, int lane) { sum[lane] += x[i]; });
        mean = sum.sum() / count;
    }
    Lanes<S> squares;
    for_lanes(width, [&](std::int64_t i, int lane) {
        const S d = x[i] - mean;
        squares[lane] += d * d;
    });
    return {mean, 1 / std::sqrt(squares.sum() / count + eps)};
}

template <bool has_bias, class S>
void normalize_row(S* __restrict y, const S* __restrict x, const S* __restrict weight,
                   const S* __restrict bias, std::int64_t width, Statistics<S> row, S offset) {
    for (std::int64_t i = 0; i < width; ++i) {
        S value = (x[i] - row.mean) * row.rstd * (offset + weight[i]);
        if constexpr (has_bias) value += bias[i];
        y[i] = value;
    }
}

template <class T, bool centred>
void forward(const Context& ctx, const NormOutputs& out, const Tensor& x, const NormParameters& norm) {
    using S = Accumulator<T>;
    const TensorRows<T> xs(x, "norm"), ys(out.y, "norm");
    const std::int64_t width = xs.width();
    S* means = centred ? out.mean.data<S>() : nullptr;
    S* rstds = out.rstd.data<S>();
    const S eps = static_cast<S>(norm.eps), offset = static_cast<S>(norm.weight_offset);
    parallel_ranges(ctx, xs.count(), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
        WideRow<T> x_row(width), y_row(width), weights(width), biases(width);
        const S* const w = weights.load(norm.weight.data<T>());
        const S* const b = norm.bias.defined() ? biases.load(norm.bias.data<T>()) : nullptr;
        for (std::int64_t r = begin; r < end; ++r) {
            const S* const from = x_row.load(xs[r]);
            S* const to = y_row.target(ys[r]);
            const auto row = statistics_of<centred>(from, width, eps);
            if (centred) means[r] = row.mean;
            rstds[r] = row.rstd;
            if (b != nullptr) {
                normalize_row<true>(to, from, w, b, width, row, offset);
            } else {
                normalize_row<false>(to, from, w, b, width, row, offset);
            }
            y_row.store(ys[r]);
        }
    });
}

/// With n = (x - mean) rstd and g = dy (offset + weight):  dx = rstd (g - mean(g) - n mean(g n)), where
/// mean(g) is 0 for the root-mean-square norm; dweight += dy n; dbias += dy.
template <bool centred, bool accumulate, class S>
void differentiate_row(S* __restrict dx, S* __restrict d_weight, S* __restrict d_bias, const S* __restrict dy,
                       const S* __restrict x, const S* __restrict weight, std::int64_t width,
                       Statistics<S> row, S offset) {
    Lanes<S> sum_g, sum_gn;
    for_lanes(width, [&](std::int64_t i, int lane) {
        const S n = (x[i] - row.mean) * row.rstd, d = dy[i];
        const S g = d * (offset + weight[i]);
        d_weight[i] += d * n;
        if constexpr (centred) {
            d_bias[i] += d;
            sum_g[lane] += g;
        }
        sum_gn[lane] += g * n;
    });
    const S mean_g = centred ? sum_g.sum() / static_cast<S>(width) : S(0);
    const S mean_gn = sum_gn.sum() / static_cast<S>(width);
    for (std::int64_t i = 0; i < width; ++i) {
        const S n = (x[i] - row.mean) * row.rstd;
        const S g = dy[i] * (offset + weight[i]);
        S value = row.rstd * (g - mean_g - n * mean_gn);
        if constexpr (accumulate) value += dx[i];
        dx[i] = value;
    }
}

/// Each block sums the parameter gradients over its rows into its own partial sums. The partial sums are then
/// added in block order.
template <class T, bool centred, bool accumulate>
void backward(const Context& ctx, const NormGradients& out, const NormInputs& in) {
    using S = Accumulator<T>;
    const TensorRows<T> dys(in.dy, "norm"), xs(in.x, "norm"), dxs(out.dx, "norm");
    const std::int64_t width = xs.width(), grain = rows_per_partial(xs.count());
    const S* means = centred ? in.mean.data<S>() : nullptr;
    const S* rstds = in.rstd.data<S>();
    const S offset = static_cast<S>(in.weight_offset);
    S* partials = out.partials.data<S>();
    parallel_ranges(ctx, xs.count(), grain, [&](std::int64_t begin, std::int64_t end) {
        S* d_weight = partials + begin / grain * 2 * width;
        S* d_bias = d_weight + width;
        std::fill(d_weight, d_weight + 2 * width, S(0));
        WideRow<T> dx_row(width), dy_row(width), x_row(width), weights(width);
        const S* const w = weights.load(in.weight.data<T>());
        for (std::int64_t r = begin; r < end; ++r) {
            if constexpr (accumulate) dx_row.load(dxs[r]);
            differentiate_row<centred, accumulate>(
                dx_row.target(dxs[r]), d_weight, d_bias, dy_row.load(dys[r]), x_row.load(xs[r]), w, width,
                Statistics<S>{centred ? means[r] : S(0), rstds[r]}, offset);
            dx_row.store(dxs[r]);
        }
    });
    add_partials<S>({out.weight, out.bias}, out.partials);
}

}  // namespace

std::int64_t norm_partials(std::int64_t rows, std::int64_t) {
    return ceil_div(rows, rows_per_partial(rows));
}

void norm_forward(const Context& ctx, const NormOutputs& out, const Residual& residual,
                  const NormParameters& norm) {
    const Tensor x = residual.sum(ctx);
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        if (out.mean.defined()) {
            forward<T, true>(ctx, out, x, norm);
        } else {
            forward<T, false>(ctx, out, x, norm);
        }
    });
}

void norm_backward(const Context& ctx, const NormGradients& out, const NormInputs& in) {
    visit_floating(in.x.dtype(), [&]<class T>(TypeTag<T>) {
        if (in.mean.defined()) {
            out.accumulate_dx ? backward<T, true, true>(ctx, out, in)
                              : backward<T, true, false>(ctx, out, in);
        } else {
            out.accumulate_dx ? backward<T, false, true>(ctx, out, in)
                              : backward<T, false, false>(ctx, out, in);
        }
    });
}

}  // namespace gradtile::cpu
