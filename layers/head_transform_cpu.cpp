#include <algorithm>
#include <cmath>
#include <vector>

#include <gradtile/core/cpu/lanes.h>
#include <gradtile/layers/internal/head_transform_backend.h>
#include <gradtile/layers/internal/partial_sums.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

/// One token's angles; null without a rotation.
template <class S>
struct TokenAngles {
    const S *cosines, *sines;
};

/// A token's heads in x [B,T,H,D].
template <class T>
struct TokenHeads {
    T* data;
    std::int64_t stride;

    TokenHeads(const Tensor& x, std::int64_t token)
        : data(x.data<std::remove_const_t<T>>() + token / x.size(1) * x.stride(0) +
               token % x.size(1) * x.stride(1)),
          stride(x.stride(2)) {}
    T* operator[](std::int64_t head) const { return data + head * stride; }
};

/// Returns 1 / sqrt(mean(x^2) + epsilon).
template <class T, class S>
S reciprocal_norm(const T* x, std::int64_t dim, S epsilon) {
    Lanes<S> squares;
    for_lanes(dim, [&](std::int64_t i, int lane) {
        const S value = convert<S>(x[i]);
        squares[lane] += value * value;
    });
    return 1 / std::sqrt(squares.sum() / static_cast<S>(dim) + epsilon);
}

/// y = x rstd gain.
template <class T, class S>
void scale_row(T* __restrict y, const T* __restrict x, const S* __restrict gain, std::int64_t dim, S rstd) {
    for (std::int64_t i = 0; i < dim; ++i) y[i] = convert<T>(convert<S>(x[i]) * rstd * gain[i]);
}

/// y = x rstd gain, rotated by the token's angles.
template <class T, class S>
void scale_and_rotate_row(T* __restrict y, const T* __restrict x, const S* __restrict gain, std::int64_t half,
                          S rstd, const TokenAngles<S>& angles) {
    const S* __restrict cosines = angles.cosines;
    const S* __restrict sines = angles.sines;
    for (std::int64_t i = 0; i < half; ++i) {
        const S u = convert<S>(x[i]) * rstd * gain[i], v = convert<S>(x[i + half]) * rstd * gain[i + half];
        y[i] = convert<T>(u * cosines[i] - v * sines[i]);
        y[i + half] = convert<T>(v * cosines[i] + u * sines[i]);
    }
}

/// Rotates a row's two halves in place; sign -1 rotates back.
template <class T, class S>
void rotate_row(T* __restrict first, T* __restrict second, std::int64_t half, const TokenAngles<S>& angles,
                S sign) {
    const S* __restrict cosines = angles.cosines;
    const S* __restrict sines = angles.sines;
    for (std::int64_t i = 0; i < half; ++i) {
        const S u = convert<S>(first[i]), v = convert<S>(second[i]), sine = sign * sines[i];
        first[i] = convert<T>(u * cosines[i] - v * sine);
        second[i] = convert<T>(v * cosines[i] + u * sine);
    }
}

/// gradient = rstd (g - n mean(g n)) and d_weight += d n, with n = x rstd, g = d gain, and d [dim], the
/// gradient with respect to n gain.
template <class T, class S>
void differentiate_row(T* __restrict gradient, S* __restrict d_weight, const S* __restrict d,
                       const T* __restrict x, const S* __restrict gain, std::int64_t dim, S rstd) {
    Lanes<S> sums;
    for_lanes(dim, [&](std::int64_t i, int lane) {
        const S n = convert<S>(x[i]) * rstd;
        d_weight[i] += d[i] * n;
        sums[lane] += d[i] * gain[i] * n;
    });
    const S mean = sums.sum() / static_cast<S>(dim);
    for (std::int64_t i = 0; i < dim; ++i)
        gradient[i] = convert<T>(rstd * (d[i] * gain[i] - convert<S>(x[i]) * rstd * mean));
}

template <class T>
TokenAngles<Accumulator<T>> angles_of(const HeadTransform& transform, std::int64_t token) {
    if (!transform.rotates()) return {nullptr, nullptr};
    using S = Accumulator<T>;
    const std::int64_t half = transform.angles.cosines.size(1),
                       row = token % transform.angles.cosines.size(0);
    return {transform.angles.cosines.data<S>() + row * half, transform.angles.sines.data<S>() + row * half};
}

/// The gains of the query norm and the key norm.
template <class S>
struct Gains {
    Gains(const HeadTransform& transform, std::int64_t dim)
        : queries(transform.queries),
          q(gain_of(transform, transform.q_weight, dim)),
          k(gain_of(transform, transform.k_weight, dim)) {}
    const S* of(std::int64_t head) const { return head < queries ? q.data() : k.data(); }

  private:
    static std::vector<S> gain_of(const HeadTransform& transform, const Tensor& weight, std::int64_t dim) {
        std::vector<S> gain(transform.has_norm() ? static_cast<std::size_t>(dim) : 0, S(1));
        if (weight.defined())
            visit_floating(weight.dtype(), [&]<class T>(TypeTag<T>) {
                std::transform(weight.data<T>(), weight.data<T>() + dim, gain.begin(), [&](T w) {
                    return static_cast<S>(transform.weight_offset) +
                           static_cast<S>(convert<Accumulator<T>>(w));
                });
            });
        return gain;
    }

    std::int64_t queries;
    std::vector<S> q, k;
};

/// Tokens per partial sum. There are at most 64 partial sums. Each but the last covers at least 16 rows.
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
        const S sign = inverse ? S(-1) : S(1), epsilon = static_cast<S>(transform.epsilon);
        const Gains<S> gains(transform, dim);
        for_rows(ctx, x.size(0) * x.size(1), heads * dim, [&](std::int64_t token) {
            const TokenAngles<S> angles = angles_of<T>(transform, token);
            const TokenHeads<const T> from(x, token);
            const TokenHeads<T> to(y, token);
            for (std::int64_t head = 0; head < heads; ++head) {
                if (!transform.has_norm()) {
                    rotate_row(to[head], to[head] + dim / 2, dim / 2, angles, sign);
                    continue;
                }
                const S* const gain = gains.of(head);
                const S scale = reciprocal_norm(from[head], dim, epsilon);
                rstd.data<S>()[token * heads + head] = scale;
                if (transform.rotates()) {
                    scale_and_rotate_row(to[head], from[head], gain, dim / 2, scale, angles);
                } else {
                    scale_row(to[head], from[head], gain, dim, scale);
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
        const std::int64_t grain = tokens_per_partial(tokens, heads);
        const Gains<S> gains(transform, dim);
        S* const sums = partials.data<S>();
        parallel_ranges(ctx, tokens, grain, [&](std::int64_t begin, std::int64_t end) {
            S* const d_weights = sums + begin / grain * 2 * dim;
            std::fill_n(d_weights, 2 * dim, S(0));
            std::vector<S> d(static_cast<std::size_t>(dim));
            for (std::int64_t token = begin; token < end; ++token) {
                const TokenAngles<S> angles = angles_of<T>(transform, token);
                const TokenHeads<const T> xs(x, token);
                const TokenHeads<T> gradients(gradient, token);
                for (std::int64_t head = 0; head < heads; ++head) {
                    T* const row = gradients[head];
                    std::transform(row, row + dim, d.begin(), [](T value) { return convert<S>(value); });
                    if (transform.rotates()) rotate_row(d.data(), d.data() + dim / 2, dim / 2, angles, S(-1));
                    S* const d_weight = d_weights + (head < transform.queries ? 0 : dim);
                    differentiate_row(row, d_weight, d.data(), xs[head], gains.of(head), dim,
                                      rstd.data<S>()[token * heads + head]);
                }
            }
        });
        add_partials<S>({weights.q, weights.k}, partials);
    });
}

}  // namespace gradtile::cpu
