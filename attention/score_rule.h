#pragma once
/// How a score follows from the product of a query and a key, and which probabilities are dropped:
///
///     score(i, j) = softcap * tanh(product / softcap) - slope |i + offset - j| + biases(i, j)
///
/// with product = scale * q_i . k_j. One struct serves every algorithm, as Mask does for the visible keys.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/mask.h>

namespace gradtile::attention {

// As GRADTILE_ATTENTION_INLINE; for the host alone.
#define GRADTILE_SCORE_INLINE [[gnu::always_inline]] inline

/// One bias as one (batch, head) reads it.
struct BiasRows {
    const std::byte* data = nullptr;  ///< element (0, 0); null: no bias
    DType dtype = DType::f32;
    std::int64_t row_stride = 0, column_stride = 0;  ///< in elements; 0 where the bias is broadcast

    template <class A>
    GRADTILE_SCORE_INLINE A at(std::int64_t i, std::int64_t j) const {
        const std::int64_t place = i * row_stride + j * column_stride;
        switch (dtype) {
            case DType::f64:
                return static_cast<A>(reinterpret_cast<const double*>(data)[place]);
            case DType::f32:
                return static_cast<A>(reinterpret_cast<const float*>(data)[place]);
            case DType::bf16:
                return static_cast<A>(static_cast<float>(reinterpret_cast<const bfloat16*>(data)[place]));
            case DType::f16:
                return static_cast<A>(static_cast<float>(reinterpret_cast<const float16*>(data)[place]));
            case DType::i32:
                break;
        }
        return A(0);
    }
};

/// The rule of one (batch, head), in the accumulator's type.
template <class A>
struct ScoreRule {
    A softcap = 0;  ///< 0: none
    A alibi_slope = 0;
    std::int64_t offset = 0;  ///< of ALiBi's diagonal: the mask's
    std::array<BiasRows, max_biases> biases{};
    A sink = -std::numeric_limits<A>::infinity();  ///< a logit without key; -inf: none
    // Dropout's counter and key, see DropoutDraws.
    std::uint32_t dropout_threshold = 0;
    A dropout_scale = 1;
    std::uint32_t head = 0, sample = 0;
    Philox::Key key{};

    GRADTILE_SCORE_INLINE A score(A product, std::int64_t i, std::int64_t j) const {
        A s = softcap == 0 ? product : softcap * std::tanh(product / softcap);
        if (alibi_slope != 0) {
            const std::int64_t distance = i + offset - j;
            s -= alibi_slope * static_cast<A>(distance < 0 ? -distance : distance);
        }
        for (const BiasRows& bias : biases)
            if (bias.data != nullptr) s += bias.at<A>(i, j);
        return s;
    }
    /// d score / d product.
    GRADTILE_SCORE_INLINE A derivative(A product) const {
        if (softcap == 0) return A(1);
        const A t = std::tanh(product / softcap);
        return (1 - t) * (1 + t);
    }
};

/// The factors of dropout in one row: 0, or the scale that keeps the mean. Eight neighbouring columns share
/// one draw, counter {column / 8, row, head, sample}; column c takes 16 bits of it, u = (words[c % 8 / 2] >>
/// 16 * (c % 2)) & 0xffff, and is kept when u >= threshold.
template <class A>
class DropoutRow {
  public:
    GRADTILE_SCORE_INLINE DropoutRow(const ScoreRule<A>& rule, std::int64_t row)
        : rule_(rule), row_(static_cast<std::uint32_t>(row)) {}

    GRADTILE_SCORE_INLINE A factor(std::int64_t column) {
        if (rule_.dropout_threshold == 0) return A(1);
        const auto c = static_cast<std::uint32_t>(column);
        if (c / 8 != group_) {
            group_ = c / 8;
            const Philox::Counter counter{group_, row_, rule_.head, rule_.sample};
            words_ = Philox::draw(counter, rule_.key);
        }
        const std::uint32_t bits = words_[c % 8 / 2] >> 16 * (c % 2) & 0xffffu;
        return bits >= rule_.dropout_threshold ? rule_.dropout_scale : A(0);
    }

  private:
    const ScoreRule<A>& rule_;
    std::uint32_t row_;
    std::uint32_t group_ = 0xffffffffu;  // none: columns are below 2^32
    Philox::Counter words_{};
};

/// The options behind the rules of all heads of one call, resolved against its shapes.
struct ScoreOptions {
    /// A bias in memory; strides of 0 where it is broadcast.
    struct Bias {
        const std::byte* data = nullptr;
        DType dtype = DType::f32;
        std::array<std::int64_t, 4> strides{};  ///< [batch, head, row, column], in elements
        std::int64_t batch_divisor = 1;
    };

    /// No option is set: score = product.
    bool plain = true;
    double softcap = 0;
    std::int64_t offset = 0;
    std::array<Bias, max_biases> biases{};
    const float* alibi_slopes = nullptr;
    const float* sink = nullptr;
    std::int64_t alibi_stride = 0, sink_stride = 0;
    DropoutDraws dropout{};

    template <class A>
    ScoreRule<A> rule_of(std::int64_t batch, std::int64_t head) const {
        ScoreRule<A> rule;
        rule.softcap = static_cast<A>(softcap);
        if (alibi_slopes != nullptr) rule.alibi_slope = static_cast<A>(alibi_slopes[head * alibi_stride]);
        rule.offset = offset;
        for (std::size_t n = 0; n < max_biases; ++n) {
            const Bias& bias = biases[n];
            if (bias.data == nullptr) continue;
            const std::int64_t first = batch / bias.batch_divisor * bias.strides[0] + head * bias.strides[1];
            rule.biases[n] = {bias.data + first * static_cast<std::int64_t>(size_of(bias.dtype)), bias.dtype,
                              bias.strides[2], bias.strides[3]};
        }
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
