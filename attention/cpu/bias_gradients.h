#pragma once
/// INTERNAL. Bias gradients on the CPU: dS summed over the axes along which a bias is broadcast.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gradtile/attention/cpu/bias_gradient_rows.h>
#include <gradtile/attention/cpu/kernels.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {

/// The sums for all requested bias gradients. Heads, batches or key blocks that add to the same sums must run
/// one after the other in one task; Groups lists them.
template <class A>
class BiasGradients {
  public:
    BiasGradients(const Context& ctx, const ScoreOptions& scores, const Gradients& into) {
        for (std::size_t n = 0; n < max_biases; ++n) {
            if (!into.biases[n].defined()) continue;
            Bias& bias = biases_[n];
            bias.into = into.biases[n];
            bias.batch_divisor = scores.biases[n].batch_divisor;
            bias.has_packed_keys = scores.biases[n].has_packed_keys;
            for (int axis = 0; axis < 4; ++axis)
                if (bias.into.stride(axis) == 0 && bias.into.size(axis) > 1)
                    bias.into = bias.into.slice(axis, 0, 1);
            bias.sums =
                bias.into.dtype() == dtype_of<A> ? bias.into : empty(ctx, bias.into.shape(), dtype_of<A>);
        }
    }

    /// How many consecutive batches, heads and key blocks one task must process by itself.
    struct Groups {
        std::int64_t batches = 1, heads = 1, key_blocks = 1;
    };
    Groups groups(std::int64_t batches, std::int64_t heads, std::int64_t key_blocks) const {
        Groups groups;
        for (const Bias& bias : biases_) {
            if (!bias.sums.defined()) continue;
            groups.batches = std::max(groups.batches, bias.sums.size(0) == 1 ? batches : bias.batch_divisor);
            // An axis of length 0 also is one group.
            if (bias.sums.size(1) == 1) groups.heads = std::max<std::int64_t>(1, heads);
            if (bias.sums.size(3) == 1) groups.key_blocks = std::max<std::int64_t>(1, key_blocks);
        }
        return groups;
    }

    /// The same for packed sequences, of which a group has one or all: consecutive ones have any numbers.
    Groups packed_groups(std::int64_t sequences, std::int64_t heads, std::int64_t key_blocks) const {
        Groups packed = groups(sequences, heads, key_blocks);
        packed.batches = 1;
        for (const Bias& bias : biases_) {
            if (!bias.sums.defined()) continue;
            const bool has_own_sums = bias.has_packed_keys
                                          ? bias.sums.size(3) != 1
                                          : bias.sums.size(0) != 1 && bias.batch_divisor == 1;
            if (!has_own_sums) packed.batches = std::max<std::int64_t>(1, sequences);
        }
        return packed;
    }

    bool any() const {
        return std::ranges::any_of(biases_, [](const Bias& bias) { return bias.sums.defined(); });
    }
    void clear(const Context& ctx) const {
        for (const Bias& bias : biases_)
            if (bias.sums.defined()) fill(ctx, bias.sums, 0.0);
    }
    /// `first_key` is a packed sequence's first key in k.
    BiasGradientsOfHead<A> for_head(std::int64_t batch, std::int64_t head, std::int64_t first_key = 0) const {
        BiasGradientsOfHead<A> rows{};
        for (std::size_t n = 0; n < max_biases; ++n) {
            const Tensor& sums = biases_[n].sums;
            if (!sums.defined()) continue;
            const auto stride = [&](int axis) { return sums.size(axis) == 1 ? 0 : sums.stride(axis); };
            std::int64_t first = batch / biases_[n].batch_divisor * stride(0) + head * stride(1);
            if (biases_[n].has_packed_keys) first += first_key * stride(3);
            rows[n] = {sums.template data<A>() + first, stride(2), stride(3)};
        }
        return rows;
    }
    /// Rounds the sums to the gradients' dtypes. If sums and gradient have the same dtype, the sums are
    /// already in the gradient's memory.
    void store(const Context& ctx) const {
        for (const Bias& bias : biases_)
            if (bias.sums.defined() && bias.into.dtype() != dtype_of<A>) copy(ctx, bias.into, bias.sums);
    }

  private:
    struct Bias {
        Tensor into = {}, sums = {};
        std::int64_t batch_divisor = 1;
        bool has_packed_keys = false;
    };
    std::array<Bias, max_biases> biases_;
};

/// Adds what `rows` rows contribute to the sink's gradient: -exp(sink - LSE) D per row, with D = rowsum(dO O)
/// - dLSE. With a sink, no row has LSE = -inf.
template <class A>
void add_sink_gradient(double sink, std::int64_t rows, const RowLse<const A>& lse, const A* delta,
                       double& sum) {
    if (sink == -std::numeric_limits<double>::infinity()) return;
    for (std::int64_t i = 0; i < rows; ++i) {
        const double remainder = lse.remainder == nullptr ? 0 : static_cast<double>(lse.remainder[i]);
        sum -= std::exp((sink - static_cast<double>(lse.lse[i])) - remainder) * static_cast<double>(delta[i]);
    }
}

}  // namespace gradtile::attention::cpu
