// Runs plans for memory_efficient and flash1 on the GPU: copies tensors whose layout kernels cannot read, and
// launches the kernels. 16-bit numbers use tensor cores, float32 and float64 do not.
#include <algorithm>
#include <numbers>

#include <gradtile/attention/cuda/common/bias_gradients.h>
#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/literature/literature.h>
#include <gradtile/attention/cuda/literature/parameters.h>
#include <gradtile/attention/cuda/sm80/launch.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/attention/cuda/common/backward_rows.cuh>
#include <gradtile/attention/cuda/common/row_statistics.cuh>
#include <gradtile/attention/cuda/literature/sum_parts.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace tiled;
using device::has_vector_rows, device::tensor_view;

/// Kernels with tensor cores read and write rows 16 bytes at a time. Copies are padded with zero columns,
/// which change no result.
constexpr std::int64_t vector_columns = 8;

template <class T>
constexpr bool has_tensor_cores = sizeof(T) == 2;

template <class T>
Readable readable(const Context& ctx, const Tensor& x) {
    if constexpr (has_tensor_cores<T>) return {ctx, x, has_vector_rows(x), vector_columns};
    return {ctx, x};
}
/// An output with dtype T, or sums with dtype Accumulator<T>.
template <class T>
Writable output_of(const Context& ctx, const Tensor& x) {
    if constexpr (has_tensor_cores<T>) return {ctx, x, x.dtype(), has_vector_rows(x), vector_columns};
    return {ctx, x, x.dtype()};
}
template <class T>
Writable sums_of(const Context& ctx, const Tensor& x) {
    if constexpr (has_tensor_cores<T>) return {ctx, x, DType::f32, /*direct=*/false, vector_columns};
    return {ctx, x, x.dtype()};
}

/// Runs a forward pass. `saved` has all tensors that the algorithm writes.
template <class T>
void forward_typed(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                   void (*launch)(const Context&, const TiledForwardParameters<T>&), bool sums_output) {
    using A = Accumulator<T>;
    const device::DeviceMask mask(options.mask);
    const Readable q = readable<T>(ctx, saved.q), k = readable<T>(ctx, saved.k),
                   v = readable<T>(ctx, saved.v);
    const Writable o = sums_output ? sums_of<T>(ctx, saved.o) : output_of<T>(ctx, saved.o);
    if (ctx.is_planning() || saved.lse.elements() == 0) return;
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    launch(ctx, {.q = tensor_view<const T>(q.tensor()),
                 .k = tensor_view<const T>(k.tensor()),
                 .v = tensor_view<const T>(v.tensor()),
                 .o = tensor_view<T>(o.tensor()),
                 .o_sums = tensor_view<A>(o.tensor()),
                 .lse = saved.lse.data<A>(),
                 .lse_remainder = data_or_null<A>(saved.lse_remainder),
                 .row_max = data_or_null<A>(saved.row_max),
                 .row_sum = data_or_null<A>(saved.row_sum),
                 .batch_size = static_cast<int>(saved.q.size(0)),
                 .sizes = device::sizes_of(q.tensor(), k.tensor(), v.tensor()),
                 .mask = mask,
                 .scale = static_cast<A>(options.scale),
                 .scores = options.scores});
    o.store(ctx);
    find_non_finite(ctx, options, saved.o);
}

/// exp(remainder) per row: memory_efficient divides exp(score - LSE) by it.
template <class A>
struct RemainderFactor {
    const A* remainder;
    __device__ A operator()(std::int64_t row) const { return exp(remainder[row]); }
};
/// Each row's LSE remainder, from flash1's m and l.
template <class A>
struct RemainderOfSums {
    const A *lse, *row_max, *row_sum;
    __device__ A operator()(std::int64_t row) const {
        return row_sum[row] == 0 ? A(0) : row_max[row] - lse[row] + log(row_sum[row]);
    }
};
template <class A, class F>
__global__ void map_rows_kernel(A* out, std::int64_t rows, F f) {
    const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (row < rows) out[row] = f(row);
}
template <class A, class F>
void map_rows(const Context& ctx, const Tensor& out, const F& f) {
    if (out.elements() == 0) return;
    constexpr int threads = 256;
    gradtile::cuda::launch(ctx, map_rows_kernel<A, F>, gradtile::cuda::blocks_for(out.elements(), threads),
                           {.threads = threads}, out.data<A>(), out.elements(), f);
}

/// 16-bit bias gradients: their kernels read LSE and D in padded rows.
template <class T>
void add_16bit_bias_gradients(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                              const Readable& q, const Readable& k, const Readable& v, const Readable& o,
                              const Readable& d_o, const Saved& saved, const Tensor& statistics,
                              const float* lse_remainder, const float* d_lse, const Gradients& into) {
    const auto view = [](const Readable& x) { return tensor_view<const std::uint16_t>(x.tensor()); };
    const std::int64_t batch_heads = statistics.size(1), padded_rows = statistics.size(2);
    const Bits16BackwardParameters parameters{
        .q = view(q),
        .k = view(k),
        .v = view(v),
        .o = view(o),
        .d_o = view(d_o),
        .d_q = {},
        .d_k = {},
        .d_v = {},
        .lse = saved.lse.data<float>(),
        .lse_remainder = lse_remainder,
        .d_lse = d_lse,
        .lse_log2 = statistics.data<float>(),
        .delta = statistics.data<float>() + batch_heads * padded_rows,
        .non_finite = nullptr,
        .has_large_lse = nullptr,
        .d_q_sums = nullptr,
        .turns = nullptr,
        .next_task = nullptr,
        .first_batch = 0,
        .batch_size = static_cast<int>(saved.q.size(0)),
        .sizes = device::sizes_of(q.tensor(), k.tensor(), v.tensor()),
        .padded_rows = static_cast<int>(padded_rows),
        .mask = device::DeviceMask(options.mask),
        .order = {},
        .scale_log2 = static_cast<float>(std::numbers::log2e * options.scale),
        .scale = static_cast<float>(options.scale),
        .dropout_scale = static_cast<float>(options.scores.dropout.scale),
        .scores = options.scores,
        .rule = RuleKind::any,
        .packed = {},
        .key_tasks = {},
        .padded_tasks = {}};
    if (const std::int64_t rows = batch_heads * padded_rows; rows > 0)
        gradtile::cuda::launch(ctx, device::prepare_backward_kernel<T>,
                               gradtile::cuda::blocks_for(rows, device::prepared_rows),
                               {.threads = 256, .starts_early = true}, parameters, TurnTiles{}, 0);
    for (std::size_t n = 0; n < max_biases; ++n)
        if (const Tensor& d_bias = into.biases[n]; d_bias.defined() && d_bias.elements() > 0)
            launch_bias_gradient<T>(
                parameters, plan.tiles,
                BiasGradient(d_bias, options.scores.biases[n], saved.q.size(0), saved.q.size(2)),
                static_cast<cudaStream_t>(ctx.stream()));
}

template <class T>
void backward_typed(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                    const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    using A = Accumulator<T>;
    const device::DeviceMask mask(options.mask);
    const Readable q = readable<T>(ctx, saved.q), k = readable<T>(ctx, saved.k),
                   v = readable<T>(ctx, saved.v), o = readable<T>(ctx, saved.o),
                   d_o = readable<T>(ctx, d_out.o);
    const Readable d_lse = contiguous(ctx, d_out.lse);
    const Writable d_q = sums_of<T>(ctx, into.q), d_k = sums_of<T>(ctx, into.k),
                   d_v = sums_of<T>(ctx, into.v);
    const Scratch scratch(ctx, plan);
    const Tensor delta = scratch[ScratchUse::delta], scaled_lse = scratch[ScratchUse::lse],
                 parts = scratch[ScratchUse::d_q_parts];
    // exp(LSE remainder) for memory_efficient, the remainder itself for flash1's bias gradients.
    const Tensor remainders = scratch[ScratchUse::remainders];
    const bool is_flash1 = plan.family == Family::flash1,
               has_remainder = options.scores.has_biases() && (is_flash1 || saved.lse_remainder.defined());
    if (ctx.is_planning()) return;
    gradtile::cuda::use_device(ctx.device());
    for (const Readable* x : {&q, &k, &v, &o, &d_o}) x->load(ctx);
    if (d_out.lse.defined()) d_lse.load(ctx);
    device::launch_row_statistics<T>(ctx, delta, scaled_lse, saved.lse, /*lse_factor=*/1.0, o.tensor(),
                                     d_o.tensor(),
                                     /*cleared=*/{}, d_lse.tensor(), /*delta_factor=*/1.0);
    const A* lse_remainder = data_or_null<A>(saved.lse_remainder);
    if (has_remainder && is_flash1) {
        map_rows<A>(
            ctx, remainders,
            RemainderOfSums<A>{saved.lse.data<A>(), saved.row_max.data<A>(), saved.row_sum.data<A>()});
        lse_remainder = remainders.data<A>();
    } else if (has_remainder) {
        map_rows<A>(ctx, remainders, RemainderFactor<A>{lse_remainder});
    }
    // The dQ parts that thread blocks sum at the same time. If there is only one part, dQ itself is the part.
    const bool has_parts = parts.size(0) > 0;
    const Tensor d_q_sums = has_parts ? parts.select(0, 0) : d_q.tensor();
    if (is_flash1) {
        fill(ctx, has_parts ? parts : d_q.tensor(), 0);
    } else {
        fill(ctx, d_k.tensor(), 0);
        fill(ctx, d_v.tensor(), 0);
    }
    const TiledBackwardParameters<T> parameters{
        .q = tensor_view<const T>(q.tensor()),
        .k = tensor_view<const T>(k.tensor()),
        .v = tensor_view<const T>(v.tensor()),
        .d_o = tensor_view<const T>(d_o.tensor()),
        .d_q = tensor_view<A>(d_q_sums),
        .d_k = tensor_view<A>(d_k.tensor()),
        .d_v = tensor_view<A>(d_v.tensor()),
        .reference = is_flash1 ? saved.row_max.data<A>() : scaled_lse.data<A>(),
        .row_sum = is_flash1       ? saved.row_sum.data<A>()
                   : has_remainder ? remainders.data<A>()
                                   : nullptr,
        .delta = delta.data<A>(),
        .d_q_part_stride = has_parts ? parts.stride(0) : 0,
        .batch_size = static_cast<int>(saved.q.size(0)),
        .splits = plan.schedule.splits,
        .sizes = device::sizes_of(q.tensor(), k.tensor(), v.tensor()),
        .mask = mask,
        .scale = static_cast<A>(options.scale),
        .dropout_scale = static_cast<A>(options.scores.dropout.scale),
        .scores = options.scores};
    is_flash1 ? launch_flash1_backward<T>(ctx, parameters)
              : launch_memory_efficient_backward<T>(ctx, parameters);
    if (has_parts) launch_sum_parts<A>(ctx, d_q.tensor(), parts);
    for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    find_non_finite_gradients(ctx, options, into);
    if constexpr (has_tensor_cores<T>) {
        add_16bit_bias_gradients<T>(ctx, plan, options, q, k, v, o, d_o, saved,
                                    scratch[ScratchUse::statistics], lse_remainder,
                                    data_or_null<float>(d_lse.tensor()), into);
    } else {
        launch_bias_gradients<T>(ctx, options,
                                 {.q = q.tensor(),
                                  .k = k.tensor(),
                                  .v = v.tensor(),
                                  .o = o.tensor(),
                                  .d_o = d_o.tensor(),
                                  .lse = saved.lse.data<A>(),
                                  .lse_remainder = lse_remainder,
                                  .delta = delta.data<A>()},
                                 into);
    }
    if (into.sink.defined())
        launch_sink_gradient(ctx, options.scores, saved.lse, static_cast<const A*>(delta.data<A>()),
                             saved.q.size(1), 1.0, into.sink);
}

template <class T>
void add_tiles(FlashPlan& plan, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
               const Tensor& v) {
    TiledForwardParameters<T> forward{};
    TiledBackwardParameters<T> backward{};
    forward.sizes = backward.sizes = device::sizes_of(q, k, v);
    forward.scores = backward.scores = options.scores;
    const bool is_flash1 = plan.family == Family::flash1;
    const BlockSizes blocks =
        plan.pass == Pass::forward
            ? (is_flash1 ? flash1_forward_blocks<T>(forward) : memory_efficient_forward_blocks<T>(forward))
            : (is_flash1 ? flash1_backward_blocks<T>(backward)
                         : memory_efficient_backward_blocks<T>(backward));
    plan.tiles.rows = blocks.rows;
    plan.tiles.keys = blocks.keys;
}

}  // namespace

void add_literature_tiles(FlashPlan& plan, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                          const Tensor& v) {
    if (plan.family != Family::flash1 && plan.family != Family::memory_efficient) return;
    visit_gpu_dtype(q.dtype(), [&]<class T>(TypeTag<T>) { add_tiles<T>(plan, options, q, k, v); });
}

void literature_forward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                        const Saved& saved) {
    visit_gpu_dtype(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        if (plan.family == Family::flash1)
            return forward_typed<T>(ctx, options, saved, launch_flash1_forward<T>, /*sums_output=*/true);
        forward_typed<T>(ctx, options, saved, launch_memory_efficient_forward<T>,
                         /*sums_output=*/saved.v.size(3) > max_columns_in_registers);
    });
}

void literature_backward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                         const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    visit_gpu_dtype(saved.q.dtype(),
                    [&]<class T>(TypeTag<T>) { backward_typed<T>(ctx, plan, options, saved, d_out, into); });
}

}  // namespace gradtile::attention::cuda
