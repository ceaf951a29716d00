// decode.h on the GPU: launches the plan's kernel, of decode/lanes.cuh, decode/tiles.cuh or sm90/decode.cuh.
#include <gradtile/attention/cuda/sm90/hopper.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/cuda/decode/lanes.cuh>
#include <gradtile/attention/cuda/decode/tiles.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace decoding;

/// Calls f<lanes, vectors>() for the smallest kernel whose lanes hold a head.
template <class T, class F>
void visit_lanes(std::int64_t head_dim, F&& f) {
    constexpr std::int64_t n = 16 / static_cast<std::int64_t>(sizeof(T));
    if (head_dim <= 8 * n) return f.template operator()<8, 1>();
    if (head_dim <= 16 * n) return f.template operator()<16, 1>();
    if (head_dim <= 32 * n) return f.template operator()<32, 1>();
    if constexpr (sizeof(T) == 4) return f.template operator()<32, 2>();
    throw Error(concat("decode: head_dim ", head_dim, " has no kernel"));
}

/// Calls f<queries, several_tokens>() for a plan in lanes.
template <bool has_tiles, class F>
void visit_queries(const DecodePlan& plan, bool several_tokens, F&& f) {
    if (plan.queries_together == 1) return f.template operator()<1, false>();
    if (plan.queries_together == 2) return f.template operator()<2, false>();
    if constexpr (!has_tiles) {
        if (plan.queries_together == 4)
            return several_tokens ? f.template operator()<4, true>() : f.template operator()<4, false>();
        return several_tokens ? f.template operator()<8, true>() : f.template operator()<8, false>();
    }
    throw Error(concat("decode: ", plan.queries_together, " queries together have no kernel"));
}

/// Calls f<columns, row_tiles>() for a plan in tiles.
template <class F>
void visit_tiles(const DecodePlan& plan, std::int64_t head_dim, F&& f) {
    visit_head_dim(HeadDims<32, 64, 128>{}, static_cast<int>(head_dim), [&]<int dim>(HeadDim<dim>) {
        if (plan.queries_together == 16) return f.template operator()<dim, 1>();
        if (plan.queries_together == 32) return f.template operator()<dim, 2>();
        if constexpr (DecodePlan::max_queries_in_tiles(dim) >= 64) f.template operator()<dim, 4>();
    });
}

void check_vectors(const Tensor& x) {
    const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
    bool is_aligned = reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0;
    for (int axis = 0; axis + 1 < x.rank(); ++axis)
        is_aligned = is_aligned && (x.size(axis) == 1 || x.stride(axis) * size % 16 == 0);
    check(is_aligned, "decode: ", x, " with strides ", x.strides(), "; expected heads on 16-byte boundaries");
}

template <class T>
Heads<T> heads_of(const Tensor& x) {
    return {x.data<std::remove_const_t<T>>(), x.stride(0), x.stride(1), x.stride(2)};
}

}  // namespace

void decode(const Context& ctx, const Tensor& o, const Tensor& lse, const DecodeInputs& in,
            const DecodeCache& cache, const ResolvedOptions& options, const DecodeScratch& scratch) {
    const std::int64_t texts = in.q.size(0), tokens = in.q.size(1), heads = in.q.size(2), dim = in.q.size(3),
                       kv_heads = cache.k.size(2);
    const auto problem = DecodeProblem::of(texts, tokens, heads, cache);
    const DecodePlan plan = DecodePlan::of(problem, /*has_warpgroups=*/why_no_sm90(ctx.device()) == nullptr);
    const std::int64_t blocks = kv_heads * plan.query_sets;
    check(scratch.counters.elements() >= texts * blocks &&
              scratch.o.size(0) >= texts * tokens * heads * plan.splits && scratch.o.size(1) == dim,
          "decode: scratch memory of ", scratch.counters, " and ", scratch.o, " is too small for ", texts,
          " texts, ", tokens, " tokens and ", heads, " heads");
    check(texts <= 65535 && blocks <= 65535, "decode: ", texts, " texts and ", blocks,
          " sets of heads; expected at most 65535 of each");
    for (const Tensor* x : {&o, &in.q, &in.k, &in.v, &cache.k, &cache.v}) check_vectors(*x);
    const auto launch_kernel = [&]<class T>(TypeTag<T>) {
        const DecodeParameters<T> p{.q = heads_of<const T>(in.q),
                                    .k = heads_of<const T>(in.k),
                                    .v = heads_of<const T>(in.v),
                                    .o = heads_of<T>(o),
                                    .lse = data_or_null<float>(lse),
                                    .cached_k = heads_of<T>(cache.k),
                                    .cached_v = heads_of<T>(cache.v),
                                    .slots = in.slots.data<std::int32_t>(),
                                    .positions = in.positions.data<std::int32_t>(),
                                    .heads = static_cast<int>(heads),
                                    .kv_heads = static_cast<int>(kv_heads),
                                    .group = static_cast<int>(heads / kv_heads),
                                    .head_dim = static_cast<int>(dim),
                                    .tokens = static_cast<int>(tokens),
                                    .query_sets = plan.query_sets,
                                    .blocks = BlockTable(cache.k, cache.table),
                                    .context = static_cast<int>(cache.context()),
                                    .mask = device::DeviceMask(options.mask),
                                    .scores = options.scores,
                                    .scale = static_cast<float>(options.scale),
                                    .cluster_log2 = 0,
                                    .cheap_splits = DecodePlan::max_cluster,
                                    .counters = scratch.counters.data<std::int32_t>(),
                                    .part_o = scratch.o.data<float>(),
                                    .part_sums = scratch.sums.data<float>()};
        if constexpr (sizeof(T) == 2) {
            if (plan.kernel == DecodeKernel::warpgroups) return launch_hopper_decode(ctx, problem, plan, p);
            if (plan.kernel == DecodeKernel::tiles)
                return visit_tiles(plan, dim, [&]<int columns, int row_tiles>() {
                    launch_decode<TilesThread<T, TilesBlock<T, columns, row_tiles>>>(ctx, problem, plan, p);
                });
        }
        visit_lanes<T>(dim, [&]<int lanes, int vectors>() {
            constexpr bool has_tiles =
                sizeof(T) == 2 && lanes * vectors * 16 <= 2 * DecodePlan::max_dim_in_tiles;
            visit_queries<has_tiles>(plan, tokens > 1, [&]<int queries, bool several_tokens>() {
                launch_decode<LanesThread<T, LanesBlock<T, lanes, vectors, queries, several_tokens>>>(
                    ctx, problem, plan, p);
            });
        });
    };
    switch (in.q.dtype()) {
        case DType::f32:
            return launch_kernel(TypeTag<float>{});
        case DType::bf16:
        case DType::f16:
            return visit_16bit(in.q.dtype(), launch_kernel);
        default:
            throw Error(concat("decode: no kernel for ", in.q.dtype()));
    }
}

}  // namespace gradtile::attention::cuda
