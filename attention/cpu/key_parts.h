#pragma once
/// INTERNAL. For calls with few queries and many keys: the keys are divided among tasks, so that several
/// threads compute one head's rows. Each task computes O and the row's softmax over its keys, and
/// merge_key_parts() combines them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gradtile/attention/cpu/sequences.h>
#include <gradtile/attention/internal/key_splits.h>
#include <gradtile/attention/internal/strided_rows.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {

/// How the keys that are visible to at least one row are divided into parts. The parts have equal lengths,
/// but the last part may be shorter.
struct KeyParts {
    std::int64_t begin = 0, end = 0;
    std::int64_t length = 0;
    std::int64_t count = 1;

    bool divided() const { return count > 1; }
    IndexRange part(std::int64_t i) const {
        return {begin + i * length, std::min(begin + (i + 1) * length, end)};
    }
};

/// A call's keys are divided only up to this many queries. With more queries there are enough row blocks for
/// all threads.
inline constexpr std::int64_t max_queries_of_divided_keys = 64;
/// Keys are divided for this many threads. The number is a constant, because results must not depend on the
/// actual thread count. Most machines have fewer cores; their threads compute several parts each.
inline constexpr std::int64_t threads_of_divided_keys = 64;
/// Parts begin at multiples of this many keys: a multiple of 256, because the kernels' key blocks begin
/// there, too. With more than 8 queries the parts are longer, because a task then has more work before its
/// first key.
inline std::int64_t keys_of_part_multiple(std::int64_t queries) {
    return queries <= 8 ? 256 : 512;
}

/// Divides a call's keys, or leaves them whole. `tasks` is how many row blocks all heads have together. The
/// division depends on the shape and the mask only.
inline KeyParts divide_keys(const Mask& mask, std::int64_t tasks) {
    if (tasks == 0 || mask.queries > max_queries_of_divided_keys) return {};
    const IndexRange visible = mask.visible_keys({0, mask.queries});
    const std::int64_t multiple = keys_of_part_multiple(mask.queries);
    const std::int64_t begin = visible.begin / multiple * multiple;
    const KeyParts single_part{.begin = begin, .end = visible.end, .length = visible.end - begin};
    if (visible.end - visible.begin < min_keys_to_split) return single_part;
    const SplittableWork work{.key_blocks = ceil_div(visible.end - begin, multiple),
                              .tasks_per_split = tasks,
                              .concurrent_tasks = threads_of_divided_keys,
                              .start_up = 1};
    // More tasks save no time.
    const std::int64_t max_tasks = 4 * threads_of_divided_keys;
    const KeySplits splits =
        work.fewest_splits(std::clamp<std::int64_t>(max_tasks / tasks, 1, work.key_blocks));
    return {.begin = begin,
            .end = visible.end,
            .length = splits.blocks_per_split * multiple,
            .count = splits.count};
}

/// The parts' results. O is not yet rounded to the operator's dtype, and the softmax is float64, so that the
/// merge adds no rounding error.
template <class A>
class PartResults {
  public:
    PartResults(const Context& ctx, std::int64_t parts, const Tensor& q, std::int64_t d_v)
        : o_(empty(ctx, {parts, q.size(0), q.size(2), q.size(1), d_v}, dtype_of<A>)),
          softmax_(empty(ctx, {parts, q.size(0), q.size(2), q.size(1), 2}, DType::f64)) {}
    StridedRows<A> o(std::int64_t part, std::int64_t batch, std::int64_t head) const {
        return {o_.data<A>() + part * o_.stride(0) + batch * o_.stride(1) + head * o_.stride(2),
                o_.stride(3)};
    }
    RowSoftmax* softmax(std::int64_t part, std::int64_t batch, std::int64_t head) const {
        static_assert(sizeof(RowSoftmax) == 2 * sizeof(double));
        return reinterpret_cast<RowSoftmax*>(softmax_.data<double>() + part * softmax_.stride(0) +
                                             batch * softmax_.stride(1) + head * softmax_.stride(2));
    }

  private:
    Tensor o_;        // [parts, B, Hq, Sq, Dv]
    Tensor softmax_;  // [parts, B, Hq, Sq, 2]
};

/// Combines one row's parts: O = sum_p w_p O_p with w_p = exp(m_p - m) l_p / l, where m is the largest m_p
/// and l = sum_p exp(m_p - m) l_p. Only this merge adds the sink, because a row has one sink but several
/// parts.
template <class A>
class RowMerge {
  public:
    RowMerge(const KeyParts& parts, std::int64_t d_v, double sink)
        : parts_(parts.count), sums_(static_cast<std::size_t>(d_v)), sink_(sink) {}

    /// Returns the row's softmax over all keys, and stores the row's O, which o() returns.
    RowSoftmax merge(const PartResults<A>& results, std::int64_t batch, std::int64_t head, std::int64_t row) {
        RowSoftmax all{sink_, 0};
        for (std::int64_t p = 0; p < parts_; ++p)
            all.maximum = std::max(all.maximum, results.softmax(p, batch, head)[row].maximum);
        // A part whose keys are all hidden has the maximum -inf. If all parts have it, any finite reference
        // gives weight 0.
        const double reference = all.maximum == -std::numeric_limits<double>::infinity() ? 0.0 : all.maximum;
        all.sum = std::exp(sink_ - reference);
        std::ranges::fill(sums_, 0.0);
        for (std::int64_t p = 0; p < parts_; ++p) {
            const RowSoftmax& part = results.softmax(p, batch, head)[row];
            // A NaN is always in the sum, but may be lost in the maximum.
            const double weight = part.sum * std::exp(part.maximum - reference);
            all.sum += weight;
            const A* const o = results.o(p, batch, head).row(row);
            for (std::size_t c = 0; c < sums_.size(); ++c) sums_[c] += weight * static_cast<double>(o[c]);
        }
        for (double& sum : sums_) sum = all.sum == 0 ? 0.0 : sum / all.sum;
        return all;
    }
    const std::vector<double>& o() const { return sums_; }

  private:
    std::int64_t parts_;
    std::vector<double> sums_;
    double sink_;
};

/// Merges all rows' parts. Writes o [B, Sq, Hq, Dv] and the LSE in `saved`.
template <class T>
void merge_key_parts(const Context& ctx, const KeyParts& parts, const PartResults<Accumulator<T>>& results,
                     const ScoreOptions& scores, const Saved& saved, const Tensor& o) {
    using A = Accumulator<T>;
    const std::int64_t queries = o.size(1), heads = o.size(2), d_v = o.size(3);
    parallel_for(ctx, o.size(0) * heads, [&](std::int64_t task) {
        const std::int64_t b = task / heads, h = task % heads;
        RowMerge<A> merge(parts, d_v, scores.rule_of<double>(b, h).sink);
        for (std::int64_t i = 0; i < queries; ++i) {
            const RowSoftmax softmax = merge.merge(results, b, h, i);
            row_lse_of<A>(saved, b, h).store(i, 1, 1.0, &softmax.maximum, &softmax.sum);
            T* const row = o.data<T>() + b * o.stride(0) + i * o.stride(1) + h * o.stride(2);
            for (std::int64_t c = 0; c < d_v; ++c)
                row[c] = convert<T>(static_cast<A>(merge.o()[static_cast<std::size_t>(c)]));
        }
    });
}

}  // namespace gradtile::attention::cpu
