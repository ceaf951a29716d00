// The textbook algorithm: S and P are whole matrices in memory, rounded to the input dtype. A framework
// without a fused operator stores them in this way. In float64 it is the reference for every other algorithm.
// In 16-bit dtypes the other algorithms' error bounds are multiples of this algorithm's error.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gradtile/attention/cpu/bias_gradients.h>
#include <gradtile/attention/cpu/dot.h>
#include <gradtile/attention/cpu/score_rows.h>
#include <gradtile/attention/cpu/sequences.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {
namespace {

constexpr std::int64_t rows_per_block = 16;
/// Sums over keys or rows are computed in blocks of terms_per_block terms, and then the block sums are added.
/// Error bounds are multiples of this algorithm's error, so its long sums must not lose more digits than the
/// other algorithms' sums. Head dims are at most 256, so sums over them need no blocks.
constexpr std::int64_t terms_per_block = 64, max_head_dim = 256;

/// A contiguous copy of a tensor, [B, H, rows, columns], in the accumulator dtype.
struct PackedHeads {
    Tensor tensor;
    PackedHeads(const Context& ctx, const Tensor& view, DType dtype)
        : tensor(empty(ctx, view.shape(), dtype)), source_(view) {}
    void load(const Context& ctx) const { copy(ctx, tensor, source_); }
    /// One head's [rows, columns] matrix.
    template <class T>
    T* at(std::int64_t batch, std::int64_t head) const {
        return tensor.data<T>() + (batch * tensor.size(1) + head) * tensor.size(2) * tensor.size(3);
    }

  private:
    Tensor source_;
};

/// Returns a view [B, H, S, D] of x [B, S, H, D].
Tensor by_head(const Tensor& x) {
    return x.transpose(1, 2);
}
/// Returns a view [B, H, D, S] of x [B, S, H, D].
Tensor by_head_transposed(const Tensor& x) {
    return x.transpose(1, 2).transpose(2, 3);
}

/// row = scale * row, rounded to T.
template <class T, class A>
void scale_row(std::int64_t n, A scale, A* row) {
    for (std::int64_t j = 0; j < n; ++j) row[j] = convert<A>(convert<T>(scale * row[j]));
}

/// row [n] = scale * vector [d] * matrix [d, n], rounded to T; a sum over the head dim.
template <class T, class A>
void product_over_head_dim(std::int64_t d, std::int64_t n, const A* vector, const A* matrix, A scale,
                           A* row) {
    std::fill_n(row, n, A(0));
    for (std::int64_t i = 0; i < d; ++i) add_scaled(n, vector[i], matrix + i * n, row);
    scale_row<T>(n, scale, row);
}

/// row [d] = scale * vector [keys] * matrix [keys, d], rounded to T; a sum over the keys.
template <class T, class A>
void product_over_keys(std::int64_t keys, std::int64_t d, const A* vector, const A* matrix, A scale, A* row) {
    std::fill_n(row, d, A(0));
    for (std::int64_t begin = 0; begin < keys; begin += terms_per_block) {
        A block_sum[max_head_dim] = {};
        for (std::int64_t i = begin; i < std::min(begin + terms_per_block, keys); ++i)
            add_scaled(d, vector[i], matrix + i * d, block_sum);
        add_scaled(d, A(1), block_sum, row);
    }
    scale_row<T>(d, scale, row);
}

/// Sums term(j) over the keys j in a range.
template <class A, class Term>
A sum_over(IndexRange keys, Term term) {
    A sum = 0;
    for (std::int64_t begin = keys.begin; begin < keys.end; begin += terms_per_block) {
        A block_sum = 0;
        for (std::int64_t j = begin; j < std::min(begin + terms_per_block, keys.end); ++j)
            block_sum += term(j);
        sum += block_sum;
    }
    return sum;
}

/// Replaces one score row by probabilities, 0 for invisible keys, each rounded to T. The sum that the
/// function returns is 0 if no key is visible and the sink is -inf.
template <class T, class A>
RowSoftmax softmax_row(IndexRange visible, std::int64_t n, A sink, A* row) {
    constexpr A infinity = std::numeric_limits<A>::infinity();
    A maximum = sink;
    for (std::int64_t j = visible.begin; j < visible.end; ++j) maximum = std::max(maximum, row[j]);
    const A reference = maximum == -infinity ? A(0) : maximum;
    const A key_sum =
        sum_over<A>(visible, [&](std::int64_t j) { return row[j] = std::exp(row[j] - reference); });
    const A sum = key_sum + std::exp(sink - reference);
    const bool sees_nothing = sum == 0;  // in a row that sees a key, the sum is NaN or at least 1
    for (std::int64_t j = 0; j < n; ++j) {
        const bool is_visible = j >= visible.begin && j < visible.end && !sees_nothing;
        row[j] = is_visible ? convert<A>(convert<T>(row[j] / sum)) : A(0);
    }
    return {static_cast<double>(reference), static_cast<double>(sum)};
}

/// A row of one (batch, query head).
struct Row {
    std::int64_t b, h, i;
};

/// Computes a row of P and, unless `derivatives` is null, d score / d product for each key.
template <class T, class A>
RowSoftmax probabilities(const ResolvedOptions& options, const ScoreRule<A>& rule, std::int64_t d,
                         const Row& at, const A* q_row, const A* k_transposed, A* row,
                         A* derivatives = nullptr) {
    const std::int64_t keys = options.mask.keys;
    const IndexRange visible = options.mask.visible_keys(at.i);
    product_over_head_dim<T>(d, keys, q_row, k_transposed, static_cast<A>(options.scale), row);
    if (!options.scores.plain) {
        apply_rule<T>(rule, at.i, 0, keys, row, derivatives);
        for (std::int64_t j = 0; j < keys; ++j) row[j] = convert<A>(convert<T>(row[j]));
    }
    for (std::int64_t j = 0; j < keys; ++j)
        if (!options.row_ranges.sees(at.b, at.h, at.i, j)) row[j] = -std::numeric_limits<A>::infinity();
    return softmax_row<T>(visible, keys, rule.sink, row);
}

/// Multiplies P's row i by its dropout factors.
template <class T, class A>
void drop(const ScoreRule<A>& rule, std::int64_t i, std::int64_t keys, A* p) {
    if (!rule.drops()) return;
    apply_dropout(rule, i, 0, keys, p);
    for (std::int64_t j = 0; j < keys; ++j) p[j] = convert<A>(convert<T>(p[j]));
}

/// Calls body(rule, b, h, i) for every row i of every (batch, head), in parallel over row blocks.
template <class A, class Body>
void for_every_row(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Body& body) {
    const std::int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2);
    const std::int64_t row_blocks = ceil_div(queries, rows_per_block);
    parallel_for(ctx, batch * heads * row_blocks, [&](std::int64_t task) {
        const std::int64_t batch_head = task / row_blocks, b = batch_head / heads, h = batch_head % heads;
        const std::int64_t begin = task % row_blocks * rows_per_block;
        const ScoreRule<A> rule = options.scores.rule_of<A>(b, h);
        for (std::int64_t i = begin; i < std::min(begin + rows_per_block, queries); ++i) body(rule, b, h, i);
    });
}

template <class T>
void naive_forward_typed(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v;
    using A = Accumulator<T>;
    constexpr DType sum_type = dtype_of<A>;
    const std::int64_t batch = q_in.size(0), queries = q_in.size(1), heads = q_in.size(2);
    const std::int64_t keys = k_in.size(1), group = k_in.size(2) == 0 ? 1 : heads / k_in.size(2);
    const std::int64_t d_qk = q_in.size(3), d_v = v_in.size(3);
    const PackedHeads q(ctx, by_head(q_in), sum_type), k_transposed(ctx, by_head_transposed(k_in), sum_type);
    const PackedHeads v(ctx, by_head(v_in), sum_type);
    const Tensor p = empty(ctx, {batch, heads, queries, keys}, sum_type);
    const Tensor o = empty(ctx, {batch, heads, queries, d_v}, sum_type);
    if (ctx.is_planning()) return;
    for (const PackedHeads* x : {&q, &k_transposed, &v}) x->load(ctx);

    for_every_row<A>(
        ctx, options, q_in, [&](const ScoreRule<A>& rule, std::int64_t b, std::int64_t h, std::int64_t i) {
            const std::int64_t row = (b * heads + h) * queries + i;
            A* const p_row = p.data<A>() + row * keys;
            const RowSoftmax softmax =
                probabilities<T>(options, rule, d_qk, {b, h, i}, q.at<A>(b, h) + i * d_qk,
                                 k_transposed.at<A>(b, h / group), p_row);
            row_lse_of<A>(saved, b, h).store(i, 1, 1.0, &softmax.maximum, &softmax.sum);
            drop<T>(rule, i, keys, p_row);
            product_over_keys<T>(keys, d_v, p_row, v.at<A>(b, h / group), A(1), o.data<A>() + row * d_v);
        });
    copy(ctx, by_head(saved.o), o);
}

/// The phases of the backward pass, in the order in which they run. Only the constructor allocates, so a dry
/// run only constructs the object.
template <class T>
class NaiveBackward {
    using A = Accumulator<T>;
    static constexpr DType sum_type = dtype_of<A>;

  public:
    /// Adds to `bias_gradients` as the call's sequences from number first.index on.
    NaiveBackward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                  const OutputGradients& d_out, const Gradients& into, const BiasGradients<A>& bias_gradients,
                  const Sequence& first)
        : ctx_(ctx),
          options_(options),
          saved_(saved),
          d_out_(d_out),
          into_(into),
          changes_products_(options.scores.changes_products()),
          q_(ctx, by_head(saved.q), sum_type),
          d_o_(ctx, by_head(d_out.o), sum_type),
          k_(ctx, by_head(saved.k), sum_type),
          k_transposed_(ctx, by_head_transposed(saved.k), sum_type),
          v_transposed_(ctx, by_head_transposed(saved.v), sum_type),
          p_(empty(ctx, {batch_, heads_, queries_, keys_}, sum_type)),
          d_s_(empty(ctx, {batch_, heads_, queries_, keys_}, sum_type)),
          d_q_(empty(ctx, {batch_, heads_, queries_, d_qk_}, sum_type)),
          d_k_sum_(empty(ctx, {batch_, key_heads_, keys_, d_qk_}, sum_type)),
          d_v_sum_(empty(ctx, {batch_, key_heads_, keys_, d_v_}, sum_type)),
          block_sums_(empty(ctx, {batch_, key_heads_, keys_, d_qk_ + d_v_}, sum_type)),
          bias_gradients_(bias_gradients),
          first_(first),
          derivatives_(empty(ctx, changes_products_ ? d_s_.shape() : Shape{0}, sum_type)),
          d_scores_(changes_products_ && bias_gradients_.any() ? empty_like(ctx, d_s_) : d_s_),
          d_lse_(empty(ctx, d_out.lse.defined() ? saved.lse.shape() : Shape{0}, sum_type)),
          deltas_(empty(ctx, into.sink.defined() ? saved.lse.shape() : Shape{0}, sum_type)) {}

    void load_inputs() const {
        if (d_out_.lse.defined()) copy(ctx_, d_lse_, d_out_.lse);
        for (const PackedHeads* x : {&q_, &d_o_, &k_, &k_transposed_, &v_transposed_}) x->load(ctx_);
    }

    /// Computes every row of P, dS and dQ.
    void differentiate_rows() const {
        for_every_row<A>(ctx_, options_, saved_.q,
                         [&](const ScoreRule<A>& rule, std::int64_t b, std::int64_t h, std::int64_t i) {
                             differentiate_row(rule, b, h, i);
                         });
    }

    /// Computes every K/V head's dK and dV.
    void differentiate_keys() const {
        parallel_for(ctx_, batch_ * key_heads_, [&](std::int64_t task) {
            differentiate_key_head(task / key_heads_, task % key_heads_);
        });
    }

    void store_gradients() const {
        copy(ctx_, by_head(into_.q), d_q_);
        copy(ctx_, by_head(into_.k), d_k_sum_);
        copy(ctx_, by_head(into_.v), d_v_sum_);
    }

    void add_bias_gradients() const {
        if (!bias_gradients_.any()) return;
        for (std::int64_t row = 0; row < batch_ * heads_ * queries_; ++row)
            for (const BiasGradientRows<A>& rows : bias_gradients_.for_head(
                     first_.index + row / queries_ / heads_, row / queries_ % heads_, first_.first_key))
                if (rows.data != nullptr)
                    rows.add(row % queries_, 0, keys_, d_scores_.data<A>() + row * keys_);
    }

    /// For packed sequences, into.sink is a float64 sum over the sequences. Otherwise into.sink is the
    /// float32 gradient.
    void compute_sink_gradient() const {
        if (!into_.sink.defined()) return;
        visit_floating(into_.sink.dtype(), [&]<class Sink>(TypeTag<Sink>) {
            for (std::int64_t h = 0; h < heads_; ++h)
                into_.sink.data<Sink>()[h * into_.sink.stride(0)] = convert<Sink>(sink_gradient(h));
        });
    }

  private:
    /// One K/V head's dK [Sk, Dqk] and dV [Sk, Dv].
    struct KeyGradients {
        A *d_k, *d_v;
    };

    /// dP = dO V^T; dS = P * (dP - D) with D = rowsum(P * dP) - dLSE; dQ = scale dS K. Dropout masks dP.
    void differentiate_row(const ScoreRule<A>& rule, std::int64_t b, std::int64_t h, std::int64_t i) const {
        const std::int64_t row = (b * heads_ + h) * queries_ + i, key_head = h / group_;
        A* const p_row = p_.data<A>() + row * keys_;
        A* const d_s_row = d_s_.data<A>() + row * keys_;
        A* const derivatives_row = changes_products_ ? derivatives_.data<A>() + row * keys_ : nullptr;
        const IndexRange visible = options_.mask.visible_keys(i);
        const RowSoftmax softmax =
            probabilities<T>(options_, rule, d_qk_, {b, h, i}, q_.at<A>(b, h) + i * d_qk_,
                             k_transposed_.at<A>(b, key_head), p_row, derivatives_row);
        product_over_head_dim<T>(d_v_, keys_, d_o_.at<A>(b, h) + i * d_v_, v_transposed_.at<A>(b, key_head),
                                 A(1), d_s_row);
        drop<T>(rule, i, keys_, d_s_row);
        const A delta = row_delta(row, visible, softmax, p_row, d_s_row);
        differentiate_softmax(visible, p_row, delta, d_s_row);
        if (changes_products_) differentiate_scores(row, visible, derivatives_row, d_s_row);
        drop<T>(rule, i, keys_, p_row);  // p_row then holds the probabilities that multiply V
        product_over_keys<T>(keys_, d_qk_, d_s_row, k_.at<A>(b, key_head), static_cast<A>(options_.scale),
                             d_q_.data<A>() + row * d_qk_);
    }

    /// Returns D = rowsum(P * dP) - dLSE. A row that sees no key has no dLSE.
    A row_delta(std::int64_t row, IndexRange visible, const RowSoftmax& softmax, const A* p_row,
                const A* d_p_row) const {
        A delta = sum_over<A>(visible, [&](std::int64_t j) { return p_row[j] * d_p_row[j]; });
        if (d_out_.lse.defined() && softmax.sum != 0) delta -= d_lse_.data<A>()[row];
        if (into_.sink.defined()) deltas_.data<A>()[row] = delta;
        return delta;
    }

    /// Replaces a row of dP by dS = P * (dP - D), rounded to T; 0 for invisible keys.
    void differentiate_softmax(IndexRange visible, const A* p_row, A delta, A* d_s_row) const {
        for (std::int64_t j = 0; j < keys_; ++j) {
            const bool is_visible = j >= visible.begin && j < visible.end;
            d_s_row[j] = is_visible ? convert<A>(convert<T>(p_row[j] * (d_s_row[j] - delta))) : A(0);
        }
    }

    /// Multiplies a row of dS by the scores' derivatives. The bias gradients need dS without them, so a copy
    /// is kept.
    void differentiate_scores(std::int64_t row, IndexRange visible, const A* derivatives_row,
                              A* d_s_row) const {
        if (bias_gradients_.any()) std::copy_n(d_s_row, keys_, d_scores_.data<A>() + row * keys_);
        for (std::int64_t j = visible.begin; j < visible.end; ++j)
            d_s_row[j] = convert<A>(convert<T>(d_s_row[j] * derivatives_row[j]));
    }

    /// dV = P^T dO and dK = scale dS^T Q, summed over the query heads that share a K/V head.
    void differentiate_key_head(std::int64_t b, std::int64_t key_head) const {
        const std::int64_t head_index = b * key_heads_ + key_head;
        const KeyGradients head_sum{d_k_sum_.data<A>() + head_index * keys_ * d_qk_,
                                    d_v_sum_.data<A>() + head_index * keys_ * d_v_};
        A* const block_ptr = block_sums_.data<A>() + head_index * keys_ * (d_qk_ + d_v_);
        const KeyGradients block_sum{block_ptr, block_ptr + keys_ * d_qk_};
        clear(head_sum, {0, keys_});
        for (std::int64_t h = key_head * group_; h < (key_head + 1) * group_; ++h)
            for (std::int64_t begin = 0; begin < queries_; begin += terms_per_block) {
                const IndexRange rows{begin, std::min(begin + terms_per_block, queries_)};
                const IndexRange seen = options_.mask.visible_keys(rows);
                const IndexRange keys{seen.begin, std::max(seen.begin, seen.end)};
                clear(block_sum, keys);
                for (std::int64_t i = rows.begin; i < rows.end; ++i) add_row(b, h, i, block_sum);
                add(block_sum, keys, head_sum);
            }
        const A scale = static_cast<A>(options_.scale);
        for (std::int64_t j = 0; j < keys_ * d_qk_; ++j) head_sum.d_k[j] *= scale;
    }

    void clear(const KeyGradients& sum, IndexRange keys) const {
        const std::int64_t count = keys.end - keys.begin;
        std::fill_n(sum.d_k + keys.begin * d_qk_, count * d_qk_, A(0));
        std::fill_n(sum.d_v + keys.begin * d_v_, count * d_v_, A(0));
    }
    /// Adds row i's outer products P^T dO and dS^T Q.
    void add_row(std::int64_t b, std::int64_t h, std::int64_t i, const KeyGradients& sum) const {
        const std::int64_t row_offset = ((b * heads_ + h) * queries_ + i) * keys_;
        const A* const p_row = p_.data<A>() + row_offset;
        const A* const d_s_row = d_s_.data<A>() + row_offset;
        const IndexRange visible = options_.mask.visible_keys(i);
        for (std::int64_t j = visible.begin; j < visible.end; ++j) {
            add_scaled(d_v_, p_row[j], d_o_.at<A>(b, h) + i * d_v_, sum.d_v + j * d_v_);
            add_scaled(d_qk_, d_s_row[j], q_.at<A>(b, h) + i * d_qk_, sum.d_k + j * d_qk_);
        }
    }
    void add(const KeyGradients& block_sum, IndexRange keys, const KeyGradients& head_sum) const {
        const std::int64_t count = keys.end - keys.begin;
        add_scaled(count * d_qk_, A(1), block_sum.d_k + keys.begin * d_qk_,
                   head_sum.d_k + keys.begin * d_qk_);
        add_scaled(count * d_v_, A(1), block_sum.d_v + keys.begin * d_v_, head_sum.d_v + keys.begin * d_v_);
    }

    double sink_gradient(std::int64_t h) const {
        const double sink = options_.scores.rule_of<double>(0, h).sink;
        double sum = 0;
        for (std::int64_t b = 0; b < batch_; ++b) {
            const RowLse<A> lse = row_lse_of<A>(saved_, b, h);
            add_sink_gradient(sink, queries_, {lse.lse, lse.remainder},
                              deltas_.data<A>() + (b * heads_ + h) * queries_, sum);
        }
        return sum;
    }

    const Context& ctx_;
    const ResolvedOptions& options_;
    const Saved& saved_;
    const OutputGradients& d_out_;
    const Gradients& into_;
    std::int64_t batch_ = saved_.q.size(0), queries_ = saved_.q.size(1), heads_ = saved_.q.size(2);
    std::int64_t keys_ = saved_.k.size(1), key_heads_ = saved_.k.size(2);
    std::int64_t group_ = key_heads_ == 0 ? 1 : heads_ / key_heads_;
    std::int64_t d_qk_ = saved_.q.size(3), d_v_ = saved_.v.size(3);
    bool changes_products_;

    PackedHeads q_, d_o_, k_, k_transposed_, v_transposed_;
    Tensor p_, d_s_;  // [B, Hq, Sq, Sk]; p_ holds the probabilities that multiply V
    Tensor d_q_, d_k_sum_, d_v_sum_;
    Tensor block_sums_;  // dK and dV, summed over one row block
    const BiasGradients<A>& bias_gradients_;
    const Sequence& first_;
    Tensor derivatives_;  // d score / d product
    Tensor d_scores_;     // dS before it is multiplied by the score's derivative, for bias gradients
    Tensor d_lse_, deltas_;
};

/// Returns a packed sequence's rows in q, o or one of their gradients.
Tensor rows_of(const Sequence& s, const Tensor& x) {
    return x.slice(1, s.first_row, s.mask.queries);
}
/// Returns a packed sequence's keys in k, v or one of their gradients.
Tensor keys_of(const Sequence& s, const Tensor& x) {
    return x.slice(1, s.first_key, s.mask.keys);
}
/// Returns a packed sequence's rows in the LSE or in dLSE. The result is undefined if the tensor is
/// undefined.
Tensor lse_of(const Sequence& s, const Tensor& lse) {
    return lse.defined() ? lse.slice(2, s.first_row, s.mask.queries) : lse;
}
/// Returns a packed sequence's part of every tensor.
Saved saved_of(const Sequence& s, const Saved& x) {
    return {.q = rows_of(s, x.q),
            .k = keys_of(s, x.k),
            .v = keys_of(s, x.v),
            .o = rows_of(s, x.o),
            .lse = lse_of(s, x.lse),
            .lse_remainder = lse_of(s, x.lse_remainder)};
}

template <class T>
void differentiate(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                   const OutputGradients& d_out, const Gradients& into,
                   const BiasGradients<Accumulator<T>>& bias_gradients, const Sequence& first) {
    const NaiveBackward<T> pass(ctx, options, saved, d_out, into, bias_gradients, first);
    if (ctx.is_planning()) return;
    pass.load_inputs();
    pass.differentiate_rows();
    pass.differentiate_keys();
    pass.store_gradients();
    pass.add_bias_gradients();
    pass.compute_sink_gradient();
}

template <class T>
void differentiate_sequences(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                             const OutputGradients& d_out, const Gradients& into,
                             const BiasGradients<Accumulator<T>>& bias_gradients) {
    Gradients gradients = into;
    if (into.sink.defined()) gradients.sink = empty(ctx, into.sink.shape(), DType::f64);
    if (ctx.is_planning()) return differentiate<T>(ctx, options, saved, d_out, gradients, bias_gradients, {});
    std::vector<double> sink_sums(static_cast<std::size_t>(saved.q.size(2)));
    for (const Sequence& s : sequences_of(options, saved.q)) {
        gradients.q = rows_of(s, into.q);
        gradients.k = keys_of(s, into.k);
        gradients.v = keys_of(s, into.v);
        differentiate<T>(ctx, options_of(options, s), saved_of(s, saved),
                         {rows_of(s, d_out.o), lse_of(s, d_out.lse)}, gradients, bias_gradients, s);
        if (into.sink.defined())
            for (std::size_t h = 0; h < sink_sums.size(); ++h)
                sink_sums[h] += gradients.sink.data<double>()[h];
    }
    fill(ctx, rows_after_last(options.packed, into.q), 0);
    fill(ctx, keys_after_last(options.packed, into.k), 0);
    fill(ctx, keys_after_last(options.packed, into.v), 0);
    if (!into.sink.defined()) return;
    for (std::size_t h = 0; h < sink_sums.size(); ++h)
        into.sink.data<float>()[static_cast<std::int64_t>(h) * into.sink.stride(0)] =
            static_cast<float>(sink_sums[h]);
}

void naive_forward_of_batch(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    visit_floating(saved.q.dtype(),
                   [&]<class T>(TypeTag<T>) { naive_forward_typed<T>(ctx, options, saved); });
}
}  // namespace

// Packed sequences are computed one after the other, each like a separate call. A dry run does not know their
// lengths, so it plans memory for one sequence as long as the whole tensors.
void naive_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    if (!options.packed || ctx.is_planning()) return naive_forward_of_batch(ctx, options, saved);
    for (const Sequence& s : sequences_of(options, saved.q))
        naive_forward_of_batch(ctx, options_of(options, s), saved_of(s, saved));
    fill(ctx, rows_after_last(options.packed, saved.o), 0);
    clear_lse_after_last(ctx, options.packed, saved);
}

void naive_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                    const OutputGradients& d_out, const Gradients& into) {
    visit_floating(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        const BiasGradients<Accumulator<T>> bias_gradients(ctx, options.scores, into);
        if (!ctx.is_planning()) bias_gradients.clear(ctx);
        if (options.packed) {
            differentiate_sequences<T>(ctx, options, saved, d_out, into, bias_gradients);
        } else {
            differentiate<T>(ctx, options, saved, d_out, into, bias_gradients, {});
        }
        if (!ctx.is_planning()) bias_gradients.store(ctx);
    });
}

}  // namespace gradtile::attention::cpu
