// The textbook algorithm on the GPU: S and P are whole matrices in memory, in the inputs' dtype. cuBLAS
// computes the matrix products; one kernel computes the row softmax, and one its backward pass. Both apply
// the score rule.
#include <cmath>
#include <cstdint>

#include <gradtile/attention/cuda/common/bias_gradients.h>
#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/passes.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/attention/cuda/common/bias_sums.cuh>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::attention::cuda {
namespace {

namespace core_device = gradtile::cuda::device;

constexpr int threads_per_row = 128;
constexpr int warps_per_row = threads_per_row / 32;

/// Combines one value from every thread in the block, in a fixed order. All threads get the result.
template <class A, class Combine>
__device__ A reduce_over_block(A value, Combine combine) {
    __shared__ A warp_values[warps_per_row];
    value = core_device::reduce_lanes<32>(value, combine);
    __syncthreads();  // all threads have read the previous reduction's values
    if (threadIdx.x % 32 == 0) warp_values[threadIdx.x / 32] = value;
    __syncthreads();
    A result = warp_values[0];
    for (int warp = 1; warp < warps_per_row; ++warp) result = combine(result, warp_values[warp]);
    return result;
}

/// Mask and score rules for all rows in a call.
struct RowRules {
    Mask mask;
    ScoreOptions scores;
    std::int64_t heads;
    PackedOffsets packed;
    RowRanges row_ranges;

    /// Whether a row's ranges contain its query; i counts from the sequence's start.
    __device__ bool ranges_see(std::int64_t row, std::int64_t i, std::int64_t key) const {
        return row_ranges.sees(row / mask.queries / heads, row / mask.queries % heads, i, key);
    }
    __device__ device::SequenceOfPair sequence_of(std::int64_t row) const {
        return device::SequenceOfPair::from_query(mask, packed, row / mask.queries / heads,
                                                  row % mask.queries);
    }
    template <class A>
    __device__ ScoreRule<A> rule_of(std::int64_t row) const {
        return device::rule_of<A>(sequence_of(row), scores, row / mask.queries % heads);
    }
};

/// Replaces the products s [rows, keys] by P: probabilities for visible keys, 0 for the others. One thread
/// block per row; row = (batch, head, query). `derivatives` [rows, keys] receives the score derivatives with
/// respect to the products. lse and derivatives may be null. With drops_elements, dropout multiplies P.
template <class T>
__global__ void softmax_kernel(T* s, T* derivatives, Accumulator<T>* lse,
                               const __grid_constant__ RowRules rules, bool drops_elements) {
    using A = Accumulator<T>;
    const std::int64_t row = blockIdx.x, query = row % rules.mask.queries;
    const device::SequenceOfPair sequence = rules.sequence_of(row);
    const IndexRange visible = sequence.visible_keys(query);
    const int i = static_cast<int>(query - sequence.first_query);
    const auto key = [&](std::int64_t j) { return static_cast<int>(j - sequence.first_key); };
    T* const p = s + row * rules.mask.keys;
    const A infinity = static_cast<A>(HUGE_VAL);
    const ScoreRule<A> rule = rules.rule_of<A>(row);

    A maximum = rule.sink;
    for (std::int64_t j = visible.begin + threadIdx.x; j < visible.end; j += threads_per_row) {
        if (!rules.ranges_see(row, i, j)) {
            p[j] = core_device::convert<T>(-infinity);
            if (derivatives) derivatives[row * rules.mask.keys + j] = T{};
            continue;
        }
        if (!rules.scores.plain) {
            const auto score = device::score_of<T>(rule, core_device::convert<A>(p[j]), i, key(j));
            p[j] = core_device::convert<T>(score.value);
            if (derivatives)
                derivatives[row * rules.mask.keys + j] = core_device::convert<T>(score.derivative);
        }
        maximum = max(maximum, core_device::convert<A>(p[j]));
    }
    maximum = reduce_over_block(maximum, [](A a, A b) { return max(a, b); });
    const A reference = maximum == -infinity ? A(0) : maximum;
    A sum = 0;
    for (std::int64_t j = visible.begin + threadIdx.x; j < visible.end; j += threads_per_row)
        sum += exp(core_device::convert<A>(p[j]) - reference);
    sum = reduce_over_block(sum, [](A a, A b) { return a + b; }) + exp(rule.sink - reference);
    for (std::int64_t j = threadIdx.x; j < rules.mask.keys; j += threads_per_row) {
        A probability = 0;
        if (j >= visible.begin && j < visible.end && sum != 0)
            probability = exp(core_device::convert<A>(p[j]) - reference) / sum;
        if (drops_elements) probability *= device::kept(rule, i, key(j)) * rule.dropout_scale;
        p[j] = core_device::convert<T>(probability);
    }
    if (lse && threadIdx.x == 0) lse[row] = sum == 0 ? -infinity : maximum + log(sum);
}

/// Replaces d_p [rows, keys] by dS = P * (Z dP - D) for visible keys, 0 for the others, and P by Z P. Z holds
/// dropout's factors; D = rowsum(P * Z dP) - d_lse. lse and d_lse may be null; delta receives D unless delta
/// is null.
template <class T>
__global__ void softmax_backward_kernel(T* d_p, T* probabilities, const Accumulator<T>* lse,
                                        const Accumulator<T>* d_lse, Accumulator<T>* delta,
                                        const __grid_constant__ RowRules rules) {
    using A = Accumulator<T>;
    const std::int64_t row = blockIdx.x, query = row % rules.mask.queries;
    const device::SequenceOfPair sequence = rules.sequence_of(row);
    const IndexRange visible = sequence.visible_keys(query);
    T* const d_s = d_p + row * rules.mask.keys;
    T* const p = probabilities + row * rules.mask.keys;
    const ScoreRule<A> rule = rules.rule_of<A>(row);
    const auto factor = [&](std::int64_t j) {
        return device::kept(rule, static_cast<int>(query - sequence.first_query),
                            static_cast<int>(j - sequence.first_key)) *
               rule.dropout_scale;
    };

    const auto sees = [&](std::int64_t j) {
        return j >= visible.begin && j < visible.end &&
               rules.ranges_see(row, query - sequence.first_query, j);
    };
    A mean = 0;
    for (std::int64_t j = visible.begin + threadIdx.x; j < visible.end; j += threads_per_row)
        if (sees(j)) mean += core_device::convert<A>(p[j]) * core_device::convert<A>(d_s[j]) * factor(j);
    mean = reduce_over_block(mean, [](A a, A b) { return a + b; });
    if (d_lse && lse[row] != static_cast<A>(-HUGE_VAL)) mean -= d_lse[row];
    if (delta && threadIdx.x == 0) delta[row] = mean;
    for (std::int64_t j = threadIdx.x; j < rules.mask.keys; j += threads_per_row) {
        const A probability = core_device::convert<A>(p[j]);
        const A d_score = sees(j) ? probability * (core_device::convert<A>(d_s[j]) * factor(j) - mean) : A(0);
        d_s[j] = core_device::convert<T>(d_score);
        if (rule.drops()) p[j] = core_device::convert<T>(probability * factor(j));
    }
}

/// Multiplies dS [rows, keys] by the score derivatives, for visible keys.
template <class T>
__global__ void differentiate_scores_kernel(T* d_s, const T* derivatives,
                                            const __grid_constant__ RowRules rules) {
    using A = Accumulator<T>;
    const std::int64_t row = blockIdx.x, begin = row * rules.mask.keys;
    const IndexRange visible = rules.sequence_of(row).visible_keys(row % rules.mask.queries);
    for (std::int64_t j = visible.begin + threadIdx.x; j < visible.end; j += threads_per_row)
        d_s[begin + j] = core_device::convert<T>(core_device::convert<A>(d_s[begin + j]) *
                                                 core_device::convert<A>(derivatives[begin + j]));
}

/// Computes a bias gradient as a sum over dS [B, H, Sq, Sk]. Each thread block computes one gradient element.
template <class T>
__global__ void sum_bias_gradient_kernel(const T* d_s, const __grid_constant__ BiasGradient g, int heads,
                                         std::int64_t queries, std::int64_t keys) {
    using A = Accumulator<T>;
    const device::BiasBlock block(g, queries, keys, 1, 1);
    A sum = 0;
    const int count = block.count(g);
    for (int n = static_cast<int>(threadIdx.x); n < count; n += threads_per_row) {
        const auto [batch, head, i, j] = block(g, n);
        sum += core_device::convert<A>(d_s[((std::int64_t{batch} * heads + head) * queries + i) * keys + j]);
    }
    sum = reduce_over_block(sum, [](A a, A b) { return a + b; });
    if (threadIdx.x == 0) block.store(g, 0, 0, sum, queries, keys);
}

/// The same for packed sequences, whose rows and keys are parts of dS [1, H, rows, keys].
template <class T>
__global__ void sum_packed_bias_gradient_kernel(const T* d_s,
                                                const __grid_constant__ device::PackedBiasGradient packed,
                                                const __grid_constant__ Mask mask) {
    using A = Accumulator<T>;
    const BiasGradient& g = packed.gradient;
    const device::BiasBlock block(g, packed.rows, packed.keys, 1, 1);
    const IndexRange sequences = packed.sequences_of(block);
    A sum = 0;
    for (std::int64_t s = sequences.begin; s < sequences.end; ++s) {
        const device::SequenceOfPair sequence(mask, packed.packed, static_cast<int>(s));
        const auto [rows, keys] = packed.pairs_of(block, sequence);
        if (rows.end > sequence.mask.queries || keys.begin < 0 || keys.end > sequence.mask.keys) continue;
        const std::int64_t of_head = (rows.end - rows.begin) * (keys.end - keys.begin);
        for (std::int64_t n = threadIdx.x; n < g.summed_heads * of_head; n += threads_per_row) {
            const std::int64_t head = block.head * g.summed_heads + n / of_head,
                               i = rows.begin + n % of_head / (keys.end - keys.begin),
                               j = keys.begin + n % (keys.end - keys.begin);
            sum += core_device::convert<A>(
                d_s[(head * mask.queries + sequence.first_query + i) * mask.keys + sequence.first_key + j]);
        }
    }
    sum = reduce_over_block(sum, [](A a, A b) { return a + b; });
    if (threadIdx.x == 0) block.store(g, 0, 0, sum, packed.rows, packed.keys);
}

/// Computes the bias gradients for which `into` has tensors from dS [B, H, Sq, Sk].
template <class T>
void sum_bias_gradients(const Context& ctx, const ResolvedOptions& options, const T* d_s, const Tensor& q,
                        const Gradients& into) {
    const std::int64_t heads = q.size(2), queries = options.mask.queries, keys = options.mask.keys;
    for (std::size_t n = 0; n < max_biases; ++n) {
        const Tensor& d_bias = into.biases[n];
        if (!d_bias.defined() || d_bias.elements() == 0) continue;
        if (options.packed) {
            const device::PackedBiasGradient packed(d_bias, options.scores.biases[n], options, heads);
            gradtile::cuda::launch(ctx, sum_packed_bias_gradient_kernel<T>,
                                   dim3(device::bias_blocks(packed.gradient, packed.rows, packed.keys, 1, 1)),
                                   {.threads = threads_per_row}, d_s, packed, options.mask);
            continue;
        }
        const BiasGradient gradient(d_bias, options.scores.biases[n], q.size(0), heads);
        gradtile::cuda::launch(
            ctx, sum_bias_gradient_kernel<T>, dim3(device::bias_blocks(gradient, queries, keys, 1, 1)),
            {.threads = threads_per_row}, d_s, gradient, static_cast<int>(heads), queries, keys);
    }
}

/// Launches a kernel with one thread block per row.
template <class Kernel, class... Arguments>
void for_every_row(const Context& ctx, std::int64_t rows, Kernel kernel, Arguments... arguments) {
    if (rows == 0) return;
    check(rows <= INT32_MAX, "attention: naive on CUDA takes at most 2^31 - 1 rows, not ", rows);
    gradtile::cuda::launch(ctx, kernel, dim3(static_cast<unsigned>(rows)), {.threads = threads_per_row},
                           arguments...);
}

/// Sets the rows after the last packed sequence to 0: the matrix products use whole matrices, and a NaN in
/// these rows would reach every sequence. x [heads, rows, columns]; one thread block per head.
template <class T>
__global__ void clear_rest_kernel(T* x, PackedOffsets packed, bool has_query_rows, std::int64_t rows,
                                  std::int64_t columns) {
    const int first = (has_query_rows ? packed.queries(packed.count) : packed.keys(packed.count)).begin;
    T* const head = x + blockIdx.x * rows * columns;
    for (std::int64_t i = first * columns + threadIdx.x; i < rows * columns; i += threads_per_row)
        head[i] = T{};
}

/// A [B, S, H, D] tensor copied to the order [B, H, S, D]. In the copy, query heads that share a K/V head are
/// adjacent, so their rows form one matrix: [B * Hkv, group * Sq, D].
class ByHead {
  public:
    ByHead(const Context& ctx, const Tensor& x, std::int64_t key_heads)
        : view_(x.transpose(1, 2)),
          packed_(empty(ctx, view_.shape(), x.dtype())),
          matrices_(packed_.reshape(
              {x.size(0) * key_heads, key_heads == 0 ? 0 : x.size(2) / key_heads * x.size(1), x.size(3)})) {}
    void load(const Context& ctx) const { copy(ctx, packed_, view_); }
    template <class T>
    void clear_rest(const Context& ctx, const PackedOffsets& packed, bool has_query_rows) const {
        if (!packed || packed_.elements() == 0) return;
        gradtile::cuda::launch(ctx, clear_rest_kernel<T>, dim3(static_cast<unsigned>(packed_.size(1))),
                               {.threads = threads_per_row}, packed_.data<T>(), packed, has_query_rows,
                               packed_.size(2), packed_.size(3));
    }
    void store(const Context& ctx) const { copy(ctx, view_, packed_); }
    const Tensor& matrices() const { return matrices_; }

  private:
    Tensor view_;
    Tensor packed_;
    Tensor matrices_;
};

RowRules rules_of(const ResolvedOptions& options, const Tensor& q) {
    return {options.mask, options.scores, q.size(2), PackedOffsets(options), options.row_ranges};
}

template <class T>
void naive_forward_typed(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                         const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v, &o_out = saved.o, &lse = saved.lse;
    const std::int64_t key_heads = k_in.size(2);
    const ByHead q(ctx, q_in, key_heads), k(ctx, k_in, key_heads), v(ctx, v_in, key_heads),
        o(ctx, o_out, key_heads);
    const Scratch scratch(ctx, plan);
    const Tensor p = scratch[ScratchUse::scores];
    if (ctx.is_planning()) return;
    const PackedOffsets packed(options);
    for (const ByHead* x : {&q, &k, &v}) {
        x->load(ctx);
        x->clear_rest<T>(ctx, packed, x == &q);
    }
    gemm(ctx, p, q.matrices(), k.matrices(), {.trans_b = true, .alpha = options.scale});
    for_every_row(ctx, p.size(0) * p.size(1), softmax_kernel<T>, p.data<T>(), static_cast<T*>(nullptr),
                  lse.data<Accumulator<T>>(), rules_of(options, q_in), /*drops_elements=*/true);
    gemm(ctx, o.matrices(), p, v.matrices());
    o.store(ctx);
    find_non_finite(ctx, options, saved.o);
}

template <class T>
void naive_backward_typed(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                          const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    using A = Accumulator<T>;
    const std::int64_t key_heads = saved.k.size(2), queries = saved.q.size(1);
    const ByHead q(ctx, saved.q, key_heads), k(ctx, saved.k, key_heads), v(ctx, saved.v, key_heads),
        d_o(ctx, d_out.o, key_heads);
    const ByHead d_q(ctx, into.q, key_heads), d_k(ctx, into.k, key_heads), d_v(ctx, into.v, key_heads);
    const Scratch scratch(ctx, plan);
    const Tensor p = scratch[ScratchUse::scores], d_s = scratch[ScratchUse::d_scores],
                 derivatives = scratch[ScratchUse::derivatives], delta = scratch[ScratchUse::delta];
    const bool changes_products = options.scores.changes_products();
    const Readable d_lse = contiguous(ctx, d_out.lse);
    if (ctx.is_planning()) return;
    const PackedOffsets packed(options);
    for (const ByHead* x : {&q, &k, &v, &d_o}) {
        x->load(ctx);
        x->clear_rest<T>(ctx, packed, x == &q || x == &d_o);
    }
    d_lse.load(ctx);
    const std::int64_t rows = p.size(0) * p.size(1);
    const RowRules rules = rules_of(options, saved.q);
    gemm(ctx, p, q.matrices(), k.matrices(), {.trans_b = true, .alpha = options.scale});
    for_every_row(ctx, rows, softmax_kernel<T>, p.data<T>(),
                  changes_products ? derivatives.data<T>() : nullptr, static_cast<A*>(nullptr), rules,
                  /*drops_elements=*/false);
    gemm(ctx, d_s, d_o.matrices(), v.matrices(), {.trans_b = true});  // dP
    for_every_row(ctx, rows, softmax_backward_kernel<T>, d_s.data<T>(), p.data<T>(),
                  static_cast<const A*>(saved.lse.data<A>()), data_or_null<A>(d_lse.tensor()),
                  into.sink.defined() ? delta.data<A>() : nullptr, rules);
    sum_bias_gradients<T>(ctx, options, d_s.data<T>(), saved.q, into);
    if (into.sink.defined())
        launch_sink_gradient<A>(ctx, options.scores, saved.lse, delta.data<A>(), queries, 1.0, into.sink);
    if (changes_products)
        for_every_row(ctx, rows, differentiate_scores_kernel<T>, d_s.data<T>(),
                      static_cast<const T*>(derivatives.data<T>()), rules);
    gemm(ctx, d_q.matrices(), d_s, k.matrices(), {.alpha = options.scale});
    // The next two products sum over the rows of all query heads that share a K/V head.
    gemm(ctx, d_k.matrices(), d_s, q.matrices(), {.trans_a = true, .alpha = options.scale});
    gemm(ctx, d_v.matrices(), p, d_o.matrices(), {.trans_a = true});
    for (const ByHead* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    find_non_finite_gradients(ctx, options, into);
}

}  // namespace

void naive_forward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                   const Saved& saved) {
    visit_gpu_dtype(saved.q.dtype(),
                    [&]<class T>(TypeTag<T>) { naive_forward_typed<T>(ctx, plan, options, saved); });
}

void naive_backward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                    const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    visit_gpu_dtype(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        naive_backward_typed<T>(ctx, plan, options, saved, d_out, into);
    });
}

}  // namespace gradtile::attention::cuda
