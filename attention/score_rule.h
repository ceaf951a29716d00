#pragma once
/// How a score follows from a query-key product, and which probabilities are dropped:
///
///     score(i, j) = softcap * tanh(product / softcap) - slope |i + offset - j| + biases(i, j)
///
/// with product = scale * q_i . k_j. All algorithms and kernels, on both devices, use the formula and its
/// derivative from this file. Kernels name no option: they call general functions, such as
/// ScoreFormula::changes_products().
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/mask.h>
#include <gradtile/core/host_device.h>

namespace gradtile::attention {

/// The limits of Options::softcap. Within them the softcap and its quotients with scores are normal numbers
/// in float32.
inline constexpr double min_softcap = 1e-20, max_softcap = 1e20;

/// The bias rows that one (batch, head) reads.
struct BiasRows {
    const std::byte* data = nullptr;  ///< address of element (0, 0); null if there is no bias
    DType dtype = DType::f32;
    std::int64_t row_stride = 0, column_stride = 0;  ///< in elements; 0 where the bias is broadcast

    template <class T>
    GRADTILE_HOST_DEVICE T element(std::int64_t i, std::int64_t j) const {
        return reinterpret_cast<const T*>(data)[i * row_stride + j * column_stride];
    }
};

/// A score, and its derivative with respect to the product.
template <class A>
struct Score {
    A value, derivative;
};

/// One head's score formula, without the biases: a function of the product, then terms that depend on the
/// distance i + offset - j. `Math` has the caller's tanh(x), quotient(x, y) and abs(x): precise or fast, and
/// on the CPU such that loops vectorise.
template <class A>
struct ScoreFormula {
    A softcap = 0;  ///< 0: none
    A alibi_slope = 0;

    /// Returns the formula for products and scores in other units: f becomes factor * f(product / factor).
    GRADTILE_ATTENTION_INLINE ScoreFormula in_units(A factor) const {
        return {.softcap = factor * softcap, .alibi_slope = factor * alibi_slope};
    }
    /// Returns 0 if transform_product() does not change its argument. Kernels then do not call
    /// transform_product(), and the derivative is 1.
    GRADTILE_ATTENTION_INLINE A change_of_products() const { return softcap; }
    GRADTILE_ATTENTION_INLINE bool changes_products() const { return change_of_products() != 0; }
    /// Must be called only if changes_products(). The derivative must not be negative, because the 16-bit GPU
    /// kernels use its sign bit to mark dropped elements.
    GRADTILE_CALLS_EITHER_DEVICE
    template <class Math>
    GRADTILE_ATTENTION_INLINE Score<A> transform_product(A product) const {
        const A t = Math::tanh(Math::quotient(product, softcap));
        return {softcap * t, (1 - t) * (1 + t)};
    }

    /// transform_product() in another form, for callers with fast exponentials: r = 1 / (1 + e), e =
    /// exp(product
    /// * exponent_rate()). r is all that remains of the product, so the value's error is absolute: some
    /// roundings of softcap, also where the value is small.
    template <class Math>
    GRADTILE_ATTENTION_INLINE A exponent_rate() const {
        return Math::quotient(A(2), softcap);
    }
    GRADTILE_CALLS_EITHER_DEVICE
    template <class Math>
    GRADTILE_ATTENTION_INLINE Score<A> transform_reciprocal(A r) const {
        return {softcap - 2 * softcap * r, r * Math::abs(4 - 4 * r)};
    }

    /// Whether add_distance_terms() changes a score. If it does not, kernels omit it.
    GRADTILE_ATTENTION_INLINE bool has_distance_terms() const { return alibi_slope != 0; }
    GRADTILE_CALLS_EITHER_DEVICE
    template <class Math, class Distance>
    GRADTILE_ATTENTION_INLINE A add_distance_terms(A score, Distance distance) const {
        return score - alibi_slope * static_cast<A>(Math::abs(distance));
    }
};

/// The score rule for one (batch, head), in the accumulator type.
template <class A>
struct ScoreRule {
    ScoreFormula<A> formula{};
    std::int64_t offset = 0;  ///< the mask's offset: i + offset is the key on row i's diagonal
    std::array<BiasRows, max_biases> biases{};
    A sink = -std::numeric_limits<A>::infinity();  ///< a logit without a key; -inf: no sink
    std::uint32_t dropout_threshold = 0;
    A dropout_scale = 1;  ///< the factor for elements that are kept
    std::uint32_t head = 0, sample = 0;
    Philox::Key key{};

    /// Whether any element may be dropped.
    GRADTILE_ATTENTION_INLINE bool drops() const { return dropout_threshold != 0; }
    /// How many neighbouring columns of a row share one Philox draw: column c uses 16 bits from draw c /
    /// columns_per_draw.
    static constexpr int columns_per_draw = 8;
    /// Returns the Philox counter for a draw of row i.
    GRADTILE_ATTENTION_INLINE Philox::Counter counter_of(std::int64_t i, std::int64_t draw) const {
        return {static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(i), head, sample};
    }
    /// Returns whether an element is kept. `words` is the draw for the element's columns, and c is the
    /// element's column modulo columns_per_draw.
    GRADTILE_ATTENTION_INLINE bool keeps(const Philox::Counter& words, int c) const {
        return (words[c / 2] >> 16 * (c % 2) & 0xffffu) >= dropout_threshold;
    }
};

/// One call's score options, from which rule_of() makes each head's rule.
struct ScoreOptions {
    /// A bias in memory. Its stride is 0 along axes where it is broadcast.
    struct Bias {
        const std::byte* data = nullptr;
        DType dtype = DType::f32;
        std::array<std::int64_t, 4> strides{};  ///< [batch, head, row, column], in elements
        std::int64_t batch_divisor = 1;
        /// Columns are positions in k. Otherwise rows and columns count from the sequence's start.
        bool has_packed_keys = false;

        /// `first_key` is the sequence's first key in k.
        GRADTILE_HOST_DEVICE BiasRows rows_of(std::int64_t batch, std::int64_t head,
                                              std::int64_t first_key = 0) const {
            if (data == nullptr) return {};
            std::int64_t first = batch / batch_divisor * strides[0] + head * strides[1];
            if (has_packed_keys) first += first_key * strides[3];
            return {data + first * static_cast<std::int64_t>(size_of(dtype)), dtype, strides[2], strides[3]};
        }
    };

    // set_summary() computes the first two fields from the others.
    bool plain = true;                ///< no option is set
    bool scores_are_products = true;  ///< no option but a sink is set: nothing is dropped either
    double softcap = 0;
    std::int64_t offset = 0;
    std::array<Bias, max_biases> biases{};
    const float* alibi_slopes = nullptr;
    const float* sink = nullptr;
    std::int64_t alibi_batch_stride = 0, alibi_stride = 0, sink_stride = 0;
    DropoutDraws dropout{};

    /// Whether ScoreFormula::changes_products() may be true for a head. Kernels have no fast float64, and a
    /// softcap is a normal number in float32, too.
    GRADTILE_HOST_DEVICE bool changes_products() const { return static_cast<float>(softcap) != 0; }
    /// Whether ScoreFormula::has_distance_terms() may be true for a head.
    GRADTILE_HOST_DEVICE bool has_distance_terms() const { return alibi_slopes != nullptr; }
    bool has_biases() const {
        return std::ranges::any_of(biases, [](const Bias& bias) { return bias.data != nullptr; });
    }
    GRADTILE_HOST_DEVICE bool drops() const { return dropout.threshold != 0; }
    /// Whether scores differ from products plus biases.
    bool has_formula() const { return changes_products() || has_distance_terms(); }
    void set_summary() {
        scores_are_products = !has_formula() && !has_biases() && !drops();
        plain = scores_are_products && sink == nullptr;
    }

    /// Returns one head's formula. The slopes, and rule_of()'s sink and seed, are in device memory, so on a
    /// GPU only kernels can call these functions.
    template <class A>
    GRADTILE_HOST_DEVICE ScoreFormula<A> formula_of(std::int64_t batch, std::int64_t head) const {
        ScoreFormula<A> formula{.softcap = static_cast<A>(softcap)};
        if (alibi_slopes != nullptr)
            formula.alibi_slope =
                static_cast<A>(alibi_slopes[batch * alibi_batch_stride + head * alibi_stride]);
        return formula;
    }
    /// Returns one head's rule. For packed sequences, `batch` is the sequence's number, and `first_key` is
    /// its first key in k.
    template <class A>
    GRADTILE_HOST_DEVICE ScoreRule<A> rule_of(std::int64_t batch, std::int64_t head,
                                              std::int64_t first_key = 0) const {
        ScoreRule<A> rule;
        rule.formula = formula_of<A>(batch, head);
        rule.offset = offset;
        for (std::size_t n = 0; n < max_biases; ++n)
            rule.biases[n] = biases[n].rows_of(batch, head, first_key);
        if (sink != nullptr) rule.sink = static_cast<A>(sink[head * sink_stride]);
        rule.dropout_threshold = dropout.threshold;
        rule.dropout_scale = static_cast<A>(dropout.scale);
        rule.head = static_cast<std::uint32_t>(head);
        rule.sample = static_cast<std::uint32_t>(dropout.first_sample + batch);
        if (dropout.threshold != 0) rule.key = dropout.key();
        return rule;
    }
};

}  // namespace gradtile::attention
