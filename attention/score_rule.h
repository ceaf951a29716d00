#pragma once
/// How a score follows from the product of a query and a key, and which probabilities are dropped:
///
///     score(i, j) = softcap * tanh(product / softcap) - slope |i + offset - j| + biases(i, j)
///
/// with product = scale * q_i . k_j. Every algorithm takes these numbers from ScoreRule, as it takes the
/// visible keys from Mask.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/mask.h>
#include <gradtile/core/host_device.h>

namespace gradtile::attention {

/// The part of a bias that one (batch, head) reads.
struct BiasRows {
    const std::byte* data = nullptr;  ///< address of element (0, 0); null if there is no bias
    DType dtype = DType::f32;
    std::int64_t row_stride = 0, column_stride = 0;  ///< in elements; 0 where the bias is broadcast

    template <class T>
    GRADTILE_HOST_DEVICE T element(std::int64_t i, std::int64_t j) const {
        return reinterpret_cast<const T*>(data)[i * row_stride + j * column_stride];
    }
};

/// The rule of one (batch, head), in the accumulator's type.
template <class A>
struct ScoreRule {
    A softcap = 0;  ///< 0: none
    A alibi_slope = 0;
    std::int64_t offset = 0;  ///< the mask's offset, which places ALiBi's diagonal
    std::array<BiasRows, max_biases> biases{};
    A sink = -std::numeric_limits<A>::infinity();  ///< a logit without a key; -inf: no sink
    /// Dropout: eight neighbouring columns share one Philox draw, with the counter {column / 8, row, head,
    /// sample}. Column c uses 16 bits of it, u = (words[c % 8 / 2] >> 16 * (c % 2)) & 0xffff, and is kept if
    /// u >= threshold.
    std::uint32_t dropout_threshold = 0;
    A dropout_scale = 1;
    std::uint32_t head = 0, sample = 0;
    Philox::Key key{};

    /// Returns ALiBi's term of a score.
    GRADTILE_HOST_DEVICE A alibi(std::int64_t i, std::int64_t j) const {
        const std::int64_t distance = i + offset - j;
        return -alibi_slope * static_cast<A>(distance < 0 ? -distance : distance);
    }
};

/// The options of one call, from which rule_of() makes the rule of each head.
struct ScoreOptions {
    /// A bias in memory. Its stride is 0 along axes where it is broadcast.
    struct Bias {
        const std::byte* data = nullptr;
        DType dtype = DType::f32;
        std::array<std::int64_t, 4> strides{};  ///< [batch, head, row, column], in elements
        std::int64_t batch_divisor = 1;

        GRADTILE_HOST_DEVICE BiasRows rows_of(std::int64_t batch, std::int64_t head) const {
            if (data == nullptr) return {};
            const std::int64_t first = batch / batch_divisor * strides[0] + head * strides[1];
            return {data + first * static_cast<std::int64_t>(size_of(dtype)), dtype, strides[2], strides[3]};
        }
    };

    /// No option is set.
    bool plain = true;
    /// No option but a sink is set: scores are products, and nothing is dropped.
    bool scores_are_products = true;
    double softcap = 0;
    std::int64_t offset = 0;
    std::array<Bias, max_biases> biases{};
    const float* alibi_slopes = nullptr;
    const float* sink = nullptr;
    std::int64_t alibi_stride = 0, sink_stride = 0;
    DropoutDraws dropout{};

    /// On a GPU it reads the slopes, the sink and the seed, so kernels must call it while they run.
    template <class A>
    GRADTILE_HOST_DEVICE ScoreRule<A> rule_of(std::int64_t batch, std::int64_t head) const {
        ScoreRule<A> rule;
        rule.softcap = static_cast<A>(softcap);
        if (alibi_slopes != nullptr) rule.alibi_slope = static_cast<A>(alibi_slopes[head * alibi_stride]);
        rule.offset = offset;
        for (std::size_t n = 0; n < max_biases; ++n) rule.biases[n] = biases[n].rows_of(batch, head);
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
