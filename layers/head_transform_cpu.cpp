#include <cmath>

#include <gradtile/core/cpu/lanes.h>
#include <gradtile/layers/internal/head_transform_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

/// The angles of one token; null without a rotation.
template <class S>
struct TokenAngles {
    const S *cosines, *sines;
};

/// The rows of x [B,T,H,D].
template <class T>
struct HeadRows {
    T* data;
    std::int64_t length, sample_stride, token_stride, head_stride;

    explicit HeadRows(const Tensor& x)
        : data(x.data<std::remove_const_t<T>>()),
          length(x.size(1)),
          sample_stride(x.stride(0)),
          token_stride(x.stride(1)),
          head_stride(x.stride(2)) {}
    T* row(std::int64_t token, std::int64_t head) const {
        return data + token / length * sample_stride + token % length * token_stride + head * head_stride;
    }
};

/// Returns 1 / sqrt(mean(x^2) + epsilon).
template <class T, class S = Accumulator<T>>
S reciprocal_norm(const T* x, std::int64_t dim, S epsilon) {
    Lanes<S> squares;
    for_lanes(dim, [&](std::int64_t i, int lane) {
        const S value = convert<S>(x[i]);
        squares[lane] += value * value;
    });
    return 1 / std::sqrt(squares.sum() / static_cast<S>(dim) + epsilon);
}

/// y = x rstd weight for one row, without a rotation.
template <class T, class S>
void scale_row(T* __restrict y, const T* __restrict x, const T* __restrict weight, std::int64_t dim, S rstd) {
    for (std::int64_t i = 0; i < dim; ++i) y[i] = convert<T>(convert<S>(x[i]) * rstd * convert<S>(weight[i]));
}

/// Rotates x [D], multiplied by rstd and weight if there is a norm. y may be x.
template <bool has_norm, class T, class S>
void rotate_row(T* y, const T* x, const T* weight, std::int64_t half, S rstd, const TokenAngles<S>& angles,
                S sign) {
    for (std::int64_t i = 0; i < half; ++i) {
        S u = convert<S>(x[i]), v = convert<S>(x[i + half]);
        if constexpr (has_norm) {
            u *= rstd * convert<S>(weight[i]);
            v *= rstd * convert<S>(weight[i + half]);
        }
        const S cosine = angles.cosines[i], sine = sign * angles.sines[i];
        y[i] = convert<T>(u * cosine - v * sine);
        y[i + half] = convert<T>(v * cosine + u * sine);
    }
}

/// Calls f(i, lane, d) for each column i of a row, where d is the gradient with respect to the norm's result:
/// `gradient`, rotated back.
template <class T, class S, class F>
void for_gradients(const T* gradient, std::int64_t dim, const TokenAngles<S>& angles, const F& f) {
    if (angles.cosines == nullptr) {
        for_lanes(dim, [&](std::int64_t i, int lane) { f(i, lane, convert<S>(gradient[i])); });
        return;
    }
    const std::int64_t half = dim / 2;
    for_lanes(half, [&](std::int64_t i, int lane) {
        const S a = convert<S>(gradient[i]), b = convert<S>(gradient[i + half]);
        const S cosine = angles.cosines[i], sine = angles.sines[i];
        f(i, lane, a * cosine + b * sine);
        f(i + half, lane, b * cosine - a * sine);
    });
}

/// With n = x rstd, d the gradient with respect to n weight, and g = d weight:
/// gradient = rstd (g - n mean(g n)); d_weight += d n.
template <class T, class S>
void differentiate_row(T* gradient, S* __restrict d_weight, const T* __restrict x, const T* __restrict weight,
                       std::int64_t dim, S rstd, const TokenAngles<S>& angles) {
    Lanes<S> sums;
    for_gradients<T, S>(gradient, dim, angles, [&](std::int64_t i, int lane, S d) {
        const S n = convert<S>(x[i]) * rstd;
        d_weight[i] += d * n;
        sums[lane] += d * convert<S>(weight[i]) * n;
    });
    const S mean = sums.sum() / static_cast<S>(dim);
    for_gradients<T, S>(gradient, dim, angles, [&](std::int64_t i, int, S d) {
        gradient[i] = convert<T>(rstd * (d * convert<S>(weight[i]) - convert<S>(x[i]) * rstd * mean));
    });
}

template <class T>
TokenAngles<Accumulator<T>> angles_of(const HeadTransform& transform, std::int64_t token) {
    if (!transform.rotates()) return {nullptr, nullptr};
    using S = Accumulator<T>;
    const std::int64_t half = transform.angles.cosines.size(1),
                       row = token % transform.angles.cosines.size(0);
    return {transform.angles.cosines.data<S>() + row * half, transform.angles.sines.data<S>() + row * half};
}

/// Tokens per partial sum: at most 64 partial sums, of at least 16 rows each.
std::int64_t tokens_per_partial(std::int64_t tokens, std::int64_t heads) {
    return std::max<std::int64_t>(ceil_div(std::int64_t{16}, std::max<std::int64_t>(1, heads)),
                                  ceil_div(tokens, std::int64_t{64}));
}

}  // namespace

void transform_heads(const Context& ctx, const Tensor& y, const Tensor& rstd, const Tensor& x,
                     const HeadTransform& transform, bool inverse) {
    const std::int64_t heads = x.size(2), dim = x.size(3);
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const HeadRows<const T> from(x);
        const HeadRows<T> to(y);
        const S sign = inverse ? S(-1) : S(1), epsilon = static_cast<S>(transform.epsilon);
        for_rows(ctx, x.size(0) * x.size(1), heads * dim, [&](std::int64_t token) {
            const TokenAngles<S> angles = angles_of<T>(transform, token);
            for (std::int64_t head = 0; head < heads; ++head) {
                const T* const row = from.row(token, head);
                T* const result = to.row(token, head);
                if (!transform.has_norm()) {
                    rotate_row<false, T>(result, row, nullptr, dim / 2, S(1), angles, sign);
                    continue;
                }
                const T* const weight =
                    (head < transform.queries ? transform.q_weight : transform.k_weight).template data<T>();
                const S scale = reciprocal_norm(row, dim, epsilon);
                rstd.data<S>()[token * heads + head] = scale;
                if (transform.rotates()) {
                    rotate_row<true, T>(result, row, weight, dim / 2, scale, angles, sign);
                } else {
                    scale_row<T, S>(result, row, weight, dim, scale);
                }
            }
        });
    });
}

std::int64_t head_partials(std::int64_t tokens, std::int64_t heads) {
    return ceil_div(tokens, tokens_per_partial(tokens, heads));
}

void differentiate_heads(const Context& ctx, const Tensor& gradient, const Tensor& rstd, const Tensor& x,
                         const HeadTransform& transform, const HeadWeightGradients& weights,
                         const Tensor& partials) {
    const std::int64_t tokens = x.size(0) * x.size(1), heads = x.size(2), dim = x.size(3);
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const HeadRows<const T> xs(x);
        const HeadRows<T> gradients(gradient);
        const std::int64_t grain = tokens_per_partial(tokens, heads);
        S* const sums = partials.data<S>();
        parallel_ranges(ctx, tokens, grain, [&](std::int64_t begin, std::int64_t end) {
            S* const of_queries = sums + begin / grain * 2 * dim;
            std::fill_n(of_queries, 2 * dim, S(0));
            for (std::int64_t token = begin; token < end; ++token)
                for (std::int64_t head = 0; head < heads; ++head) {
                    const bool is_query = head < transform.queries;
                    const Tensor& weight = is_query ? transform.q_weight : transform.k_weight;
                    differentiate_row<T, S>(gradients.row(token, head), of_queries + (is_query ? 0 : dim),
                                            xs.row(token, head), weight.data<T>(), dim,
                                            rstd.data<S>()[token * heads + head],
                                            angles_of<T>(transform, token));
                }
        });
        const auto add_partials = [&](const GradientTarget& target, std::int64_t first) {
            if (!target.grad.defined()) return;
            S* const sum = target.grad.data<S>();
            if (!target.accumulates()) std::fill_n(sum, dim, S(0));
            for (std::int64_t part = 0; part < partials.size(0); ++part)
                for (std::int64_t i = 0; i < dim; ++i) sum[i] += sums[part * 2 * dim + first + i];
        };
        add_partials(weights.q, 0);
        add_partials(weights.k, dim);
    });
}

}  // namespace gradtile::cpu
