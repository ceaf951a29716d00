// The largest logit of each head: q.k of every visible pair, computed in parallel over row blocks.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gradtile/attention/cpu/dot.h>
#include <gradtile/attention/cpu/sequences.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/internal/max_logits_backend.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {
namespace {

constexpr std::int64_t logits_block = 16, logits_max_head_dim = 256;

/// The larger number; NaN if either is NaN.
template <class A>
A larger(A a, A b) {
    return b > a || std::isnan(b) ? b : a;
}

/// A row block of one sequence and head.
struct LogitTask {
    const Sequence* sequence;
    std::int64_t head;
    IndexRange rows;
};

template <class T>
class MaxLogits {
    using A = Accumulator<T>;

  public:
    MaxLogits(const ResolvedOptions& options, const Tensor& q, const Tensor& k)
        : options_(options), q_(q), k_(k), d_(q.size(3)), scale_(static_cast<A>(options.scale)) {}

    A compute(const LogitTask& task) const {
        const Sequence& s = *task.sequence;
        const std::int64_t group = q_.size(2) / k_.size(2);
        A rows[logits_block * logits_max_head_dim], key[logits_max_head_dim];
        for (std::int64_t i = task.rows.begin; i < task.rows.end; ++i)
            load(q_, s.batch, s.first_row + i, task.head, rows + (i - task.rows.begin) * d_);
        A maximum = -std::numeric_limits<A>::infinity();
        const IndexRange seen = s.mask.visible_keys(task.rows);
        for (std::int64_t j = seen.begin; j < seen.end; ++j) {
            load(k_, s.batch, s.first_key + j, task.head / group, key);
            for (std::int64_t i = task.rows.begin; i < task.rows.end; ++i) {
                const IndexRange visible = s.mask.visible_keys(i);
                if (j >= visible.begin && j < visible.end &&
                    options_.row_ranges.sees(s.batch, task.head, i, s.first_key + j))
                    maximum = larger(maximum, scale_ * dot<A>(rows + (i - task.rows.begin) * d_, key, d_));
            }
        }
        return maximum;
    }

  private:
    void load(const Tensor& x, std::int64_t batch, std::int64_t position, std::int64_t head, A* row) const {
        const T* const from = x.data<T>() + batch * x.stride(0) + position * x.stride(1) + head * x.stride(2);
        for (std::int64_t c = 0; c < d_; ++c) row[c] = convert<A>(from[c]);
    }
    const ResolvedOptions& options_;
    const Tensor &q_, &k_;
    std::int64_t d_;
    A scale_;
};

template <class T>
void max_logits_typed(const Context& ctx, const ResolvedOptions& options, const Tensor& q_in,
                      const Tensor& k_in, const Tensor& max_logits) {
    using A = Accumulator<T>;
    const Readable q(ctx, q_in), k(ctx, k_in);
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k}) x->load(ctx);
    const std::vector<Sequence> sequences = sequences_of(options, q_in);
    std::vector<LogitTask> tasks;
    for (const Sequence& s : sequences)
        for (std::int64_t h = 0; h < q_in.size(2); ++h)
            for (std::int64_t begin = 0; begin < s.mask.queries; begin += logits_block)
                tasks.push_back({&s, h, {begin, std::min(begin + logits_block, s.mask.queries)}});
    std::vector<A> maxima(tasks.size());
    const MaxLogits<T> logits(options, q.tensor(), k.tensor());
    parallel_for(ctx, std::ssize(tasks), [&](std::int64_t task) {
        maxima[static_cast<std::size_t>(task)] = logits.compute(tasks[static_cast<std::size_t>(task)]);
    });
    fill(ctx, max_logits, -std::numeric_limits<double>::infinity());
    for (std::size_t task = 0; task < tasks.size(); ++task) {
        float& maximum = max_logits.data<float>()[tasks[task].head * max_logits.stride(0)];
        maximum = larger(maximum, static_cast<float>(maxima[task]));
    }
}

}  // namespace

void max_logits(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                const Tensor& max_logits) {
    visit_floating(q.dtype(),
                   [&]<class T>(TypeTag<T>) { max_logits_typed<T>(ctx, options, q, k, max_logits); });
}

}  // namespace gradtile::attention::cpu
