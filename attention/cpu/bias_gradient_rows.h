#pragma once
/// INTERNAL. Adds one (batch, head)'s dS to its bias gradients. Kernel files for every instruction set
/// include this header, so all functions are always inlined (see GRADTILE_ATTENTION_INLINE).
#include <array>
#include <cstddef>
#include <cstdint>

#include <gradtile/attention/mask.h>
#include <gradtile/attention/score_rule.h>

namespace gradtile::attention::cpu {

/// The bias gradient rows to which one (batch, head) adds dS. The stride is 0 along an axis over which the
/// bias is broadcast, so that the gradient is a sum over this axis.
template <class A>
struct BiasGradientRows {
    A* data = nullptr;  ///< null: no gradient is requested
    std::int64_t row_stride = 0, column_stride = 0;

    /// Adds row i's dS in columns [first, first + n).
    GRADTILE_ATTENTION_INLINE void add(std::int64_t i, std::int64_t first, std::int64_t n,
                                       const A* d_s) const {
        A* const row = data + i * row_stride + first * column_stride;
        if (column_stride == 0) {
            A sum = 0;
            for (std::int64_t j = 0; j < n; ++j) sum += d_s[j];
            *row += sum;
        } else if (column_stride == 1) {
            for (std::int64_t j = 0; j < n; ++j) row[j] += d_s[j];
        } else {
            for (std::int64_t j = 0; j < n; ++j) row[j * column_stride] += d_s[j];
        }
    }
};
template <class A>
using BiasGradientsOfHead = std::array<BiasGradientRows<A>, max_biases>;

/// Adds the dS of one block, rows x keys, to the bias gradients. A bias that is broadcast over rows is summed
/// over the block first, so that a long sum loses no digits.
template <class A>
class BlockBiasGradients {
  public:
    /// `columns` is scratch memory [max_biases, keys]. If `gradients` is null, nothing is summed.
    GRADTILE_ATTENTION_INLINE BlockBiasGradients(const BiasGradientsOfHead<A>* gradients,
                                                 std::int64_t first_key, std::int64_t keys, A* columns)
        : gradients_(gradients), first_key_(first_key), keys_(keys), columns_(columns) {
        if (gradients_ == nullptr) return;
        for (std::int64_t j = 0; j < keys_ * static_cast<std::int64_t>(max_biases); ++j) columns_[j] = 0;
    }
    /// Prefetches the sums to which the pairs rows x keys will be added. prefetch_biases() gives the reason.
    GRADTILE_ATTENTION_INLINE void prefetch(IndexRange rows, IndexRange keys) const {
        if (gradients_ == nullptr) return;
        constexpr std::int64_t line = 64 / sizeof(A);
        for (std::size_t b = 0; b < max_biases; ++b) {
            const BiasGradientRows<A>& sums = (*gradients_)[b];
            if (sums.data == nullptr || sums.row_stride == 0 || sums.column_stride != 1) continue;
            for (std::int64_t i = rows.begin; i < rows.end; ++i)
                for (std::int64_t j = keys.begin; j < keys.end; j += line)
                    __builtin_prefetch(sums.data + i * sums.row_stride + j, 1, 2);
        }
    }
    /// Adds row i's dS. d_s holds the visible keys only; `visible` counts them from first_key.
    GRADTILE_ATTENTION_INLINE void add(std::int64_t i, IndexRange visible, const A* d_s) const {
        if (gradients_ == nullptr) return;
        const std::int64_t n = visible.end - visible.begin;
        for (std::size_t b = 0; b < max_biases; ++b) {
            const BiasGradientRows<A>& rows = (*gradients_)[b];
            if (rows.data == nullptr) continue;
            if (rows.row_stride == 0) {
                A* const columns = columns_of(b) + visible.begin;
                for (std::int64_t j = 0; j < n; ++j) columns[j] += d_s[j];
            } else {
                rows.add(i, first_key_ + visible.begin, n, d_s);
            }
        }
    }
    GRADTILE_ATTENTION_INLINE void finish() const {
        if (gradients_ == nullptr) return;
        for (std::size_t b = 0; b < max_biases; ++b) {
            const BiasGradientRows<A>& rows = (*gradients_)[b];
            if (rows.data != nullptr && rows.row_stride == 0) rows.add(0, first_key_, keys_, columns_of(b));
        }
    }

  private:
    GRADTILE_ATTENTION_INLINE A* columns_of(std::size_t bias) const {
        return columns_ + static_cast<std::int64_t>(bias) * keys_;
    }

    const BiasGradientsOfHead<A>* gradients_;
    std::int64_t first_key_, keys_;
    A* columns_;
};

}  // namespace gradtile::attention::cpu
