#pragma once
/// INTERNAL. Applies the score rule to neighbouring pairs (row, key), in loops that the compiler vectorises.
/// Kernel files for every instruction set include this header, so all functions are always inlined (see
/// GRADTILE_ATTENTION_INLINE).
#include <gradtile/attention/score_rule.h>
#include <gradtile/core/cpu/vector_math.h>

namespace gradtile::attention::cpu {

/// The functions that ScoreFormula calls, in forms that the compiler vectorises.
struct VectorMath {
    template <class A>
    GRADTILE_ATTENTION_INLINE static A tanh(A x) {
        return vector_math::tanh(x);
    }
    template <class A>
    GRADTILE_ATTENTION_INLINE static A quotient(A x, A y) {
        return x / y;
    }
    GRADTILE_ATTENTION_INLINE static double abs(double x) { return std::fabs(x); }
};

/// Applies the formula's transform_product() to n products, in place.
template <class A>
GRADTILE_ATTENTION_INLINE void apply_to_products(const ScoreFormula<A> formula, std::int64_t n, A* s) {
    for (std::int64_t j = 0; j < n; ++j) s[j] = formula.template transform_product<VectorMath>(s[j]).value;
}
/// Like the function above, but also computes the derivatives.
template <class A>
GRADTILE_ATTENTION_INLINE void apply_to_products(const ScoreFormula<A> formula, std::int64_t n, A* s,
                                                 A* derivatives) {
    for (std::int64_t j = 0; j < n; ++j) {
        const Score<A> score = formula.template transform_product<VectorMath>(s[j]);
        s[j] = score.value;
        derivatives[j] = score.derivative;
    }
}

/// Adds the formula's terms to n scores. The distances from the diagonal are `distance`, distance + step, and
/// so on; they may be negative. Distances are float64 instead of int64, because compilers vectorise the
/// conversion from float64 to A. Float64 represents every distance exactly.
template <class A>
GRADTILE_ATTENTION_INLINE void add_distance_terms(const ScoreFormula<A> formula, std::int64_t distance,
                                                  int step, std::int64_t n, A* s) {
    constexpr std::int64_t chunk = 1 << 20;  // so that the inner loop's counter fits 32 bits
    for (std::int64_t done = 0; done < n; done += chunk) {
        const auto first = static_cast<double>(distance + step * done);
        const int count = static_cast<int>(n - done < chunk ? n - done : chunk);
        for (int j = 0; j < count; ++j)
            s[done + j] = formula.template add_distance_terms<VectorMath>(
                s[done + j], first + static_cast<double>(step * j));
    }
}

/// Adds a bias with element type T to n scores of row i.
template <class T, class A>
GRADTILE_ATTENTION_INLINE void add_bias_elements(const BiasRows& bias, std::int64_t i, std::int64_t first_key,
                                                 std::int64_t n, A* s) {
    const T* const row =
        reinterpret_cast<const T*>(bias.data) + i * bias.row_stride + first_key * bias.column_stride;
    if (bias.column_stride == 1) {
        for (std::int64_t j = 0; j < n; ++j) s[j] += convert<A>(row[j]);
    } else {
        for (std::int64_t j = 0; j < n; ++j) s[j] += convert<A>(row[j * bias.column_stride]);
    }
}

/// Turns row i's products with keys first_key .. first_key + n - 1 into scores, in place. T is q's dtype.
/// Unless `derivatives` is null, also computes d score / d product.
template <class T, class A>
GRADTILE_ATTENTION_INLINE void apply_rule(const ScoreRule<A>& rule, std::int64_t i, std::int64_t first_key,
                                          std::int64_t n, A* s, A* derivatives = nullptr) {
    if (!rule.formula.changes_products()) {
        if (derivatives != nullptr)
            for (std::int64_t j = 0; j < n; ++j) derivatives[j] = 1;
    } else if (derivatives == nullptr) {
        apply_to_products(rule.formula, n, s);
    } else {
        apply_to_products(rule.formula, n, s, derivatives);
    }
    if (rule.formula.has_distance_terms())
        add_distance_terms(rule.formula, i + rule.offset - first_key, -1, n, s);
    for (const BiasRows& bias : rule.biases) {
        if (bias.data == nullptr) continue;
        // A bias is float32 or has q's dtype.
        if (bias.dtype == dtype_of<T>) {
            add_bias_elements<T>(bias, i, first_key, n, s);
        } else {
            add_bias_elements<float>(bias, i, first_key, n, s);
        }
    }
}

/// Prefetches the biases for the pairs rows x keys. A bias's rows are far apart in memory, so hardware
/// prefetchers do not predict the accesses. A matrix product between the prefetch and the use hides the
/// latency. The prefetch loads into L2 but not into L1, because rows whose distance is a power of 2 would
/// evict each other from L1.
template <class T, class A>
GRADTILE_ATTENTION_INLINE void prefetch_biases(const ScoreRule<A>& rule, IndexRange rows, IndexRange keys) {
    for (const BiasRows& bias : rule.biases) {
        if (bias.data == nullptr || bias.row_stride == 0 || bias.column_stride != 1) continue;
        const std::int64_t bytes = bias.dtype == dtype_of<T> ? sizeof(T) : sizeof(float), line = 64;
        for (std::int64_t i = rows.begin; i < rows.end; ++i)
            for (std::int64_t offset = keys.begin * bytes; offset < keys.end * bytes; offset += line)
                __builtin_prefetch(bias.data + i * bias.row_stride * bytes + offset, 0, 2);
    }
}

/// Multiplies row i's elements x for keys first_key .. first_key + n - 1 by their dropout factors. A factor
/// is 0 or, for an element that is kept, dropout's scale.
template <class A>
GRADTILE_ATTENTION_INLINE void apply_dropout(const ScoreRule<A>& rule, std::int64_t i, std::int64_t first_key,
                                             std::int64_t n, A* x) {
    if (!rule.drops()) return;
    constexpr std::int64_t columns_per_draw = ScoreRule<A>::columns_per_draw, draws = 8,
                           segment = draws * columns_per_draw;
    const int threshold = static_cast<int>(rule.dropout_threshold);
    const A scale = rule.dropout_scale;
    for (std::int64_t done = 0; done < n;) {
        const std::int64_t column = first_key + done, skipped = column % columns_per_draw;
        const std::int64_t count = segment - skipped < n - done ? segment - skipped : n - done;
        std::uint32_t words[4 * draws];
        Philox::draw_many(words, draws, rule.counter_of(i, column / columns_per_draw), rule.key);
        std::uint16_t bits[segment];  // on a little-endian machine, bits[c] belongs to column c
        static_assert(sizeof bits == sizeof words && std::endian::native == std::endian::little);
        __builtin_memcpy(bits, words, sizeof bits);
        for (std::int64_t j = 0; j < count; ++j) x[done + j] *= bits[skipped + j] >= threshold ? scale : A(0);
        done += count;
    }
}

/// Computes the dropout factors for row i and the keys first_key .. first_key + n - 1. Without dropout all
/// factors are 1.
template <class A>
GRADTILE_ATTENTION_INLINE void dropout_factors(const ScoreRule<A>& rule, std::int64_t i,
                                               std::int64_t first_key, std::int64_t n, A* factors) {
    for (std::int64_t j = 0; j < n; ++j) factors[j] = 1;
    apply_dropout(rule, i, first_key, n, factors);
}

/// Scratch memory for one backward row with a score rule. Each array has one element per key.
template <class A>
struct RuleScratch {
    A *d_score, *derivatives, *factors;
};

/// One row's numbers for the backward pass: P = exp((S - lse) - lse_remainder), dS = P (dP - delta).
template <class A>
struct BackwardRow {
    A lse, lse_remainder, delta;
};

/// Computes one backward row with a score rule, for n keys from first_key on. Before the call p holds the
/// products, d_s holds dO V^T, and scratch.factors holds the dropout factors. After the call p holds the
/// probabilities that multiply V, scratch.d_score holds dS, and d_s holds the gradient of the products.
template <class T, class A>
GRADTILE_ATTENTION_INLINE void differentiate(const ScoreRule<A>& rule, std::int64_t i, std::int64_t first_key,
                                             std::int64_t n, BackwardRow<A> row, A* p, A* d_s,
                                             const RuleScratch<A>& scratch) {
    apply_rule<T>(rule, i, first_key, n, p, scratch.derivatives);
    for (std::int64_t j = 0; j < n; ++j) {
        const A probability = vector_math::exp((p[j] - row.lse) - row.lse_remainder),
                factor = scratch.factors[j];
        p[j] = factor * probability;
        scratch.d_score[j] = probability * (factor * d_s[j] - row.delta);
        d_s[j] = scratch.d_score[j] * scratch.derivatives[j];
    }
}

}  // namespace gradtile::attention::cpu
