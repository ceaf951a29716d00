// decode.h on the GPU. Each lane holds 16-byte vectors from K and V rows, so that a warp reads whole cache
// lines. Tensor cores are not needed: with one query, the call takes only as long as reading K and V.
//
// With few keys, the call's time is the latency of memory accesses that depend on each other. So the first
// keys and values are read before the preceding kernel has ended, except the new key and value, which that
// kernel may still be writing. A text's splits are thread blocks in clusters; each cluster merges its results
// in shared memory.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/core/cuda/device/cluster.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/early_start.cuh>
#include <gradtile/core/cuda/device/packed.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::attention::cuda {
namespace {

namespace kernels = gradtile::cuda::device;

/// The thread block's layout. `lanes` lanes read a key together; each lane reads `vectors` 16-byte vectors.
template <int lanes, int vectors, int heads_together>
struct DecodeBlock {
    // With more heads there are fewer threads, because each warp's results take more shared memory.
    static constexpr int threads = heads_together > 4 ? 128 : 256, warps = threads / 32;
    /// The keys that each thread reads at once. A 16-byte K vector and a 16-byte V vector together take 8
    /// registers.
    static constexpr int unroll = std::max(1, (heads_together > 4   ? 1
                                               : heads_together > 2 ? 2
                                                                    : 4) /
                                                  vectors);
    static constexpr int warp_keys = 32 / lanes, keys = warps * warp_keys;  // keys read at once
    static constexpr int pass_keys = keys * unroll;
};

/// Rows that hold heads: element (row, head, column) is at data + row * row_stride + head * head_stride +
/// column.
template <class T>
struct HeadsOfRows {
    T* data;
    std::int64_t row_stride, head_stride;

    __device__ __forceinline__ T* at(int row, int head) const {
        return data + row * row_stride + head * head_stride;
    }
};

template <class T>
struct CachedHeads {
    T* data;
    std::int64_t slot_stride, key_stride, head_stride;

    __device__ __forceinline__ T* at(int slot, int head) const {
        return data + slot * slot_stride + head * head_stride;
    }
};

template <class T>
struct DecodeParameters {
    HeadsOfRows<const T> q, k, v;
    HeadsOfRows<T> o;
    CachedHeads<T> cached_k, cached_v;
    const std::int32_t *slots, *positions;
    int heads, group, head_sets, head_dim;  // group: query heads that share a K/V head
    int cache_slots, context;
    device::DeviceMask mask;  // for a row at the context's end
    ScoreOptions scores;
    float scale;
    int cluster_log2;           // a cluster has 2^cluster_log2 thread blocks, one per split
    int* counters;              // finished splits [R, Hkv, head_sets]
    float *part_o, *part_sums;  // [R, Hq, clusters, D], [R, Hq, clusters, 2]: maximum, sum of exponentials
};

/// A split's keys.
struct KeysOfSplit {
    int begin, end;
    int splits;  // splits that have keys
};

/// Few keys are divided into few splits: one split per thread block pass, until the splits fill a cluster.
template <class Block>
__device__ __forceinline__ KeysOfSplit keys_of_split(int first_key, int end_key, int split, int splits) {
    const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
    const int keys = end_key - first_key;
    const int wanted = max(min(DecodePlan::max_cluster, ceil_div(keys, Block::pass_keys)),
                           ceil_div(keys, DecodePlan::min_keys_beyond_a_cluster));
    const int length = ceil_div(keys, min(splits, wanted) * Block::keys) * Block::keys;
    const int begin = first_key + split * length;
    return {begin, min(begin + length, end_key), ceil_div(keys, length)};
}

__device__ __forceinline__ float exponential(float x) {
    return device::exp2_fast(x * std::numbers::log2e_v<float>);
}

/// A block's results in shared memory.
template <class Block, int heads_together, int max_dim>
struct DecodeShared {
    float warp_o[Block::warps][heads_together][max_dim];
    float2 warp_sums[Block::warps][heads_together];
    // The columns that this block merges, from each block in the cluster. The columns per block are rounded
    // up.
    float cluster_o[heads_together * max_dim + DecodePlan::max_cluster];
    float2 cluster_sums[DecodePlan::max_cluster][heads_together];  // like warp_sums: maximum and sum
    std::uint64_t barrier;
    bool is_last;
};

/// Partial result for one o column over some keys: the largest score and, relative to it, the sum of
/// exponentials and the unnormalized o.
struct PartOfKeys {
    float maximum, sum, o;
};

/// Merges `count` parts, in order.
template <class PartAt>
__device__ __forceinline__ PartOfKeys merged(int count, PartAt&& part_at) {
    PartOfKeys all{-std::numeric_limits<float>::max(), 0, 0};
    for (int i = 0; i < count; ++i) all.maximum = fmaxf(all.maximum, part_at(i).maximum);
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
        const PartOfKeys part = part_at(i);
        const float weight = exponential(part.maximum - all.maximum);
        all.sum = fmaf(weight, part.sum, all.sum);
        all.o = fmaf(weight, part.o, all.o);
    }
    return all;
}

/// The grid is (splits, Hkv * head_sets, R); clusters span the split axis.
template <class T, int lanes, int vectors, int heads_together>
__global__ void __launch_bounds__(DecodeBlock<lanes, vectors, heads_together>::threads)
    decode_kernel(const DecodeParameters<T> p) {
    using namespace gradtile::cuda::device;
    using Block = DecodeBlock<lanes, vectors, heads_together>;
    constexpr int n = 16 / sizeof(T), columns = n * vectors, max_dim = lanes * columns,
                  unroll = Block::unroll, threads = Block::threads;
    using Vector = Packed<T, n>;
    __shared__ DecodeShared<Block, heads_together, max_dim> shared;

    const int row = static_cast<int>(blockIdx.z), set = static_cast<int>(blockIdx.y) % p.head_sets,
              kv_head = static_cast<int>(blockIdx.y) / p.head_sets, split = static_cast<int>(blockIdx.x),
              splits = static_cast<int>(gridDim.x);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int first_head = kv_head * p.group + set * heads_together,
              end_head = min(first_head + heads_together, (kv_head + 1) * p.group),
              block_columns = (end_head - first_head) * p.head_dim;

    allow_successor();
    const ClusterReceiver receiver(&shared.barrier);
    if (p.cluster_log2 > 0) {
        if (thread == 0) receiver.initialize();
        receiver.begin();
    }
    const int position = __ldcg(p.positions + row), slot = __ldcg(p.slots + row);
    if (p.cluster_log2 > 0) receiver.await_all_begun();
    const bool exists = position >= 0 && position < p.context && slot >= 0 && slot < p.cache_slots;
    device::DeviceMask mask = p.mask;
    mask.offset = position;
    const KeysOfSplit keys = exists ? keys_of_split<Block>(mask.first_key(0), mask.end_key(0), split, splits)
                                    : KeysOfSplit{0, 0, 0};
    const T* const cached_k = p.cached_k.at(exists ? slot : 0, kv_head);
    const T* const cached_v = p.cached_v.at(exists ? slot : 0, kv_head);

    // Vector j of a lane holds the columns from column_of(j) on; key u of a pass is key_of(u).
    const auto column_of = [&](int j) { return (j * lanes + lane % lanes) * n; };
    const auto key_of = [&](int pass, int u) {
        return pass + u * Block::keys + warp * Block::warp_keys + lane / lanes;
    };
    // Loads all keys but the new one, from the L2 cache and not from L1, because another multiprocessor may
    // have written them.
    const auto load_cached = [&](uint4(&to)[unroll][vectors], const T* from, std::int64_t stride, int pass) {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int key = key_of(pass, u);
#pragma unroll
            for (int j = 0; j < vectors; ++j) {
                to[u][j] = uint4{};
                if (key < keys.end && key != position && column_of(j) < p.head_dim)
                    to[u][j] = __ldcg(reinterpret_cast<const uint4*>(from + key * stride + column_of(j)));
            }
        }
    };
    uint4 k[unroll][vectors], v[unroll][vectors];
    load_cached(k, cached_k, p.cached_k.key_stride, keys.begin);
    load_cached(v, cached_v, p.cached_v.key_stride, keys.begin);
    ScoreFormula<float> formulas[heads_together];
#pragma unroll
    for (int h = 0; h < heads_together; ++h)
        formulas[h] = p.scores.template rule_of<float>(row, min(first_head + h, end_head - 1)).formula;

    const int clusters_of_grid = splits >> p.cluster_log2, cluster_size = 1 << p.cluster_log2,
              cluster = split >> p.cluster_log2, rank = split & (cluster_size - 1),
              clusters = (keys.splits + cluster_size - 1) >> p.cluster_log2,
              blocks = min(cluster_size, keys.splits - cluster * cluster_size);  // in this cluster, with keys
    // In the cluster, block r merges the columns from r * share on.
    const int share = (block_columns + max(blocks, 1) - 1) / max(blocks, 1),
              own_columns = max(0, min(share, block_columns - rank * share));
    const bool has_keys = keys.begin < keys.end;
    if (has_keys && blocks > 1 && thread == 0)
        receiver.expect(blocks * (own_columns * static_cast<int>(sizeof(float)) +
                                  (end_head - first_head) * static_cast<int>(sizeof(float2))));

    await_results();
    if (!exists && split == 0)
        for (int i = thread; i < block_columns; i += threads)
            p.o.at(row, first_head + i / p.head_dim)[i % p.head_dim] = kernels::convert<T>(NAN);
    if (!has_keys) return;

    uint4 raw_q[heads_together][vectors];
#pragma unroll
    for (int h = 0; h < heads_together; ++h)
#pragma unroll
        for (int j = 0; j < vectors; ++j) {
            raw_q[h][j] = uint4{};
            if (column_of(j) < p.head_dim)
                raw_q[h][j] = *reinterpret_cast<const uint4*>(p.q.at(row, min(first_head + h, end_head - 1)) +
                                                              column_of(j));
        }
    const auto load_new = [&](uint4(&to)[unroll][vectors], const HeadsOfRows<const T>& from, int pass) {
        if (position >= min(pass + Block::pass_keys, keys.end)) return;
#pragma unroll
        for (int u = 0; u < unroll; ++u)
#pragma unroll
            for (int j = 0; j < vectors; ++j)
                if (key_of(pass, u) == position && column_of(j) < p.head_dim)
                    to[u][j] = *reinterpret_cast<const uint4*>(from.at(row, kv_head) + column_of(j));
    };
    load_new(k, p.k, keys.begin);
    load_new(v, p.v, keys.begin);

    float q[heads_together][columns], o[heads_together][columns];
    float maximum[heads_together], sum[heads_together];
#pragma unroll
    for (int h = 0; h < heads_together; ++h) {
        maximum[h] = -std::numeric_limits<float>::max();
        sum[h] = 0;
#pragma unroll
        for (int j = 0; j < vectors; ++j) {
            const Vector x = __builtin_bit_cast(Vector, raw_q[h][j]);
#pragma unroll
            for (int i = 0; i < n; ++i) {
                q[h][j * n + i] = kernels::convert<float>(x[i]) * p.scale;
                o[h][j * n + i] = 0;
            }
        }
    }
    int pass = keys.begin;
    while (true) {
        const int next_pass = pass + Block::pass_keys;
        float score[heads_together][unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
#pragma unroll
            for (int h = 0; h < heads_together; ++h) {
                score[h][u] = 0;
#pragma unroll
                for (int j = 0; j < vectors; ++j) {
                    const Vector x = __builtin_bit_cast(Vector, k[u][j]);
#pragma unroll
                    for (int i = 0; i < n; ++i)
                        score[h][u] = fmaf(q[h][j * n + i], kernels::convert<float>(x[i]), score[h][u]);
                }
                score[h][u] = reduce_lanes<lanes>(score[h][u], Sum{});
            }
#pragma unroll
        for (int h = 0; h < heads_together; ++h) {
            const ScoreFormula<float>& formula = formulas[h];
            if (formula.changes_products())
#pragma unroll
                for (int u = 0; u < unroll; ++u)
                    score[h][u] = formula.template transform_product<device::PreciseMath>(score[h][u]).value;
            if (formula.has_distance_terms())
#pragma unroll
                for (int u = 0; u < unroll; ++u)
                    score[h][u] = formula.template add_distance_terms<device::PreciseMath>(
                        score[h][u], mask.offset - key_of(pass, u));
#pragma unroll
            for (int u = 0; u < unroll; ++u)
                if (key_of(pass, u) >= keys.end) score[h][u] = -INFINITY;
        }
        if (next_pass < keys.end) {
            load_cached(k, cached_k, p.cached_k.key_stride, next_pass);
            load_new(k, p.k, next_pass);
        }
#pragma unroll
        for (int h = 0; h < heads_together; ++h) {
            float next = maximum[h];
#pragma unroll
            for (int u = 0; u < unroll; ++u) next = fmaxf(next, score[h][u]);
            const float keep = exponential(maximum[h] - next);
            maximum[h] = next;
            sum[h] *= keep;
#pragma unroll
            for (int i = 0; i < columns; ++i) o[h][i] *= keep;
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
                const float probability = exponential(score[h][u] - next);
                sum[h] += probability;
#pragma unroll
                for (int j = 0; j < vectors; ++j) {
                    const Vector x = __builtin_bit_cast(Vector, v[u][j]);
#pragma unroll
                    for (int i = 0; i < n; ++i)
                        o[h][j * n + i] = fmaf(probability, kernels::convert<float>(x[i]), o[h][j * n + i]);
                }
            }
        }
        if (next_pass < keys.end) {
            load_cached(v, cached_v, p.cached_v.key_stride, next_pass);
            load_new(v, p.v, next_pass);
        }
        if (next_pass >= keys.end) break;
        pass = next_pass;
    }
    // The threads that hold the new key append it.
    if (set == 0 && position < keys.end) {
#pragma unroll
        for (int u = 0; u < unroll; ++u)
#pragma unroll
            for (int j = 0; j < vectors; ++j)
                if (key_of(pass, u) == position && column_of(j) < p.head_dim) {
                    const auto store = [&](const CachedHeads<T>& to, const uint4& x) {
                        *reinterpret_cast<uint4*>(to.at(slot, kv_head) + position * to.key_stride +
                                                  column_of(j)) = x;
                    };
                    store(p.cached_k, k[u][j]);
                    store(p.cached_v, v[u][j]);
                }
    }

    // Reduces over the warp's keys.
#pragma unroll
    for (int h = 0; h < heads_together; ++h) {
        float all = maximum[h];
#pragma unroll
        for (int distance = lanes; distance < 32; distance *= 2)
            all = fmaxf(all, __shfl_xor_sync(~0u, all, distance));
        const float weight = exponential(maximum[h] - all);
        sum[h] *= weight;
#pragma unroll
        for (int i = 0; i < columns; ++i) o[h][i] *= weight;
#pragma unroll
        for (int distance = lanes; distance < 32; distance *= 2) {
            sum[h] += __shfl_xor_sync(~0u, sum[h], distance);
#pragma unroll
            for (int i = 0; i < columns; ++i) o[h][i] += __shfl_xor_sync(~0u, o[h][i], distance);
        }
        if (lane < lanes) {
#pragma unroll
            for (int j = 0; j < vectors; ++j)
#pragma unroll
                for (int i = 0; i < n; ++i) shared.warp_o[warp][h][column_of(j) + i] = o[h][j * n + i];
        }
        if (lane == 0) shared.warp_sums[warp][h] = {all, sum[h]};
    }
    __syncthreads();

    const auto head_of = [&](int i) { return heads_together == 1 ? 0 : i / p.head_dim; };
    const auto write = [&](int h, int column, PartOfKeys part) {
        const int head = first_head + h;
        if (const float sink = p.scores.template rule_of<float>(row, head).sink; sink > -INFINITY) {
            const float all = fmaxf(part.maximum, sink), weight = exponential(part.maximum - all);
            part = {all, fmaf(weight, part.sum, exponential(sink - all)), weight * part.o};
        }
        p.o.at(row, head)[column] = kernels::convert<T>(part.o / part.sum);
    };
    const auto finish = [&](int h, int column, const PartOfKeys& part) {
        if (clusters == 1) return write(h, column, part);
        const std::int64_t to = (std::int64_t{row} * p.heads + first_head + h) * clusters_of_grid + cluster;
        p.part_o[to * p.head_dim + column] = part.o;
        if (column == 0) *reinterpret_cast<float2*>(p.part_sums + 2 * to) = {part.maximum, part.sum};
    };
    for (int i = thread; i < block_columns; i += threads) {
        const int h = head_of(i), column = i - h * p.head_dim;
        const PartOfKeys part = merged(Block::warps, [&](int w) -> PartOfKeys {
            return {shared.warp_sums[w][h].x, shared.warp_sums[w][h].y, shared.warp_o[w][h][column]};
        });
        if (blocks == 1) {
            finish(h, column, part);
            continue;
        }
        receiver.send(&shared.cluster_o[rank * share + i % share], i / share, part.o);
        for (int r = column; r < blocks; r += p.head_dim)
            receiver.send(&shared.cluster_sums[rank][h], r, {part.maximum, part.sum});
    }
    if (blocks > 1) {
        receiver.wait();
        for (int i = thread; i < own_columns; i += threads) {
            const int h = head_of(rank * share + i), column = rank * share + i - h * p.head_dim;
            finish(h, column, merged(blocks, [&](int r) -> PartOfKeys {
                       return {shared.cluster_sums[r][h].x, shared.cluster_sums[r][h].y,
                               shared.cluster_o[r * share + i]};
                   }));
        }
    }
    if (clusters == 1) return;

    // The block that finishes last merges the clusters, in their order.
    __threadfence();
    __syncthreads();
    if (thread == 0) {
        int* const counter = p.counters + std::int64_t{row} * gridDim.y + blockIdx.y;
        shared.is_last = atomicAdd(counter, 1) == keys.splits - 1;
        if (shared.is_last) *counter = 0;
    }
    __syncthreads();
    if (!shared.is_last) return;
    __threadfence();
    for (int i = thread; i < block_columns; i += threads) {
        const int h = head_of(i), column = i - h * p.head_dim;
        const std::int64_t first = (std::int64_t{row} * p.heads + first_head + h) * clusters_of_grid;
        write(h, column, merged(clusters, [&](int c) -> PartOfKeys {
                  const float2 sums = __ldcg(reinterpret_cast<const float2*>(p.part_sums + 2 * (first + c)));
                  return {sums.x, sums.y, __ldcg(p.part_o + (first + c) * p.head_dim + column)};
              }));
    }
}

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

template <class F>
void visit_heads_together(int heads, F&& f) {
    switch (heads) {
        case 1:
            return f.template operator()<1>();
        case 2:
            return f.template operator()<2>();
        case 4:
            return f.template operator()<4>();
        default:
            return f.template operator()<8>();
    }
}

void check_vectors(const Tensor& x) {
    const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
    bool is_aligned = reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0;
    for (int axis = 0; axis + 1 < x.rank(); ++axis)
        is_aligned = is_aligned && (x.size(axis) == 1 || x.stride(axis) * size % 16 == 0);
    check(is_aligned, "decode: ", x, " with strides ", x.strides(), "; expected heads on 16-byte boundaries");
}

template <class T>
HeadsOfRows<T> heads_of_rows(const Tensor& x) {
    return {x.data<std::remove_const_t<T>>(), x.stride(0), x.stride(1)};
}

}  // namespace

void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const ResolvedOptions& options, const DecodeScratch& scratch) {
    const std::int64_t rows = in.q.size(0), heads = in.q.size(1), dim = in.q.size(2),
                       kv_heads = cache.k.size(2);
    const DecodePlan plan = DecodePlan::of(rows, heads, cache);
    const std::int64_t blocks = kv_heads * plan.head_sets;
    check(scratch.counters.elements() >= rows * blocks && scratch.o.size(0) >= rows * heads * plan.splits &&
              scratch.o.size(1) == dim,
          "decode: scratch memory of ", scratch.counters, " and ", scratch.o, " is too small for ", rows,
          " rows of ", heads, " heads");
    check(rows <= 65535 && blocks <= 65535, "decode: ", rows, " rows of ", kv_heads,
          " heads; expected at most 65535 of each");
    for (const Tensor* x : {&o, &in.q, &in.k, &in.v, &cache.k, &cache.v}) check_vectors(*x);
    const auto launch_kernel = [&]<class T>(TypeTag<T>) {
        DecodeParameters<T> p{
            .q = heads_of_rows<const T>(in.q),
            .k = heads_of_rows<const T>(in.k),
            .v = heads_of_rows<const T>(in.v),
            .o = heads_of_rows<T>(o),
            .cached_k = {cache.k.data<T>(), cache.k.stride(0), cache.k.stride(1), cache.k.stride(2)},
            .cached_v = {cache.v.data<T>(), cache.v.stride(0), cache.v.stride(1), cache.v.stride(2)},
            .slots = in.slots.data<std::int32_t>(),
            .positions = in.positions.data<std::int32_t>(),
            .heads = static_cast<int>(heads),
            .group = static_cast<int>(heads / kv_heads),
            .head_sets = plan.head_sets,
            .head_dim = static_cast<int>(dim),
            .cache_slots = static_cast<int>(cache.k.size(0)),
            .context = static_cast<int>(cache.k.size(1)),
            .mask = device::DeviceMask(options.mask),
            .scores = options.scores,
            .scale = static_cast<float>(options.scale),
            .cluster_log2 = 0,
            .counters = scratch.counters.data<std::int32_t>(),
            .part_o = scratch.o.data<float>(),
            .part_sums = scratch.sums.data<float>()};
        const dim3 grid(static_cast<unsigned>(plan.splits), static_cast<unsigned>(blocks),
                        static_cast<unsigned>(rows));
        visit_lanes<T>(dim, [&]<int lanes, int vectors>() {
            visit_heads_together(plan.heads_together, [&]<int together>() {
                const auto kernel = decode_kernel<T, lanes, vectors, together>;
                if (gradtile::cuda::has_clusters(reinterpret_cast<const void*>(kernel)))
                    p.cluster_log2 = std::countr_zero(
                        static_cast<unsigned>(std::min(plan.splits, DecodePlan::max_cluster)));
                gradtile::cuda::launch_clusters(
                    ctx, kernel, grid, 1u << p.cluster_log2,
                    {.threads = DecodeBlock<lanes, vectors, together>::threads, .starts_early = true}, p);
            });
        });
    };
    switch (in.q.dtype()) {
        case DType::f32:
            return launch_kernel(TypeTag<float>{});
        case DType::bf16:
            return launch_kernel(TypeTag<bfloat16>{});
        case DType::f16:
            require_gpu_kernels(DType::f16);
            if constexpr (has_float16_kernels) launch_kernel(TypeTag<float16>{});
            return;
        default:
            throw Error(concat("decode: no kernel for ", in.q.dtype()));
    }
}

}  // namespace gradtile::attention::cuda
