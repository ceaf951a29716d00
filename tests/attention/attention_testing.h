#pragma once
/// What the attention tests share: one call of forward and backward, and the error policy of
/// docs/numerics.md.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <vector>

#include <gradtile/attention/attention.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::testing {

struct Problem {
    std::int64_t queries = 1, keys = 1;
    std::int64_t heads = 1, key_heads = 1;
    std::int64_t d_qk = 8, d_v = 8;
    bool causal = false;
    std::int64_t batch = 1;
    Window window = {};
    bool top_left = false;

    Options options(Algorithm algorithm = Algorithm::flash) const {
        return {.algorithm = algorithm, .causal = causal, .window = window, .top_left = top_left};
    }
};
inline std::ostream& operator<<(std::ostream& out, const Problem& p) {
    return out << p.queries << 'x' << p.keys << " heads " << p.heads << '/' << p.key_heads << " D " << p.d_qk
               << '/' << p.d_v << (p.causal ? " causal" : "") << (p.top_left ? " top-left" : "") << " window "
               << p.window.left << ',' << p.window.right << " batch " << p.batch;
}

struct Inputs {
    Tensor q, k, v, d_o;
};

/// Standard normal inputs, rounded to dtype and then held in `storage`: so every dtype computes on one set of
/// numbers.
inline Inputs make_inputs(const Context& ctx, const Problem& p, DType rounded, DType storage) {
    const auto draw = [&](Shape shape, std::uint64_t seed) {
        return cast(ctx, randn(ctx, shape, rounded, Seed{seed}), storage);
    };
    return {draw({p.batch, p.queries, p.heads, p.d_qk}, 11), draw({p.batch, p.keys, p.key_heads, p.d_qk}, 12),
            draw({p.batch, p.keys, p.key_heads, p.d_v}, 13), draw({p.batch, p.queries, p.heads, p.d_v}, 14)};
}

struct Result {
    std::vector<double> o, lse, d_q, d_k, d_v;
    bool operator==(const Result&) const = default;
};

inline Result run(const Context& ctx, const Inputs& in, const Options& options) {
    Saved saved;
    forward(ctx, in.q, in.k, in.v, options, saved);
    const Gradients g = backward(ctx, in.d_o, options, saved);
    return {to_host(ctx, saved.o), to_host(ctx, saved.lse), to_host(ctx, g.q), to_host(ctx, g.k),
            to_host(ctx, g.v)};
}

/// Largest |a - b|; infinities that agree count as 0, NaN as infinity.
inline double error(const std::vector<double>& a, const std::vector<double>& b) {
    double largest = a.size() == b.size() ? 0.0 : INFINITY;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        if (a[i] == b[i]) continue;
        const double distance = std::abs(a[i] - b[i]);
        largest = std::isnan(distance) ? INFINITY : std::max(largest, distance);
    }
    return largest;
}

inline double largest(const std::vector<double>& x) {
    double value = 0.0;
    for (const double element : x)
        if (std::isfinite(element)) value = std::max(value, std::abs(element));
    return value;
}
/// Largest Euclidean norm of rows of `d` elements.
inline double largest_norm(const std::vector<double>& x, std::int64_t d) {
    double value = 0.0;
    for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(d)) {
        double sum = 0.0;
        for (std::size_t i = begin; i < begin + static_cast<std::size_t>(d); ++i) sum += x[i] * x[i];
        value = std::max(value, sum);
    }
    return std::sqrt(value);
}

/// What flash may add to the naive form's error because it takes other roundings: docs/numerics.md, "Floors".
struct Floors {
    double o, lse, d_q, d_k, d_v;
};
inline Floors floors(const Context& ctx, const Problem& p, const Inputs& in, const Result& reference,
                     double unit) {
    const auto q = to_host(ctx, in.q), k = to_host(ctx, in.k), v = to_host(ctx, in.v),
               d_o = to_host(ctx, in.d_o);
    const double scale = 1.0 / std::sqrt(static_cast<double>(p.d_qk));
    const double score = scale * largest_norm(q, p.d_qk) * largest_norm(k, p.d_qk),
                 lse = largest(reference.lse);
    const double p_error = unit * (4 * score + lse + 8);
    const double d_s_error = (p_error + unit * std::sqrt(static_cast<double>(p.d_v))) *
                             largest_norm(d_o, p.d_v) * largest_norm(v, p.d_v);
    const double rows =
        std::sqrt(static_cast<double>(std::max<std::int64_t>(1, p.queries * p.heads / p.key_heads)));
    return {.o = p_error * largest(v),
            .lse = unit * (2 * score + 2 * lse + 8),
            .d_q = scale * largest(k) * d_s_error,
            .d_k = scale * largest(q) * d_s_error * rows,
            .d_v = p_error * largest(d_o) * rows};
}

}  // namespace gradtile::attention::testing
