// Portable block kernels in plain loops that any compiler vectorises. They are used for float64 and float16,
// and for other dtypes on machines without special kernels.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gradtile/attention/cpu/bias_gradient_rows.h>
#include <gradtile/attention/cpu/dot.h>
#include <gradtile/attention/cpu/kernels.h>
#include <gradtile/attention/cpu/score_rows.h>

namespace gradtile::attention::cpu {
namespace {

constexpr std::int64_t block_rows = 32;
constexpr std::int64_t block_keys = 64;
/// Softmax denominator terms per partial sum.
constexpr std::int64_t terms_per_partial_sum = 16;

Blocks generic_blocks(const Geometry&) {
    return {.forward_rows = block_rows, .backward_keys = block_keys, .backward_rows = block_rows};
}

/// Allocates consecutive arrays from a task's scratch memory.
template <class A>
class ScratchArrays {
  public:
    explicit ScratchArrays(std::byte* scratch) : next_(reinterpret_cast<A*>(scratch)) {}
    A* take(std::int64_t count) {
        A* taken = next_;
        next_ += count;
        return taken;
    }

  private:
    A* next_;
};

/// total += x. The addition's rounding error is added to `error` (Knuth's TwoSum).
template <class A>
void add_with_error(A& total, A& error, A x) {
    const A before = total, after = before + x, added = after - before;
    error += (before - (after - added)) + (x - added);
    total = after;
}

template <class T, class A>
void load_row(std::int64_t n, const T* from, A* to) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = convert<A>(from[i]);
}

/// Copies rows of x to tile [keys, d].
template <class T, class A>
void load(IndexRange keys, std::int64_t d, StridedRows<const T> x, A* tile) {
    for (std::int64_t j = keys.begin; j < keys.end; ++j) load_row(d, x.row(j), tile + (j - keys.begin) * d);
}

/// Copies x^T to tile [d, block_keys] for the keys in the range. Columns outside the range keep old values,
/// which no function reads.
template <class T, class A>
void load_transposed(IndexRange keys, std::int64_t d, StridedRows<const T> x, A* tile) {
    for (std::int64_t j = keys.begin; j < keys.end; ++j)
        for (std::int64_t c = 0; c < d; ++c) tile[c * block_keys + j - keys.begin] = convert<A>(x.row(j)[c]);
}

/// Computes out[j] = scale * sum_c(row[c] * tile[c, j]) for the columns j in a range.
template <class A>
void scores(IndexRange columns, std::int64_t d, A scale, const A* row, const A* tile, A* out) {
    const std::int64_t n = columns.end - columns.begin;
    std::fill_n(out + columns.begin, n, A(0));
    for (std::int64_t c = 0; c < d; ++c)
        add_scaled(n, row[c], tile + c * block_keys + columns.begin, out + columns.begin);
    for (std::int64_t j = columns.begin; j < columns.end; ++j) out[j] *= scale;
}

/// Returns the keys of a block that row i sees. Key 0 is the block's first key.
IndexRange visible_in(const Mask& mask, std::int64_t i, IndexRange keys) {
    const IndexRange visible = mask.visible_keys(i);
    return {std::max(visible.begin, keys.begin) - keys.begin, std::min(visible.end, keys.end) - keys.begin};
}

template <class T>
std::size_t forward_scratch_bytes(const Geometry& g) {
    const std::int64_t count =
        block_rows * (g.d_qk + g.d_v + 3) + block_keys * (g.d_qk + g.d_v) + block_keys + g.d_v;
    return static_cast<std::size_t>(count) * sizeof(Accumulator<T>);
}

template <class T>
void forward(const ForwardTask<T>& task, std::byte* scratch) {
    using A = Accumulator<T>;
    constexpr A infinity = std::numeric_limits<A>::infinity();
    const Geometry& g = *task.geometry;
    const A scale = static_cast<A>(g.scale);
    ScratchArrays<A> arrays(scratch);
    A* q = arrays.take(block_rows * g.d_qk);
    A* o = arrays.take(block_rows * g.d_v);
    A* maximum = arrays.take(block_rows);
    A* sum = arrays.take(block_rows);
    A* sum_error = arrays.take(block_rows);  // rounding errors from additions to `sum`
    A* k_transposed = arrays.take(block_keys * g.d_qk);
    A* v = arrays.take(block_keys * g.d_v);
    A* p = arrays.take(block_keys);
    A* o_block = arrays.take(g.d_v);

    const std::int64_t rows = task.rows.end - task.rows.begin;
    load(task.rows, g.d_qk, task.q, q);
    std::fill_n(o, rows * g.d_v, A(0));
    // The sink counts as a key whose value is 0.
    const A sink = task.rule != nullptr ? task.rule->sink : -infinity;
    std::fill_n(maximum, rows, sink);
    std::fill_n(sum, rows, sink > -infinity ? A(1) : A(0));
    std::fill_n(sum_error, rows, A(0));

    const IndexRange all = task.keys();
    for (std::int64_t begin = all.begin; begin < all.end; begin += block_keys) {
        const IndexRange keys{begin, std::min(begin + block_keys, all.end)};
        if (task.coverage(task.rows, keys) == Coverage::none) continue;
        load_transposed(keys, g.d_qk, task.k, k_transposed);
        load(keys, g.d_v, task.v, v);
        for (std::int64_t r = 0; r < rows; ++r) {
            const IndexRange visible = visible_in(g.mask, task.rows.begin + r, keys);
            if (visible.end <= visible.begin) continue;
            scores(visible, g.d_qk, scale, q + r * g.d_qk, k_transposed, p);
            const std::int64_t i = task.rows.begin + r, first_key = keys.begin + visible.begin;
            const std::int64_t count = visible.end - visible.begin;
            if (task.rule != nullptr) apply_rule<T>(*task.rule, i, first_key, count, p + visible.begin);
            if (task.ranges) task.ranges.hide(i, first_key, count, p + visible.begin, -infinity);
            A block_maximum = maximum[r];
            for (std::int64_t j = visible.begin; j < visible.end; ++j)
                block_maximum = std::max(block_maximum, p[j]);
            // If all scores so far are -inf, any finite reference gives P = 0.
            const A reference = block_maximum == -infinity ? A(0) : block_maximum;
            const A rescale = std::exp(maximum[r] - reference);
            maximum[r] = block_maximum;
            for (std::int64_t j = visible.begin; j < visible.end; ++j)
                p[j] = vector_math::exp(p[j] - reference);
            // The block is summed separately, because the previous sum may be much larger than each term in
            // the block.
            A block_sum = 0;
            for (std::int64_t first = visible.begin; first < visible.end; first += terms_per_partial_sum) {
                A partial_sum = 0;
                for (std::int64_t j = first; j < std::min(first + terms_per_partial_sum, visible.end); ++j)
                    partial_sum += p[j];
                block_sum += partial_sum;
            }
            if (task.rule != nullptr) apply_dropout(*task.rule, i, first_key, count, p + visible.begin);
            std::fill_n(o_block, g.d_v, A(0));
            for (std::int64_t j = visible.begin; j < visible.end; ++j)
                add_scaled(g.d_v, p[j], v + j * g.d_v, o_block);
            sum[r] *= rescale;
            sum_error[r] *= rescale;
            add_with_error(sum[r], sum_error[r], block_sum);
            for (std::int64_t c = 0; c < g.d_v; ++c)
                o[r * g.d_v + c] = o[r * g.d_v + c] * rescale + o_block[c];
        }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t i = task.rows.begin + r;
        const A total = sum[r] + sum_error[r];
        // In a row that sees a key, the sum is NaN or at least 1.
        const A inverse = total == 0 ? A(0) : A(1) / total;
        if (task.part_softmax != nullptr) {
            for (std::int64_t c = 0; c < g.d_v; ++c) task.part_o.row(i)[c] = o[r * g.d_v + c] * inverse;
            task.part_softmax[i] = {static_cast<double>(maximum[r]), static_cast<double>(total)};
        } else {
            for (std::int64_t c = 0; c < g.d_v; ++c)
                task.o.row(i)[c] = convert<T>(o[r * g.d_v + c] * inverse);
            task.lse.store(i, 1, 1.0, &maximum[r], &total);
        }
    }
}

template <class T>
std::size_t backward_scratch_bytes(const Geometry& g) {
    const std::int64_t count =
        block_keys * (4 * g.d_qk + 3 * g.d_v + 5 + max_biases) + block_rows * (2 * g.d_qk + g.d_v);
    return static_cast<std::size_t>(count) * sizeof(Accumulator<T>);
}

/// A backward task's arrays in scratch memory.
template <class A>
struct BackwardArrays {
    A *k, *k_transposed, *v_transposed;
    A *d_k, *d_v;              ///< sums over all rows
    A *d_k_block, *d_v_block;  ///< sums over one row block
    A *p, *d_s;                ///< one row
    RuleScratch<A> rule;
    A* bias_columns;
    A *q, *d_q, *d_o;  ///< one row block

    BackwardArrays(const Geometry& g, ScratchArrays<A> arrays)
        : k(arrays.take(block_keys * g.d_qk)),
          k_transposed(arrays.take(block_keys * g.d_qk)),
          v_transposed(arrays.take(block_keys * g.d_v)),
          d_k(arrays.take(block_keys * g.d_qk)),
          d_v(arrays.take(block_keys * g.d_v)),
          d_k_block(arrays.take(block_keys * g.d_qk)),
          d_v_block(arrays.take(block_keys * g.d_v)),
          p(arrays.take(block_keys)),
          d_s(arrays.take(block_keys)),
          rule{arrays.take(block_keys), arrays.take(block_keys), arrays.take(block_keys)},
          bias_columns(arrays.take(block_keys * max_biases)),
          q(arrays.take(block_rows * g.d_qk)),
          d_q(arrays.take(block_rows * g.d_qk)),
          d_o(arrays.take(block_rows * g.d_v)) {}
};

/// Computes P and dS for row i and the keys that it sees, and adds the row's parts of dQ, dK, dV and the
/// biases' gradients. `row`: its place in the row block.
template <class T, class A>
void add_backward_row(const BackwardTask<T>& task, const BackwardArrays<A>& x, BlockBiasGradients<A>& biases,
                      std::int64_t head, std::int64_t i, std::int64_t row) {
    const Geometry& g = *task.geometry;
    const A scale = static_cast<A>(g.scale);
    const IndexRange visible = visible_in(g.mask, i, task.keys);
    if (visible.end <= visible.begin) return;
    const std::int64_t first_key = task.keys.begin + visible.begin, count = visible.end - visible.begin,
                       head_row = head * g.mask.queries + i;
    const A lse = task.lse[head_row], lse_remainder = task.lse_remainder[head_row],
            delta = task.delta[head_row];
    const KeyRanges ranges = task.ranges_of(head);
    const A *const q_row = x.q + row * g.d_qk, *const d_o_row = x.d_o + row * g.d_v;
    A *const p = x.p, *const d_s = x.d_s, *const d_q_row = x.d_q + row * g.d_qk;
    if (task.products.data != nullptr) {
        const float* const products = task.products.row(head_row);
        for (std::int64_t j = visible.begin; j < visible.end; ++j) p[j] = scale * static_cast<A>(products[j]);
    } else {
        scores(visible, g.d_qk, scale, q_row, x.k_transposed, p);
    }
    scores(visible, g.d_v, A(1), d_o_row, x.v_transposed, d_s);
    if (task.rules != nullptr) {
        dropout_factors(task.rules[head], i, first_key, count, x.rule.factors);
        differentiate<T>(task.rules[head], i, first_key, count, {lse, lse_remainder, delta},
                         p + visible.begin, d_s + visible.begin, x.rule);
        if (ranges) ranges.hide(i, first_key, count, x.rule.d_score, A(0));
        biases.add(i, visible, x.rule.d_score);
    } else {
        for (std::int64_t j = visible.begin; j < visible.end; ++j) {
            p[j] = vector_math::exp((p[j] - lse) - lse_remainder);
            d_s[j] = p[j] * (d_s[j] - delta);
        }
    }
    if (ranges)
        for (A* const values : {p, d_s}) ranges.hide(i, first_key, count, values + visible.begin, A(0));
    for (std::int64_t j = visible.begin; j < visible.end; ++j) {
        add_scaled(g.d_v, p[j], d_o_row, x.d_v_block + j * g.d_v);
        add_scaled(g.d_qk, d_s[j], q_row, x.d_k_block + j * g.d_qk);
        add_scaled(g.d_qk, d_s[j], x.k + j * g.d_qk, d_q_row);
    }
}

template <class T>
void backward(const BackwardTask<T>& task, std::byte* scratch) {
    using A = Accumulator<T>;
    const Geometry& g = *task.geometry;
    const A scale = static_cast<A>(g.scale);
    const BackwardArrays<A> x(g, ScratchArrays<A>(scratch));
    const std::int64_t keys = task.keys.end - task.keys.begin;
    load(task.keys, g.d_qk, task.k, x.k);
    load_transposed(task.keys, g.d_qk, task.k, x.k_transposed);
    load_transposed(task.keys, g.d_v, task.v, x.v_transposed);
    std::fill_n(x.d_k, keys * g.d_qk, A(0));
    std::fill_n(x.d_v, keys * g.d_v, A(0));

    const IndexRange seeing = g.mask.seeing_rows(task.keys);
    for (std::int64_t head = 0; head < task.group; ++head) {
        const StridedRows<const T> q_head{task.q.data + head * task.q_head_stride, task.q.stride};
        const StridedRows<const T> d_o_head{task.d_o.data + head * task.d_o_head_stride, task.d_o.stride};
        const StridedRows<A> d_q_head{task.d_q.data + head * task.d_q_head_stride, task.d_q.stride};
        for (std::int64_t block = seeing.begin / block_rows; block * block_rows < seeing.end; ++block) {
            const IndexRange rows{block * block_rows, std::min((block + 1) * block_rows, g.mask.queries)};
            if (task.coverage(head, rows, task.keys) == Coverage::none) {
                task.skip_rows(head, block, rows);
                continue;
            }
            load(rows, g.d_qk, q_head, x.q);
            load(rows, g.d_v, d_o_head, x.d_o);
            std::fill_n(x.d_q, block_rows * g.d_qk, A(0));
            std::fill_n(x.d_k_block, keys * g.d_qk, A(0));
            std::fill_n(x.d_v_block, keys * g.d_v, A(0));
            BlockBiasGradients<A> bias_sums(
                task.bias_gradients != nullptr ? &task.bias_gradients[head] : nullptr, task.keys.begin, keys,
                x.bias_columns);
            for (std::int64_t i = rows.begin; i < rows.end; ++i)
                add_backward_row(task, x, bias_sums, head, i, i - rows.begin);
            bias_sums.finish();
            add_scaled(keys * g.d_qk, A(1), x.d_k_block, x.d_k);
            add_scaled(keys * g.d_v, A(1), x.d_v_block, x.d_v);
            wait_for_dq_turn(task.turns, head, block, task.key_block);
            const bool overwrite = task.overwrites_dq(rows);
            for (std::int64_t i = rows.begin; i < rows.end; ++i)
                for (std::int64_t c = 0; c < g.d_qk; ++c) {
                    const A part = scale * x.d_q[(i - rows.begin) * g.d_qk + c];
                    A& target = d_q_head.row(i)[c];
                    target = overwrite ? part : target + part;
                }
            pass_dq_turn(task.turns, head, block, task.key_block);
        }
    }
    for (std::int64_t j = 0; j < keys; ++j) {
        for (std::int64_t c = 0; c < g.d_qk; ++c)
            task.d_k.row(task.keys.begin + j)[c] = convert<T>(scale * x.d_k[j * g.d_qk + c]);
        for (std::int64_t c = 0; c < g.d_v; ++c)
            task.d_v.row(task.keys.begin + j)[c] = convert<T>(x.d_v[j * g.d_v + c]);
    }
}

}  // namespace

template <class T>
const FlashKernels<T>& generic_kernels() {
    static constexpr FlashKernels<T> kernels{.name = "generic",
                                             .scores_in_base_2 = false,
                                             .blocks = generic_blocks,
                                             .forward_scratch_bytes = forward_scratch_bytes<T>,
                                             .backward_scratch_bytes = backward_scratch_bytes<T>,
                                             .forward = forward<T>,
                                             .backward = backward<T>};
    return kernels;
}
template const FlashKernels<double>& generic_kernels();
template const FlashKernels<float>& generic_kernels();
template const FlashKernels<bfloat16>& generic_kernels();
template const FlashKernels<float16>& generic_kernels();

}  // namespace gradtile::attention::cpu
