#include <algorithm>
#include <cmath>
#include <type_traits>

#include <gradtile/attention/cuda/common/bias_gradients.h>
#include <gradtile/attention/cuda/common/bias_sums.cuh>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {

namespace {

using namespace device;

constexpr int sink_threads = 256;

/// One thread block per head. Its threads add in a fixed order.
template <class A>
__global__ void __launch_bounds__(sink_threads)
    sink_gradient_kernel(const float* sink, std::int64_t sink_stride, const A* lse, const A* delta,
                         std::int64_t delta_rows, double delta_factor, int batch_size, int queries,
                         float* into, std::int64_t into_stride, PackedOffsets padded) {
    const int heads = static_cast<int>(gridDim.x), head = static_cast<int>(blockIdx.x);
    const double logit = static_cast<double>(sink[head * sink_stride]);
    double sum = 0;
    for (std::int64_t row = threadIdx.x; row < std::int64_t{batch_size} * queries; row += sink_threads) {
        const std::int64_t batch_head = row / queries * heads + head, i = row % queries;
        const double row_lse = static_cast<double>(lse[batch_head * queries + i]);
        // With a sink, LSE = -inf occurs only in the rows after the last packed sequence, which have no sink.
        if (logit == -HUGE_VAL || row_lse == -HUGE_VAL) continue;
        std::int64_t delta_row = i;
        if (padded) {
            const int sequence = padded.sequence_of_query(static_cast<int>(i)),
                      first = padded.queries(sequence).begin;
            delta_row += packed_padded_row(sequence, first) - first;
        }
        sum -= exp(logit - row_lse) * static_cast<double>(delta[batch_head * delta_rows + delta_row]);
    }
    __shared__ double sums[sink_threads];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int thread = 1; thread < sink_threads; ++thread) sum += sums[thread];
    into[head * into_stride] = static_cast<float>(sum * delta_factor);
}

template <class T>
struct BiasGradientProblem {
    using A = Accumulator<T>;
    TensorView<const T> q, k, v, o, d_o;
    const A *lse, *lse_remainder, *delta, *d_lse;
    const int* enabled;
    A delta_factor;
    Sizes sizes;
    Mask mask;
    A scale;
    ScoreOptions scores;
    RowRanges row_ranges;

    /// D for row i; `statistics` is the row's index in [B, H, Sq].
    __device__ A delta_of(std::int64_t batch, std::int64_t head, std::int64_t i,
                          std::int64_t statistics) const {
        if (delta != nullptr) return delta[statistics] * delta_factor;
        const A sum = dot(d_o.head(batch, head).row(i), o.head(batch, head).row(i), sizes.v_dim);
        return d_lse == nullptr ? sum : sum - d_lse[statistics];
    }
    __device__ static A dot(const T* a, const T* b, int n) {
        A sum = 0;
        for (int c = 0; c < n; ++c)
            sum =
                fma(gradtile::cuda::device::convert<A>(a[c]), gradtile::cuda::device::convert<A>(b[c]), sum);
        return sum;
    }
};

constexpr int bias_tile = 16;  // rows and keys per tile; one thread per pair

/// Returns a pair's dS without the score's derivative; 0 if the sequence has no such pair. (i, j) counts from
/// the sequence's start; `batch` is the batch in the tensors.
template <class T>
__device__ Accumulator<T> d_score_of_pair(const BiasGradientProblem<T>& p, const SequenceOfPair& sequence,
                                          int batch, int head, std::int64_t i, std::int64_t j) {
    using A = Accumulator<T>;
    if (i >= sequence.mask.queries || j < 0 || j >= sequence.mask.keys) return 0;
    const IndexRange visible = sequence.mask.visible_keys(i);
    const std::int64_t row = sequence.first_query + i, key = sequence.first_key + j;
    if (j < visible.begin || j >= visible.end || !p.row_ranges.sees(batch, head, i, key)) return 0;
    const std::int64_t statistics = (std::int64_t{batch} * p.sizes.heads + head) * p.mask.queries + row;
    const A lse = p.lse[statistics];
    if (lse == -static_cast<A>(HUGE_VAL)) return 0;  // all scores in the row are -inf
    const ScoreRule<A> rule = rule_of<A>(sequence, p.scores, head);
    const int key_head = head / p.sizes.group;
    const A product =
        p.scale * p.dot(p.q.head(batch, head).row(row), p.k.head(batch, key_head).row(key), p.sizes.qk_dim);
    const int row_index = static_cast<int>(i), key_index = static_cast<int>(j);
    const A remainder = p.lse_remainder == nullptr ? A(0) : p.lse_remainder[statistics];
    const A probability = exp(score_of<T>(rule, product, row_index, key_index).value - lse - remainder);
    if (probability == 0) return 0;  // a hidden pair's dO, V and D may be NaN
    const A d_p = p.dot(p.d_o.head(batch, head).row(row), p.v.head(batch, key_head).row(key), p.sizes.v_dim);
    const A factor = kept(rule, row_index, key_index) * rule.dropout_scale;
    return probability * (d_p * factor - p.delta_of(batch, head, row, statistics));
}

/// Adds the threads' sums over the axes along which the gradient is a sum, and stores the tile.
template <class A>
__device__ void store_tile(const BiasGradient& g, const BiasBlock& block, A sum, std::int64_t rows,
                           std::int64_t keys) {
    const int x = threadIdx.x / bias_tile, y = threadIdx.x % bias_tile;
    __shared__ A sums[bias_tile][bias_tile];
    sums[x][y] = sum;
    __syncthreads();
    if ((g.sums_rows && x > 0) || (g.sums_keys && y > 0)) return;
    A total = 0;
    for (int r = x; r < (g.sums_rows ? bias_tile : x + 1); ++r)
        for (int c = y; c < (g.sums_keys ? bias_tile : y + 1); ++c) total += sums[r][c];
    block.store(g, x, y, total, rows, keys);
}

/// Computes a gradient tile. Along an axis over which the gradient is summed, the tile has length 1.
template <class T>
__device__ void add_bias_gradient_tile(const BiasGradientProblem<T>& p, const BiasGradient& g,
                                       std::int64_t tile) {
    const BiasBlock block(g, p.mask.queries, p.mask.keys, bias_tile, bias_tile, tile);
    const int x = threadIdx.x / bias_tile, y = threadIdx.x % bias_tile;
    Accumulator<T> sum = 0;
    const int count = block.count(g);
    for (int n = 0; n < count; ++n) {
        const auto [batch, head, row, key] = block(g, n);
        const auto sequence = SequenceOfPair::from_query(p.mask, {}, batch, 0);
        sum += d_score_of_pair(p, sequence, batch, head, row + x, key + y);
    }
    store_tile(g, block, sum, p.mask.queries, p.mask.keys);
}

/// The same for packed sequences.
template <class T>
__device__ void add_bias_gradient_tile(const BiasGradientProblem<T>& p, const PackedBiasGradient& packed,
                                       std::int64_t tile) {
    const BiasGradient& g = packed.gradient;
    const BiasBlock block(g, packed.rows, packed.keys, bias_tile, bias_tile, tile);
    const int x = threadIdx.x / bias_tile, y = threadIdx.x % bias_tile;
    const IndexRange sequences = packed.sequences_of(block);
    Accumulator<T> sum = 0;
    for (std::int64_t s = sequences.begin; s < sequences.end; ++s) {
        const SequenceOfPair sequence(p.mask, packed.packed, static_cast<int>(s));
        const auto [rows, keys] = packed.pairs_of(block, sequence);
        for (int head = block.head * g.summed_heads; head < (block.head + 1) * g.summed_heads; ++head)
            for (std::int64_t row = rows.begin; row < rows.end; row += bias_tile)
                for (std::int64_t key = keys.begin; key < keys.end; key += bias_tile)
                    sum += d_score_of_pair(p, sequence, 0, head, row + x, key + y);
    }
    store_tile(g, block, sum, packed.rows, packed.keys);
}

/// Gradient: BiasGradient or PackedBiasGradient.
template <class T, class Gradient>
__global__ void __launch_bounds__(bias_tile* bias_tile)
    bias_gradient_kernel(const __grid_constant__ BiasGradientProblem<T> p, const __grid_constant__ Gradient g,
                         std::int64_t tiles) {
    gradtile::cuda::device::await_predecessor();
    if (p.enabled != nullptr && *p.enabled == 0) return;
    for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        __syncthreads();  // all threads have read the previous tile's sums
        add_bias_gradient_tile<T>(p, g, tile);
    }
}

}  // namespace

template <class A>
void launch_sink_gradient(const Context& ctx, const ScoreOptions& scores, const Tensor& lse, const A* delta,
                          std::int64_t delta_rows, double delta_factor, const Tensor& into,
                          const PackedOffsets& padded) {
    if (into.elements() == 0) return;
    gradtile::cuda::launch(ctx, sink_gradient_kernel<A>, dim3(static_cast<unsigned>(lse.size(1))),
                           {.threads = sink_threads}, scores.sink, scores.sink_stride, lse.data<A>(), delta,
                           delta_rows, delta_factor, static_cast<int>(lse.size(0)),
                           static_cast<int>(lse.size(2)), into.data<float>(), into.stride(0), padded);
}
template void launch_sink_gradient(const Context&, const ScoreOptions&, const Tensor&, const float*,
                                   std::int64_t, double, const Tensor&, const PackedOffsets&);
template void launch_sink_gradient(const Context&, const ScoreOptions&, const Tensor&, const double*,
                                   std::int64_t, double, const Tensor&, const PackedOffsets&);

template <class T>
void launch_bias_gradients(const Context& ctx, const ResolvedOptions& options,
                           const BiasGradientInputs<T>& inputs, const Gradients& into) {
    const BiasGradientProblem<T> problem{.q = tensor_view<const T>(inputs.q),
                                         .k = tensor_view<const T>(inputs.k),
                                         .v = tensor_view<const T>(inputs.v),
                                         .o = tensor_view<const T>(inputs.o),
                                         .d_o = tensor_view<const T>(inputs.d_o),
                                         .lse = inputs.lse,
                                         .lse_remainder = inputs.lse_remainder,
                                         .delta = inputs.delta,
                                         .d_lse = inputs.d_lse,
                                         .enabled = inputs.enabled,
                                         .delta_factor = inputs.delta_factor,
                                         .sizes = sizes_of(inputs.q, inputs.k, inputs.v),
                                         .mask = options.mask,
                                         .scale = static_cast<Accumulator<T>>(options.scale),
                                         .scores = options.scores,
                                         .row_ranges = options.row_ranges};
    const auto launch = [&](const auto& gradient, std::int64_t tiles) {
        // A call that is usually not enabled should end at once.
        const std::int64_t blocks = inputs.enabled == nullptr ? tiles : std::min<std::int64_t>(tiles, 256);
        gradtile::cuda::launch(ctx, bias_gradient_kernel<T, std::decay_t<decltype(gradient)>>,
                               dim3(static_cast<unsigned>(blocks)),
                               {.threads = bias_tile * bias_tile, .starts_early = true}, problem, gradient,
                               tiles);
    };
    const std::int64_t heads = inputs.q.size(2);
    for (std::size_t n = 0; n < max_biases; ++n) {
        const Tensor& d_bias = into.biases[n];
        if (!d_bias.defined() || d_bias.elements() == 0) continue;
        if (options.packed) {
            const PackedBiasGradient packed(d_bias, options.scores.biases[n], options, heads);
            launch(packed, bias_blocks(packed.gradient, packed.rows, packed.keys, bias_tile, bias_tile));
        } else {
            const BiasGradient gradient(d_bias, options.scores.biases[n], inputs.q.size(0), heads);
            launch(gradient,
                   bias_blocks(gradient, options.mask.queries, options.mask.keys, bias_tile, bias_tile));
        }
    }
}
template void launch_bias_gradients(const Context&, const ResolvedOptions&, const BiasGradientInputs<float>&,
                                    const Gradients&);
template void launch_bias_gradients(const Context&, const ResolvedOptions&, const BiasGradientInputs<double>&,
                                    const Gradients&);
template void launch_bias_gradients(const Context&, const ResolvedOptions&,
                                    const BiasGradientInputs<bfloat16>&, const Gradients&);
template void launch_bias_gradients(const Context&, const ResolvedOptions&,
                                    const BiasGradientInputs<float16>&, const Gradients&);

}  // namespace gradtile::attention::cuda
