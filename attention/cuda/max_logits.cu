// The largest logit of each head: q.k of every visible pair, one thread per pair.
#include <algorithm>
#include <cmath>

#include <gradtile/attention/cuda/common/packed_tasks.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/internal/max_logits_backend.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

namespace core_device = gradtile::cuda::device;

constexpr int tile = 16;  // rows and keys of a thread block
constexpr unsigned no_logit = 0, nan_logit = 0xffffffffu, sign_bit = 0x80000000u;

/// Numbers that are ordered like the logits, with NaN above all of them, for atomicMax.
__device__ unsigned ordered(float logit) {
    if (isnan(logit)) return nan_logit;
    const unsigned bits = __float_as_uint(logit);
    return (bits & sign_bit) != 0 ? ~bits : bits | sign_bit;
}
__device__ float logit_of(unsigned number) {
    if (number == no_logit) return -INFINITY;
    if (number == nan_logit) return NAN;
    return __uint_as_float((number & sign_bit) != 0 ? number & ~sign_bit : ~number);
}

template <class T>
struct MaxLogitsProblem {
    device::TensorView<const T> q, k;
    device::Sizes sizes;
    std::int64_t batch_size;
    Mask mask;
    PackedOffsets packed;
    RowRanges row_ranges;
    Accumulator<T> scale;
};

/// A thread block takes 16 rows of one head at a time. `largest` [Hq] is no_logit at first.
template <class T>
__global__ void __launch_bounds__(tile* tile)
    max_logits_kernel(const __grid_constant__ MaxLogitsProblem<T> p, unsigned* largest) {
    using A = Accumulator<T>;
    core_device::await_predecessor();
    const std::int64_t row_blocks = (p.mask.queries + tile - 1) / tile, heads = p.sizes.heads;
    const int x = threadIdx.x / tile, y = threadIdx.x % tile;
    for (std::int64_t task = blockIdx.x; task < p.batch_size * heads * row_blocks; task += gridDim.x) {
        const std::int64_t batch = task / row_blocks / heads, head = task / row_blocks % heads,
                           i = task % row_blocks * tile + x;
        unsigned number = no_logit;
        if (i < p.mask.queries) {
            const auto sequence = device::SequenceOfPair::from_query(p.mask, p.packed, batch, i);
            const IndexRange visible = sequence.visible_keys(i);
            const T* const row = p.q.head(batch, head).row(i);
            for (std::int64_t j = visible.begin + y; j < visible.end; j += tile) {
                if (!p.row_ranges.sees(batch, head, i - sequence.first_query, j)) continue;
                const T* const key = p.k.head(batch, head / p.sizes.group).row(j);
                A sum = 0;
                for (int c = 0; c < p.sizes.qk_dim; ++c)
                    sum = fma(core_device::convert<A>(row[c]), core_device::convert<A>(key[c]), sum);
                number = max(number, ordered(static_cast<float>(p.scale * sum)));
            }
        }
        number = __reduce_max_sync(~0u, number);
        if (threadIdx.x % 32 == 0 && number != no_logit) atomicMax(largest + head, number);
    }
}

__global__ void store_max_logits_kernel(const unsigned* largest, float* max_logits, std::int64_t stride,
                                        int heads) {
    core_device::await_predecessor();
    const int head = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (head < heads) max_logits[head * stride] = logit_of(largest[head]);
}

template <class T>
void max_logits_typed(const Context& ctx, const ResolvedOptions& options, const Tensor& q_in,
                      const Tensor& k_in, const Tensor& max_logits) {
    const Readable q(ctx, q_in), k(ctx, k_in);
    const Tensor largest = empty(ctx, {q_in.size(2)}, DType::i32);
    if (ctx.is_planning() || q_in.size(2) == 0) return;
    for (const Readable* x : {&q, &k}) x->load(ctx);
    fill(ctx, largest, 0);
    const auto numbers = reinterpret_cast<unsigned*>(largest.data<std::int32_t>());
    const std::int64_t tasks = q_in.size(0) * q_in.size(2) * ceil_div(q_in.size(1), std::int64_t{tile});
    if (tasks > 0 && k_in.size(1) > 0) {
        const MaxLogitsProblem<T> problem{.q = device::tensor_view<const T>(q.tensor()),
                                          .k = device::tensor_view<const T>(k.tensor()),
                                          .sizes = device::sizes_of(q.tensor(), k.tensor(), k.tensor()),
                                          .batch_size = q_in.size(0),
                                          .mask = options.mask,
                                          .packed = PackedOffsets(options),
                                          .row_ranges = options.row_ranges,
                                          .scale = static_cast<Accumulator<T>>(options.scale)};
        constexpr std::int64_t most_blocks = 1 << 20;
        gradtile::cuda::launch(ctx, max_logits_kernel<T>,
                               dim3(static_cast<unsigned>(std::min(tasks, most_blocks))),
                               {.threads = tile * tile, .starts_early = true}, problem, numbers);
    }
    constexpr int threads = 128;
    const auto heads = static_cast<int>(q_in.size(2));
    gradtile::cuda::launch(ctx, store_max_logits_kernel,
                           dim3(static_cast<unsigned>(ceil_div(heads, threads))),
                           {.threads = threads, .starts_early = true}, static_cast<const unsigned*>(numbers),
                           max_logits.data<float>(), max_logits.stride(0), heads);
}

}  // namespace

void max_logits(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                const Tensor& max_logits) {
    visit_gpu_dtype(q.dtype(),
                    [&]<class T>(TypeTag<T>) { max_logits_typed<T>(ctx, options, q, k, max_logits); });
}

}  // namespace gradtile::attention::cuda
