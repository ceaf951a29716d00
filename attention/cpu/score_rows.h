#pragma once
/// INTERNAL. The score rule on rows of neighbouring keys, in loops that the compiler vectorises.
#include <algorithm>

#include <gradtile/attention/score_rule.h>
#include <gradtile/core/cpu/vector_math.h>

namespace gradtile::attention::cpu {

/// Turns products of row i with the keys first_key .. first_key + n - 1 into scores.
template <class A>
void apply_rule(const ScoreRule<A>& rule, std::int64_t i, std::int64_t first_key, std::int64_t n, A* s) {
    if (rule.softcap != 0)
        for (std::int64_t j = 0; j < n; ++j) s[j] = rule.softcap * vector_math::tanh(s[j] / rule.softcap);
    if (rule.alibi_slope != 0)
        for (std::int64_t j = 0; j < n; ++j) s[j] += rule.alibi(i, first_key + j);
    for (const BiasRows& bias : rule.biases)
        if (bias.data != nullptr)
            visit_floating(bias.dtype, [&]<class T>(TypeTag<T>) {
                for (std::int64_t j = 0; j < n; ++j)
                    s[j] += convert<A>(bias.template element<T>(i, first_key + j));
            });
}

/// Computes the derivatives of n scores with respect to their products.
template <class A>
void score_derivatives(const ScoreRule<A>& rule, std::int64_t n, const A* products, A* derivatives) {
    std::fill_n(derivatives, n, A(1));
    if (rule.softcap == 0) return;
    for (std::int64_t j = 0; j < n; ++j) {
        const A t = vector_math::tanh(products[j] / rule.softcap);
        derivatives[j] = (1 - t) * (1 + t);
    }
}

/// Multiplies x of row i and the keys first_key .. first_key + n - 1 by the factors of dropout: 0, or the
/// scale of kept elements.
template <class A>
void apply_dropout(const ScoreRule<A>& rule, std::int64_t i, std::int64_t first_key, std::int64_t n, A* x) {
    if (rule.dropout_threshold == 0) return;
    constexpr std::int64_t draws = 16, columns_per_draw = 8, segment = draws * columns_per_draw;
    for (std::int64_t done = 0; done < n;) {
        const std::int64_t column = first_key + done, group = column / columns_per_draw;
        const std::int64_t skipped = column % columns_per_draw;
        const std::int64_t count = std::min(segment - skipped, n - done);
        std::uint32_t words[4 * draws];
        Philox::draw_many(
            words, draws,
            {static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(i), rule.head, rule.sample},
            rule.key);
        for (std::int64_t j = 0; j < count; ++j) {
            const std::int64_t bits_at = skipped + j;
            const std::uint32_t bits = words[bits_at / 2] >> 16 * (bits_at % 2) & 0xffffu;
            x[done + j] *= bits >= rule.dropout_threshold ? rule.dropout_scale : A(0);
        }
        done += count;
    }
}

}  // namespace gradtile::attention::cpu
