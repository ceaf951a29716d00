#pragma once
/// What the attention tests share: problems, their inputs, and one pass forward and backward.
#include <cmath>
#include <optional>
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/flash_select_cpu.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/floating_dtypes.h>

namespace gradtile::attention::test {

struct Problem {
    std::int64_t queries = 1, keys = 1;
    std::int64_t d_qk = 8, d_v = 8;
    bool causal = false;
    std::int64_t batch = 1, heads = 1, key_heads = 1;
    Window window = {};
    bool top_left = false;
    std::optional<double> scale = {};

    Options options(Algorithm algorithm = Algorithm::flash) const {
        return {
            .algorithm = algorithm, .scale = scale, .causal = causal, .window = window, .top_left = top_left};
    }
    double scale_or_default() const { return scale.value_or(1.0 / std::sqrt(static_cast<double>(d_qk))); }
};

inline std::ostream& operator<<(std::ostream& out, const Problem& p) {
    out << p.queries << " x " << p.keys << ", head dims " << p.d_qk << " and " << p.d_v << ", batch "
        << p.batch << ", heads " << p.heads << " over " << p.key_heads << (p.causal ? ", causal" : "")
        << (p.top_left ? ", top left" : "");
    if (p.window.left >= 0 || p.window.right >= 0)
        out << ", window {" << p.window.left << ", " << p.window.right << '}';
    if (p.scale) out << ", scale " << *p.scale;
    return out;
}

struct Inputs {
    Tensor q, k, v, d_o;

    Inputs to(const Context& ctx, DType dtype) const {
        return {cast(ctx, q, dtype), cast(ctx, k, dtype), cast(ctx, v, dtype), cast(ctx, d_o, dtype)};
    }
};

/// Standard normal numbers, rounded to dtype.
inline Inputs random_inputs(const Context& ctx, const Problem& p, DType dtype) {
    return {.q = randn(ctx, {p.batch, p.queries, p.heads, p.d_qk}, dtype, Seed{11}),
            .k = randn(ctx, {p.batch, p.keys, p.key_heads, p.d_qk}, dtype, Seed{12}),
            .v = randn(ctx, {p.batch, p.keys, p.key_heads, p.d_v}, dtype, Seed{13}),
            .d_o = randn(ctx, {p.batch, p.queries, p.heads, p.d_v}, dtype, Seed{14})};
}

/// Everything a pass forward and backward gives, on the host.
struct Result {
    std::vector<double> o, lse, d_q, d_k, d_v;
    bool operator==(const Result&) const = default;
};

inline Result run(const Context& ctx, const Inputs& in, const Options& options) {
    Saved saved;
    const Tensor o = forward(ctx, in.q, in.k, in.v, options, saved);
    const Gradients gradients = backward(ctx, in.d_o, options, saved);
    return {.o = to_host(ctx, o),
            .lse = to_host(ctx, saved.lse),
            .d_q = to_host(ctx, gradients.q),
            .d_k = to_host(ctx, gradients.k),
            .d_v = to_host(ctx, gradients.v)};
}

using gradtile::test::floating_dtypes;
inline constexpr Algorithm algorithms[] = {Algorithm::flash, Algorithm::naive};

}  // namespace gradtile::attention::test
