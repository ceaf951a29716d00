// Float32 forward pass for few queries and many keys: see common/few_queries.h. The products are float32,
// without tensor cores. The warps in a thread block divide the rows, and the keys in each key block, among
// themselves. The warps then merge their results by LSE, and the thread blocks that share a row do the same.
#include <algorithm>
#include <cstdint>
#include <numbers>

#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/common/few_queries.h>
#include <gradtile/attention/cuda/f32/f32.h>
#include <gradtile/attention/cuda/f32/tiles.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/merge_splits.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;

struct F32FewQueriesParameters {
    TensorView<const float> q, k, v;
    TensorView<float> o;
    float* lse;            ///< [B, Hq, Sq], natural log
    float* lse_remainder;  ///< [B, Hq, Sq], or null
    int batch_size;
    Sizes sizes;
    DeviceMask mask;
    float scale;
    ScoreOptions scores;
};

/// How lanes and warps divide a key block.
template <int head_dim_, int rows_>
struct FewQueriesPolicy {
    static constexpr F32FewQueriesTiles tiles{head_dim_, rows_};
    static constexpr int head_dim = head_dim_, rows = rows_, warp_rows = tiles.warp_rows(),
                         key_warps = tiles.warps * warp_rows / rows, warp_keys = tiles.keys / key_warps;
    /// In S = Q K^T four lanes share a key. Each lane has a quarter of the columns for every keys_at_once-th
    /// key.
    static constexpr int key_lanes = 4, keys_at_once = 32 / key_lanes, lane_keys = warp_keys / keys_at_once;
    /// In O a lane has `vector` neighbouring columns in each of the `vectors` column parts.
    static constexpr int vector = std::min(4, head_dim / 32), vectors = head_dim / 32 / vector;
    static constexpr int chunks = head_dim / 4;  ///< 16-byte chunks per row
    static constexpr int tile_floats = tiles.keys * head_dim;
};

/// Returns a chunk's position in a K row. Eight lanes read 16 bytes each at the same time: four chunks per
/// row from two neighbouring rows. These eight chunks must be in different banks.
__device__ __forceinline__ int k_chunk(int row, int chunk) {
    return chunk ^ (row & 1) * 4;
}

__device__ __forceinline__ float dot(const float4& a, const float4& b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

template <int n>
__device__ __forceinline__ void read_vector(float (&x)[n], const float* from) {
    if constexpr (n == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else if constexpr (n == 2) {
        const float2 two = *reinterpret_cast<const float2*>(from);
        x[0] = two.x, x[1] = two.y;
    } else {
        x[0] = *from;
    }
}

/// Starts to copy a K or V block. Rows from `valid_rows` on and columns from `valid_columns` on become 0.
template <class Policy, bool is_k>
__device__ __forceinline__ void load_block(float* to, const StridedRows<const float>& rows, int first,
                                           int valid_rows, int valid_columns) {
    for (int n = static_cast<int>(threadIdx.x); n < Policy::tiles.keys * Policy::chunks;
         n += Policy::tiles.threads) {
        const int row = n / Policy::chunks, chunk = n % Policy::chunks;
        const bool exists = row < valid_rows && chunk * 4 < valid_columns;
        const float* const from = exists ? rows.row(first + row) + chunk * 4 : rows.data;
        copy_16_bytes_async(
            shared_address(to + row * Policy::head_dim + (is_k ? k_chunk(row, chunk) : chunk) * 4), from,
            exists);
    }
}

/// s = Q K^T for a warp's rows and keys. All four lanes that share a key receive its products.
template <class Policy>
__device__ __forceinline__ void multiply_q_k(float (&s)[Policy::warp_rows][Policy::lane_keys], const float* q,
                                             const float* k, int lane) {
    constexpr int head_dim = Policy::head_dim;
#pragma unroll
    for (auto& row : s)
#pragma unroll
        for (float& x : row) x = 0;
    const int lane_key = lane / Policy::key_lanes;
#pragma unroll 4
    for (int first = 0; first < Policy::chunks; first += Policy::key_lanes) {
        const int chunk = first + lane % Policy::key_lanes;
        float4 keys[Policy::lane_keys];
#pragma unroll
        for (int n = 0; n < Policy::lane_keys; ++n) {
            const int key = n * Policy::keys_at_once + lane_key;
            keys[n] = *reinterpret_cast<const float4*>(k + key * head_dim + k_chunk(key, chunk) * 4);
        }
#pragma unroll
        for (int r = 0; r < Policy::warp_rows; ++r) {
            const float4 query = *reinterpret_cast<const float4*>(q + r * head_dim + chunk * 4);
#pragma unroll
            for (int n = 0; n < Policy::lane_keys; ++n) s[r][n] = dot(query, keys[n], s[r][n]);
        }
    }
#pragma unroll
    for (auto& row : s)
#pragma unroll
        for (float& x : row) x = row_sum(x);
}

/// Online softmax for one row in a warp, with natural scores. All lanes have the same maximum; the sum is
/// over the lane's keys.
struct WarpSoftmax {
    float maximum = -INFINITY, sum = 0;

    /// Replaces S by P relative to the new maximum, and returns the factor for the previous sums.
    template <int n>
    __device__ __forceinline__ float update(float (&s)[n]) {
        float largest = s[0];
#pragma unroll
        for (const float x : s) largest = fmaxf(largest, x);
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
        const float next = fmaxf(maximum, largest), reference = next == -INFINITY ? 0.0f : next;
        const float factor = power_of_two((maximum - reference) * log2_e);
        maximum = next;
        float block_sum = 0;
#pragma unroll
        for (float& x : s) {
            x = power_of_two((x - reference) * log2_e);
            block_sum += x;
        }
        sum = fmaf(sum, factor, block_sum);
        return factor;
    }
    __device__ __forceinline__ void add_lanes() {
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    }
};

/// Starts to copy the block's queries.
template <class Policy>
__device__ __forceinline__ void start_queries(float* q_tile, const F32FewQueriesParameters& p,
                                              const SplitBlock& own) {
    const int queries = p.mask.queries;
    for (int n = static_cast<int>(threadIdx.x); n < Policy::rows * Policy::chunks;
         n += Policy::tiles.threads) {
        const int row = n / Policy::chunks, chunk = n % Policy::chunks;
        const bool exists = row < own.rows && chunk * 4 < p.sizes.qk_dim;
        const float* const from =
            exists ? p.q.head(own.batch, own.first_head + row / queries).row(row % queries) + chunk * 4
                   : p.q.data;
        copy_16_bytes_async(shared_address(q_tile + n * 4), from, exists);
    }
}

/// o = factor * o + P V for a warp's keys. Each key block has its own sum, so that o is rounded once per key
/// block instead of once per key.
template <class Policy>
__device__ __forceinline__ void add_p_v(float (&o)[Policy::warp_rows][Policy::vectors][Policy::vector],
                                        const float (&factor)[Policy::warp_rows],
                                        const float (&p_tile)[Policy::warp_keys][Policy::warp_rows],
                                        const float* v_rows) {
    constexpr int warp_rows = Policy::warp_rows, vectors = Policy::vectors, vector = Policy::vector;
    float sum[warp_rows][vectors][vector] = {};
#pragma unroll 4
    for (int key = 0; key < Policy::warp_keys; ++key) {
        float probabilities[warp_rows];
        read_vector(probabilities, p_tile[key]);
#pragma unroll
        for (int part = 0; part < vectors; ++part) {
            float values[vector];
            read_vector(values, v_rows + key * Policy::head_dim + part * 32 * vector);
#pragma unroll
            for (int r = 0; r < warp_rows; ++r)
#pragma unroll
                for (int c = 0; c < vector; ++c)
                    sum[r][part][c] = fmaf(probabilities[r], values[c], sum[r][part][c]);
        }
    }
    __syncwarp();  // all lanes have read P, which is overwritten next
#pragma unroll
    for (int r = 0; r < warp_rows; ++r)
#pragma unroll
        for (int part = 0; part < vectors; ++part)
#pragma unroll
            for (int c = 0; c < vector; ++c) o[r][part][c] = fmaf(o[r][part][c], factor[r], sum[r][part][c]);
}

/// Stores a warp's O and LSE in shared memory; `part` is the warp's number among those that share its rows.
template <class Policy, int key_warps, int rows>
__device__ __forceinline__ void store_warp(
    float* warp_o, ExactLse (&warp_lse)[key_warps][rows],
    const float (&o)[Policy::warp_rows][Policy::vectors][Policy::vector],
    WarpSoftmax (&softmax)[Policy::warp_rows], int part, int warp_row, float dropout_scale) {
    constexpr int vector = Policy::vector;
    const int lane = lane_index();
#pragma unroll
    for (int r = 0; r < Policy::warp_rows; ++r) {
        softmax[r].add_lanes();
        const float sum = softmax[r].sum, inverse = sum == 0 ? 0.0f : dropout_scale / sum;
        float* const to = warp_o + (part * rows + warp_row + r) * Policy::head_dim + lane * vector;
#pragma unroll
        for (int n = 0; n < Policy::vectors; ++n)
#pragma unroll
            for (int c = 0; c < vector; ++c) to[n * 32 * vector + c] = o[r][n][c] * inverse;
        if (lane == 0) warp_lse[part][warp_row + r] = ExactLse::of(softmax[r].maximum, sum);
    }
}

/// Merges the warps' results by LSE into O, or into the split's partial result.
template <class Policy, int key_warps, int rows>
__device__ __forceinline__ void merge_warps(const F32FewQueriesParameters& p, const SplitParameters& split,
                                            const float* warp_o, const ExactLse (&warp_lse)[key_warps][rows],
                                            const SplitBlock& own) {
    constexpr int head_dim = Policy::head_dim;
    const int queries = p.mask.queries;
    const bool is_whole = gridDim.x == 1;
    for (int n = static_cast<int>(threadIdx.x); n < own.rows * head_dim; n += Policy::tiles.threads) {
        const int row = n / head_dim, column = n % head_dim;
        const int head = own.first_head + row / queries, query = row % queries;
        if (column >= p.sizes.v_dim) continue;
        LseMerge merge;
        for (int part = 0; part < key_warps; ++part) merge.add(warp_lse[part][row]);
        if (is_whole) merge.add(sink_of(p.scores, head));
        float sum = 0;
        for (int part = 0; part < key_warps; ++part)
            sum =
                fmaf(merge.weight(warp_lse[part][row]), warp_o[(part * rows + row) * head_dim + column], sum);
        const std::int64_t index = (std::int64_t{own.batch} * p.sizes.heads + head) * queries + query;
        if (is_whole) {
            p.o.head(own.batch, head).row(query)[column] = sum;
            if (column == 0) store_lse(p, index, merge.lse());
        } else {
            const std::int64_t part = static_cast<std::int64_t>(blockIdx.x) * split.all_rows + index;
            split.o[part * split.columns + column] = sum;
            if (column == 0) split.lse[part] = merge.lse();
        }
    }
}

template <class Policy, bool has_rule>
__global__ void __launch_bounds__(Policy::tiles.threads, Policy::tiles.blocks_per_sm())
    few_queries_kernel(const __grid_constant__ F32FewQueriesParameters p,
                       const __grid_constant__ SplitParameters split) {
    constexpr F32FewQueriesTiles tiles = Policy::tiles;
    constexpr int head_dim = Policy::head_dim, rows = Policy::rows, warp_rows = Policy::warp_rows,
                  key_warps = Policy::key_warps, warp_keys = Policy::warp_keys, stages = tiles.stages(),
                  keys = tiles.keys, lane_keys = Policy::lane_keys, vector = Policy::vector,
                  vectors = Policy::vectors;
    extern __shared__ __align__(128) unsigned char shared[];
    auto* const q_tile = reinterpret_cast<float*>(shared);
    float* const kv_tiles = q_tile + rows * head_dim;
    __shared__ __align__(16) float p_tiles[tiles.warps][warp_keys][warp_rows];
    gradtile::cuda::device::await_predecessor();

    const int queries = p.mask.queries;
    const SplitBlock own(split, p.sizes.heads, queries);
    const StridedRows<const float> k = p.k.head(own.batch, own.first_head / p.sizes.group),
                                   v = p.v.head(own.batch, own.first_head / p.sizes.group);
    const auto load_kv = [&](int block) {
        const int key = own.first_key + block * keys;
        if (key < own.end_key) {
            float* const stage = kv_tiles + block % stages * 2 * Policy::tile_floats;
            load_block<Policy, true>(stage, k, key, own.end_key - key, p.sizes.qk_dim);
            load_block<Policy, false>(stage + Policy::tile_floats, v, key, own.end_key - key, p.sizes.v_dim);
        }
        commit_copies();
    };
    start_queries<Policy>(q_tile, p, own);
#pragma unroll 1
    for (int block = 0; block < stages - 1; ++block) load_kv(block);
    __shared__ SharedRule rule;
    if constexpr (has_rule) {
        if (threadIdx.x == 0) rule.set(p.scores.rule_of<float>(own.batch, own.first_head));
    }

    const int warp = warp_index(), lane = lane_index();
    const int warp_row = warp / key_warps * warp_rows, warp_key = warp % key_warps * warp_keys;
    float(&p_tile)[warp_keys][warp_rows] = p_tiles[warp];
    float o[warp_rows][vectors][vector] = {};
    WarpSoftmax softmax[warp_rows];
    for (int block = 0; own.first_key + block * keys < own.end_key; ++block) {
        wait_for_copies<stages - 2>();
        __syncthreads();  // this block's K and V are copied, and no warp reads the stage that is loaded next
        load_kv(block + stages - 1);
        const float* const stage = kv_tiles + block % stages * 2 * Policy::tile_floats + warp_key * head_dim;
        const int lane_key = own.first_key + block * keys + warp_key + lane / Policy::key_lanes;
        float s[warp_rows][lane_keys], factor[warp_rows];
        multiply_q_k<Policy>(s, q_tile + warp_row * head_dim, stage, lane);
#pragma unroll
        for (int r = 0; r < warp_rows; ++r) {
            const int row = warp_row + r, query = row % queries;
            const int first = p.mask.first_key(query),
                      end = row < own.rows ? min(own.end_key, p.mask.end_key(query)) : 0;
#pragma unroll
            for (int n = 0; n < lane_keys; ++n) {
                const int j = lane_key + n * Policy::keys_at_once;
                float& score = s[r][n];
                if (j < first || j >= end) {
                    score = -INFINITY;
                } else if constexpr (has_rule) {
                    score = score_of<float>(rule.get(), score * p.scale, query, j).value;
                } else {
                    score *= p.scale;
                }
            }
            factor[r] = softmax[r].update(s[r]);
            if constexpr (has_rule) {
#pragma unroll
                for (int n = 0; n < lane_keys; ++n)
                    s[r][n] *= kept(rule.get(), query, lane_key + n * Policy::keys_at_once);
            }
        }
        if (lane % Policy::key_lanes == 0) {
#pragma unroll
            for (int n = 0; n < lane_keys; ++n)
#pragma unroll
                for (int r = 0; r < warp_rows; ++r)
                    p_tile[n * Policy::keys_at_once + lane / Policy::key_lanes][r] = s[r][n];
        }
        __syncwarp();
        add_p_v<Policy>(o, factor, p_tile, stage + Policy::tile_floats + lane * vector);
    }

    // The warps reuse the K/V memory for their results.
    wait_for_copies<0>();
    __syncthreads();
    float* const warp_o = kv_tiles;  // [key_warps, rows, head_dim]
    __shared__ ExactLse warp_lse[key_warps][rows];
    float dropout_scale = 1;
    if constexpr (has_rule) dropout_scale = rule.get().dropout_scale;
    store_warp<Policy>(warp_o, warp_lse, o, softmax, warp % key_warps, warp_row, dropout_scale);
    __syncthreads();
    merge_warps<Policy>(p, split, warp_o, warp_lse, own);
}

template <int head_dim>
void launch_few_queries(const F32FewQueriesParameters& p, const SplitParameters& split, cudaStream_t stream) {
    const auto launch = [&]<int rows>() {
        using Policy = FewQueriesPolicy<head_dim, rows>;
        const auto kernel = p.scores.scores_are_products ? few_queries_kernel<Policy, false>
                                                         : few_queries_kernel<Policy, true>;
        const dim3 grid(static_cast<unsigned>(split.splits),
                        static_cast<unsigned>(p.batch_size * (p.sizes.heads / split.heads_together)));
        gradtile::cuda::launch_on(stream, kernel, grid,
                                  {.threads = unsigned{F32FewQueriesTiles::threads},
                                   .shared_bytes = std::size_t{Policy::tiles.shared_bytes()},
                                   .starts_early = true},
                                  p, split);
    };
    const int rows = split.heads_together * p.mask.queries;
    if (rows <= 1) return launch.template operator()<1>();
    if (rows <= 4) return launch.template operator()<4>();
    if (rows <= 8) return launch.template operator()<8>();
    launch.template operator()<16>();
}

}  // namespace

void few_queries_f32_forward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                             const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v, &o_out = saved.o, &lse = saved.lse;
    constexpr std::int64_t vector_columns = 4;
    const auto readable = [&](const Tensor& x) {
        return Readable(ctx, x, has_vector_rows(x), vector_columns);
    };
    const Readable q = readable(q_in), k = readable(k_in), v = readable(v_in);
    const Writable o(ctx, o_out, DType::f32);
    const Scratch scratch(ctx, plan);
    if (ctx.is_planning()) return;
    gradtile::cuda::use_device(ctx.device());
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    const F32FewQueriesParameters parameters{.q = tensor_view<const float>(q.tensor()),
                                             .k = tensor_view<const float>(k.tensor()),
                                             .v = tensor_view<const float>(v.tensor()),
                                             .o = tensor_view<float>(o.tensor()),
                                             .lse = lse.data<float>(),
                                             .lse_remainder = data_or_null<float>(saved.lse_remainder),
                                             .batch_size = static_cast<int>(q_in.size(0)),
                                             // The copies' sizes: a copy pads its columns with zeros to a
                                             // multiple of 4, because the kernel loads 4 columns at a time.
                                             .sizes = sizes_of(q.tensor(), k.tensor(), v_in),
                                             .mask = DeviceMask(options.mask),
                                             .scale = static_cast<float>(options.scale),
                                             .scores = options.scores};
    const SplitParameters split =
        split_parameters(plan.schedule.few_queries, options.mask, scratch[ScratchUse::split_o],
                         scratch[ScratchUse::split_lse]);
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    visit_head_dim(
        F32HeadDims{}, std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim),
        [&]<int head_dim>(HeadDim<head_dim>) { launch_few_queries<head_dim>(parameters, split, stream); });
    launch_merge_of_splits<float>(parameters, split, stream);
    o.store(ctx);
    find_non_finite(ctx, options, saved.o);
}

}  // namespace gradtile::attention::cuda
