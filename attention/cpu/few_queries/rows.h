#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. Few query rows against one key part of
/// a K/V head. The vector lanes hold K and V columns, so that a task with few rows reads K and V at the
/// memory's speed; the kernels for many queries hold queries in the lanes, and copy K and V first. All
/// elements are converted to float32.
#include <numbers>

#include <gradtile/attention/cpu/index_math.h>
#include <gradtile/attention/cpu/kernels.h>
#include <gradtile/attention/cpu/score_rows.h>

namespace gradtile::attention::cpu {
namespace {

/// The keys between two softmax updates.
constexpr std::int64_t few_queries_block = 64;

template <class V>
std::int64_t padded_columns(std::int64_t d) {
    return round_up(d, V::lanes);
}

/// Prefetches one K or V row into the L2 cache. More cache lines can be in flight to L2 than to L1.
template <class T>
[[gnu::always_inline]] inline void prefetch_row(const T* row, std::int64_t columns) {
    constexpr std::int64_t elements_per_line = 64 / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t d = 0; d < columns; d += elements_per_line) __builtin_prefetch(row + d, 0, 2);
}

template <class V>
struct FewQueriesScratch {
    float* q;                          ///< [rows, padded Dqk]
    float* o;                          ///< [rows, padded Dv], not yet divided by the sum
    float* p;                          ///< [rows, block]: products, then scores, then P
    float* factor;                     ///< [rows]: 2^(unit * (previous maximum - maximum))
    float *maximum, *sum, *sum_error;  ///< [rows]
    float *k, *v;                      ///< [block, padded columns]: copies in float32
    std::size_t bytes;

    FewQueriesScratch(const Geometry& g, std::int64_t rows, std::byte* base) {
        std::int64_t used = 0;
        const auto take = [&](std::int64_t count) {
            float* const taken = base == nullptr ? nullptr : reinterpret_cast<float*>(base) + used;
            used += round_up(count, 16);
            return taken;
        };
        q = take(rows * padded_columns<V>(g.d_qk));
        o = take(rows * padded_columns<V>(g.d_v));
        p = take(rows * few_queries_block);
        factor = take(rows);
        maximum = take(rows);
        sum = take(rows);
        sum_error = take(rows);
        k = take(few_queries_block * padded_columns<V>(g.d_qk));
        v = take(few_queries_block * padded_columns<V>(g.d_v));
        bytes = static_cast<std::size_t>(used) * sizeof(float);
    }
};

template <class V, class T>
class FewQueriesBlock {
    using Vector = typename V::Vector;
    static constexpr std::int64_t lanes = V::lanes;
    static constexpr float infinity = __builtin_inff();

  public:
    FewQueriesBlock(const FewQueriesTask<T>& task, std::byte* memory)
        : task_(task),
          g_(*task.geometry),
          queries_(g_.mask.queries),
          rows_(task.heads * queries_),
          scratch_(g_, rows_, memory),
          scale_(static_cast<float>(g_.scale < 0 ? -g_.scale : g_.scale)),
          unit_(task.rules != nullptr || g_.scale == 0 ? std::numbers::log2e_v<float> : g_.scale_log2()) {}

    void run() {
        // The running maximum needs a positive scale. For a negative scale Q is negated instead. For scale 0,
        // which gives all visible keys the same weight, Q becomes 0.
        load_queries(g_.scale > 0 ? 1.0f : g_.scale < 0 ? -1.0f : 0.0f);
        start();
        const IndexRange visible = intersection(g_.mask.visible_keys({0, queries_}), task_.part);
        for (std::int64_t begin = visible.begin; begin < visible.end; begin += few_queries_block) {
            const IndexRange keys{begin, smaller(begin + few_queries_block, visible.end)};
            if (is_hidden(keys)) continue;
            // Several row groups read K and V from the copies, which are converted once.
            if (rows_ > rows_together) {
                copy_rows(task_.k, keys, visible.end, g_.d_qk, scratch_.k);
                copy_rows(task_.v, keys, visible.end, g_.d_v, scratch_.v);
                process(keys, StridedRows<const float>{scratch_.k, padded_columns<V>(g_.d_qk)},
                        StridedRows<const float>{scratch_.v, padded_columns<V>(g_.d_v)},
                        keys.end - keys.begin);
            } else {
                process(keys, StridedRows<const T>{task_.k.row(keys.begin), task_.k.stride},
                        StridedRows<const T>{task_.v.row(keys.begin), task_.v.stride},
                        visible.end - keys.begin);
            }
        }
        finish();
    }

    /// See FewQueriesKernels::multiply.
    void multiply(const StridedRows<float>& out) {
        load_queries(1.0f);
        for (std::int64_t begin = task_.part.begin; begin < task_.part.end; begin += few_queries_block) {
            const std::int64_t count = smaller(few_queries_block, task_.part.end - begin);
            if (rows_ > rows_together) {
                copy_rows(task_.k, {begin, begin + count}, task_.part.end, g_.d_qk, scratch_.k);
                multiply_block(StridedRows<const float>{scratch_.k, padded_columns<V>(g_.d_qk)}, count,
                               count);
            } else {
                multiply_block(StridedRows<const T>{task_.k.row(begin), task_.k.stride}, count,
                               task_.part.end - begin);
            }
            for (std::int64_t r = 0; r < rows_; ++r) {
                const float* const products = scratch_.p + r * few_queries_block;
                float* const target = out.row(r) + (begin - task_.part.begin);
                for (std::int64_t j = 0; j < few_queries_block; ++j) target[j] = j < count ? products[j] : 0;
            }
        }
    }

  private:
    static constexpr std::int64_t rows_together = 4;

    /// Copies factor * q to scratch memory.
    void load_queries(float factor) const {
        const std::int64_t pitch = padded_columns<V>(g_.d_qk);
        for (std::int64_t r = 0; r < rows_; ++r) {
            const T* const q = task_.q.row(r % queries_) + r / queries_ * task_.q_head_stride;
            for (std::int64_t c = 0; c < pitch; c += lanes)
                V::store(scratch_.q + r * pitch + c,
                         V::mul(V::broadcast(factor), V::load_first(q + c, g_.d_qk - c)));
        }
    }

    void start() const {
        const std::int64_t o_columns = padded_columns<V>(g_.d_v);
        for (std::int64_t r = 0; r < rows_; ++r) {
            for (std::int64_t c = 0; c < o_columns; c += lanes)
                V::store(scratch_.o + r * o_columns + c, V::zero());
            scratch_.maximum[r] = -infinity;
            scratch_.sum[r] = scratch_.sum_error[r] = 0;
        }
    }

    /// Copies the rows `keys` from x to tile [keys, padded columns]. Zeros pad the columns.
    void copy_rows(const StridedRows<const T>& x, IndexRange keys, std::int64_t end, std::int64_t columns,
                   float* tile) const {
        const std::int64_t pitch = padded_columns<V>(columns), full = columns / lanes * lanes;
        for (std::int64_t j = keys.begin; j < keys.end; ++j, tile += pitch) {
            prefetch_row(x.row(smaller(j + few_queries_block, end - 1)), columns);
            for (std::int64_t c = 0; c < full; c += lanes) V::store(tile + c, V::load(x.row(j) + c));
            if (full < columns) V::store(tile + full, V::load_first(x.row(j) + full, columns - full));
        }
    }

    /// Processes a key block for all rows. Row 0 of k and v is the block's first key. k and v have `readable`
    /// rows; the rows after the block may be prefetched.
    template <class E>
    void process(IndexRange keys, const StridedRows<const E>& k, const StridedRows<const E>& v,
                 std::int64_t readable) const {
        const std::int64_t count = keys.end - keys.begin;
        multiply_block(k, count, readable);
        for (std::int64_t r = 0; r < rows_; ++r) exponentiate(r, keys);
        for_row_groups(
            [&]<int R>(std::int64_t row) { this->template add_values<R>(row, v, count, readable); });
    }

    /// Computes all rows' products with a key block. The parameters are those of process().
    template <class E>
    void multiply_block(const StridedRows<const E>& k, std::int64_t count, std::int64_t readable) const {
        for_row_groups(
            [&]<int R>(std::int64_t row) { this->template multiply_keys<R>(row, k, count, readable); });
    }

    /// Calls body<R>(first row) for groups of R rows, which share each K or V vector in a register.
    template <class Body>
    [[gnu::always_inline]] void for_row_groups(Body&& body) const {
        std::int64_t row = 0;
        for (; row + 4 <= rows_; row += 4) body.template operator()<4>(row);
        if (rows_ - row >= 2) {
            body.template operator()<2>(row);
            row += 2;
        }
        if (row < rows_) body.template operator()<1>(row);
    }

    /// p = q K^T for R rows. Each sum has one partial sum per lane; the lanes of `lanes` sums are added
    /// together.
    template <int R, class E>
    [[gnu::noinline]] void multiply_keys(std::int64_t row, StridedRows<const E> k, std::int64_t count,
                                         std::int64_t readable) const {
        constexpr int K = V::lanes / R;
        const std::int64_t pitch = padded_columns<V>(g_.d_qk), full = g_.d_qk / lanes * lanes;
        const std::int64_t rest = g_.d_qk - full;
        const float* const q = scratch_.q + row * pitch;
        for (std::int64_t j = 0; j < count; j += K) {
            // The sums for keys after the last one are not used; they repeat the last key.
            const E* key[K];
#pragma GCC unroll 16
            for (int n = 0; n < K; ++n) key[n] = k.row(smaller(j + n, count - 1));
            if (row == 0)
                for (int n = 0; n < K; ++n)
                    prefetch_row(k.row(smaller(j + n + few_queries_block, readable - 1)), g_.d_qk);
            Vector sum[V::lanes];
#pragma GCC unroll 16
            for (int n = 0; n < V::lanes; ++n) sum[n] = V::zero();
            for (std::int64_t c = 0; c < full; c += lanes) {
                Vector left[R];
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) left[r] = V::load(q + r * pitch + c);
#pragma GCC unroll 16
                for (int n = 0; n < K; ++n) {
                    const Vector right = V::load(key[n] + c);
#pragma GCC unroll 4
                    for (int r = 0; r < R; ++r) sum[r * K + n] = V::fma(left[r], right, sum[r * K + n]);
                }
            }
            if (rest != 0) {
#pragma GCC unroll 16
                for (int n = 0; n < K; ++n) {
                    const Vector right = V::load_first(key[n] + full, rest);
#pragma GCC unroll 4
                    for (int r = 0; r < R; ++r)
                        sum[r * K + n] = V::fma(V::load(q + r * pitch + full), right, sum[r * K + n]);
                }
            }
            alignas(64) float sums[V::lanes];
            V::store(sums, V::add_lanes(sum));
            for (int r = 0; r < R; ++r)
                __builtin_memcpy(scratch_.p + (row + r) * few_queries_block + j, sums + r * K,
                                 K * sizeof(float));
        }
    }

    /// Whether the row ranges hide the keys from all rows of all heads.
    bool is_hidden(IndexRange keys) const {
        if (task_.ranges == nullptr) return false;
        for (std::int64_t head = 0; head < task_.heads; ++head)
            if (task_.ranges[head].coverage({0, queries_}, keys) != Coverage::none) return false;
        return true;
    }

    /// Replaces row r's products by P = 2^(unit * (score - maximum)), and updates the row's maximum and sum.
    void exponentiate(std::int64_t r, IndexRange keys) const {
        const std::int64_t i = r % queries_, head = r / queries_;
        float* const p = scratch_.p + r * few_queries_block;
        const IndexRange seen = intersection(g_.mask.visible_keys(i), keys);
        const std::int64_t first = seen.begin - keys.begin, end = seen.end - keys.begin;
        scratch_.factor[r] = 1;
        if (end <= first) {
            for (std::int64_t j = 0; j < few_queries_block; j += lanes) V::store(p + j, V::zero());
            return;
        }
        const ScoreRule<float>* const rule = task_.rules == nullptr ? nullptr : task_.rules + head;
        if (rule != nullptr) {
            for (std::int64_t j = first; j < end; ++j) p[j] *= scale_;
            apply_rule<T>(*rule, i, seen.begin, end - first, p + first);
        }
        if (task_.ranges != nullptr)
            task_.ranges[head].hide(i, seen.begin, end - first, p + first, -infinity);
        Vector largest = V::broadcast(-infinity);
        for (std::int64_t j = 0; j < few_queries_block; j += lanes) {
            const Vector s =
                V::keep_lanes(V::load(p + j), first - j, larger(0, end - j), V::broadcast(-infinity));
            V::store(p + j, s);
            largest = V::max(largest, s);
        }
        update_maximum(r, V::largest_lane(largest));
        // If all scores so far are -inf, any finite maximum gives P = 0.
        const float maximum = scratch_.maximum[r] == -infinity ? 0.0f : scratch_.maximum[r];
        const Vector offset = V::broadcast(maximum), unit = V::broadcast(unit_);
        Vector block_sum = V::zero();
        for (std::int64_t j = 0; j < few_queries_block; j += lanes) {
            const Vector x = V::exp2(V::mul(unit, V::sub(V::load(p + j), offset)));
            V::store(p + j, x);
            block_sum = V::add(block_sum, x);
        }
        add_to_sum(r, V::sum_of_lanes(block_sum));
        if (rule != nullptr) apply_dropout(*rule, i, seen.begin, end - first, p + first);
    }

    void update_maximum(std::int64_t r, float largest) const {
        const float old = scratch_.maximum[r];
        if (!(largest > old)) return;
        const float factor = V::first_lane(V::exp2(V::broadcast(unit_ * (old - largest))));
        scratch_.maximum[r] = largest;
        scratch_.factor[r] = factor;
        scratch_.sum[r] *= factor;
        scratch_.sum_error[r] *= factor;
    }

    /// Adds a block's sum. The rounding errors of these additions are kept (Knuth's TwoSum).
    void add_to_sum(std::int64_t r, float x) const {
        const float before = scratch_.sum[r], after = before + x, added = after - before;
        scratch_.sum_error[r] += (before - (after - added)) + (x - added);
        scratch_.sum[r] = after;
    }

    /// o = factor * o + p V for R rows.
    template <int R, class E>
    void add_values(std::int64_t row, const StridedRows<const E>& v, std::int64_t count,
                    std::int64_t readable) const {
        constexpr int C = V::value_vectors(R);
        const std::int64_t full = g_.d_v / lanes * lanes;
        std::int64_t column = 0;
        for (; column + C * lanes <= full; column += C * lanes)
            add_columns<R, C, false>(row, column, v, count, readable);
        if constexpr (C > 4)
            for (; column + 4 * lanes <= full; column += 4 * lanes)
                add_columns<R, 4, false>(row, column, v, count, readable);
        if constexpr (C > 2)
            for (; column + 2 * lanes <= full; column += 2 * lanes)
                add_columns<R, 2, false>(row, column, v, count, readable);
        for (; column < full; column += lanes) add_columns<R, 1, false>(row, column, v, count, readable);
        if (column < g_.d_v) add_columns<R, 1, true>(row, column, v, count, readable);
    }

    /// Like add_values(), for C column vectors only. is_rest: C is 1, and the vector is the last, incomplete
    /// one.
    template <int R, int C, bool is_rest, class E>
    [[gnu::noinline]] void add_columns(std::int64_t row, std::int64_t column, StridedRows<const E> v,
                                       std::int64_t count, std::int64_t readable) const {
        const std::int64_t rest = g_.d_v - column, pitch = padded_columns<V>(g_.d_v);
        const float* const p = scratch_.p + row * few_queries_block;
        Vector sum[R][C];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) sum[r][c] = V::zero();
        for (std::int64_t j = 0; j < count; ++j) {
            const E* const value = v.row(j) + column;
            if (row == 0 && column == 0)
                prefetch_row(v.row(smaller(j + few_queries_block, readable - 1)), g_.d_v);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const Vector x = is_rest ? V::load_first(value, rest) : V::load(value + c * lanes);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r)
                    sum[r][c] = V::fma(V::broadcast(p[r * few_queries_block + j]), x, sum[r][c]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const Vector factor = V::broadcast(scratch_.factor[row + r]);
            float* const o = scratch_.o + (row + r) * pitch + column;
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
                V::store(o + c * lanes, V::fma(factor, V::load(o + c * lanes), sum[r][c]));
        }
    }

    /// O = o / sum.
    void finish() const {
        const double unit = task_.rules != nullptr ? 1.0 : static_cast<double>(unit_) * 0.6931471805599453;
        const std::int64_t pitch = padded_columns<V>(g_.d_v);
        for (std::int64_t r = 0; r < rows_; ++r) {
            // A row that sees no key has sum 0 and maximum -inf, which gives O = 0.
            const float sum = scratch_.sum[r] + scratch_.sum_error[r];
            const Vector inverse = V::broadcast(sum == 0.0f ? 0.0f : 1.0f / sum);
            task_.softmax[r] = {unit * static_cast<double>(scratch_.maximum[r]), static_cast<double>(sum)};
            for (std::int64_t c = 0; c < g_.d_v; c += lanes)
                V::store_first(task_.o + r * g_.d_v + c, V::mul(inverse, V::load(scratch_.o + r * pitch + c)),
                               g_.d_v - c);
        }
    }

    const FewQueriesTask<T>& task_;
    const Geometry& g_;
    const std::int64_t queries_, rows_;
    const FewQueriesScratch<V> scratch_;
    const float scale_;  // the call's |scale|
    const float unit_;   // turns a score difference into a base-2 exponent
};

template <class V, class T>
constexpr FewQueriesKernels<T> few_queries_kernels_on(const char* name) {
    return {.name = name,
            .scratch_bytes =
                [](const Geometry& geometry, std::int64_t rows) {
                    return FewQueriesScratch<V>(geometry, rows, nullptr).bytes;
                },
            .forward = [](const FewQueriesTask<T>& task,
                          std::byte* scratch) { FewQueriesBlock<V, T>(task, scratch).run(); },
            .multiply = [](const FewQueriesTask<T>& task, const StridedRows<float>& out,
                           std::byte* scratch) { FewQueriesBlock<V, T>(task, scratch).multiply(out); }};
}

}  // namespace
}  // namespace gradtile::attention::cpu
