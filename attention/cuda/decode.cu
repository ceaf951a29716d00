// decode.h on the GPU. Lanes of a warp hold columns of K and V, 16 bytes each, so that a warp reads whole
// cache lines and no tensor cores are needed: with one query, the call takes the time of reading K and V.
#include <cmath>
#include <limits>
#include <numbers>

#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/attention/score_rule.h>
#include <gradtile/attention/cuda/device/score_rule.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/early_start.cuh>
#include <gradtile/core/cuda/device/packed.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::attention::cuda {
namespace {

namespace kernels = gradtile::cuda::device;

constexpr int decode_threads = 128, decode_warps = decode_threads / 32;

/// Rows of heads: element (row, head, column) is at data + row * row_stride + head * head_stride + column.
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
    std::int64_t place_stride, key_stride, head_stride;

    __device__ __forceinline__ T* at(int place, int head) const {
        return data + place * place_stride + head * head_stride;
    }
};

template <class T>
struct DecodeParameters {
    HeadsOfRows<const T> q, k, v;
    HeadsOfRows<T> o;
    CachedHeads<T> cached_k, cached_v;
    const std::int32_t *places, *positions;
    int heads, group, head_sets, head_dim;  // group: query heads that share a K/V head
    int cache_places, context;
    int left;  // keys before its own that a row sees; -1: all
    float scale, softcap;
    const float *alibi_slopes, *sink;
    std::int64_t alibi_stride, sink_stride;
    int* counters;              // of finished splits [R, Hkv, head_sets]
    float *part_o, *part_sums;  // [R, Hq, splits, D], [R, Hq, splits, 2]: maximum and sum of exponentials
};

/// The keys of a split.
struct KeysOfSplit {
    int begin, end;
    int splits;  // splits that have keys
};

__device__ __forceinline__ KeysOfSplit keys_of_split(int first_key, int end_key, int split, int splits) {
    constexpr int multiple = 16;  // keys that the warps of a block read at a time, for heads of 128 bytes
    const int keys = end_key - first_key;
    const int length = max(1, (keys + splits * multiple - 1) / (splits * multiple)) * multiple;
    const int begin = first_key + split * length;
    return {begin, min(begin + length, end_key), (keys + length - 1) / length};
}

__device__ __forceinline__ float exponential(float x) {
    return device::exp2_fast(x * std::numbers::log2e_v<float>);
}

/// The grid is (splits, Hkv * head_sets, R). A key has `lanes` lanes with `vectors` vectors of 16 bytes each.
template <class T, int lanes, int vectors, int heads_together>
__global__ void __launch_bounds__(decode_threads, 2) decode_kernel(const DecodeParameters<T> p) {
    using namespace gradtile::cuda::device;
    constexpr int n = 16 / sizeof(T), columns = n * vectors, warp_keys = 32 / lanes,
                  unroll = vectors > 1 || heads_together > 4 ? 1 : 2, max_dim = lanes * columns,
                  max_splits = DecodePlan::max_splits;
    using Vector = Packed<T, n>;
    __shared__ float warp_o[decode_warps][heads_together][max_dim];
    __shared__ float2 warp_sums[decode_warps][heads_together];
    __shared__ float2 split_sums[heads_together][max_splits];
    __shared__ bool is_last;

    const int row = static_cast<int>(blockIdx.z), set = static_cast<int>(blockIdx.y) % p.head_sets,
              kv_head = static_cast<int>(blockIdx.y) / p.head_sets, split = static_cast<int>(blockIdx.x),
              splits = static_cast<int>(gridDim.x);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const auto first_key_of = [&](int position) { return p.left < 0 ? 0 : max(0, position - p.left); };

    allow_successor();
    // Another kernel of the pass may not have written the numbers yet: then other lines are fetched, which
    // changes no result.
    if (const int position = p.positions[row], place = p.places[row];
        position > 0 && position < p.context && place >= 0 && place < p.cache_places && set == 0) {
        constexpr int line = 128 / sizeof(T);
        const KeysOfSplit keys = keys_of_split(first_key_of(position), position, split, splits);
        const int lines = (p.head_dim + line - 1) / line;
        for (int i = thread; i < (keys.end - keys.begin) * lines; i += decode_threads) {
            const std::int64_t key = keys.begin + i / lines;
            const int column = i % lines * line;
            prefetch_to_l2(p.cached_k.at(place, kv_head) + key * p.cached_k.key_stride + column);
            prefetch_to_l2(p.cached_v.at(place, kv_head) + key * p.cached_v.key_stride + column);
        }
    }
    await_results();

    const int position = p.positions[row], place = p.places[row];
    const int first_head = kv_head * p.group + set * heads_together,
              end_head = min(first_head + heads_together, (kv_head + 1) * p.group);
    if (position < 0 || position >= p.context || place < 0 || place >= p.cache_places) {
        if (split == 0)
            for (int i = thread; i < (end_head - first_head) * p.head_dim; i += decode_threads)
                p.o.at(row, first_head + i / p.head_dim)[i % p.head_dim] = kernels::convert<T>(NAN);
        return;
    }
    const KeysOfSplit keys = keys_of_split(first_key_of(position), position + 1, split, splits);
    if (keys.begin >= keys.end) return;

    const T *const cached_k = p.cached_k.at(place, kv_head), *const cached_v = p.cached_v.at(place, kv_head);
    const T *const new_k = p.k.at(row, kv_head), *const new_v = p.v.at(row, kv_head);
    if (set == 0 && position < keys.end) {  // the last split appends the new key
        for (int i = thread * n; i < p.head_dim; i += decode_threads * n) {
            const std::int64_t to = position * p.cached_k.key_stride, to_v = position * p.cached_v.key_stride;
            *reinterpret_cast<Vector*>(p.cached_k.at(place, kv_head) + to + i) =
                *reinterpret_cast<const Vector*>(new_k + i);
            *reinterpret_cast<Vector*>(p.cached_v.at(place, kv_head) + to_v + i) =
                *reinterpret_cast<const Vector*>(new_v + i);
        }
    }

    // Vector j of a lane holds the columns from column_of(j) on.
    const auto column_of = [&](int j) { return (j * lanes + lane % lanes) * n; };
    float q[heads_together][columns], o[heads_together][columns], slope[heads_together];
    float maximum[heads_together], sum[heads_together];
#pragma unroll
    for (int h = 0; h < heads_together; ++h) {
        const int head = min(first_head + h, end_head - 1);
        slope[h] = p.alibi_slopes == nullptr ? 0.0f : p.alibi_slopes[head * p.alibi_stride];
        maximum[h] = -std::numeric_limits<float>::max();
        sum[h] = 0;
#pragma unroll
        for (int j = 0; j < vectors; ++j) {
            Vector x{};
            if (column_of(j) < p.head_dim)
                x = *reinterpret_cast<const Vector*>(p.q.at(row, head) + column_of(j));
#pragma unroll
            for (int i = 0; i < n; ++i) {
                q[h][j * n + i] = kernels::convert<float>(x[i]) * p.scale;
                o[h][j * n + i] = 0;
            }
        }
    }
    for (int key = keys.begin + warp * warp_keys * unroll; key < keys.end;
         key += decode_warps * warp_keys * unroll) {
        Vector k[unroll][vectors], v[unroll][vectors];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int own = key + u * warp_keys + lane / lanes;
            const T* const from_k = own == position ? new_k : cached_k + own * p.cached_k.key_stride;
            const T* const from_v = own == position ? new_v : cached_v + own * p.cached_v.key_stride;
#pragma unroll
            for (int j = 0; j < vectors; ++j) {
                k[u][j] = v[u][j] = Vector{};
                if (own < keys.end && column_of(j) < p.head_dim) {
                    k[u][j] = *reinterpret_cast<const Vector*>(from_k + column_of(j));
                    v[u][j] = *reinterpret_cast<const Vector*>(from_v + column_of(j));
                }
            }
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int own = key + u * warp_keys + lane / lanes;
#pragma unroll
            for (int h = 0; h < heads_together; ++h) {
                float score = 0;
#pragma unroll
                for (int j = 0; j < vectors; ++j)
#pragma unroll
                    for (int i = 0; i < n; ++i)
                        score = fmaf(q[h][j * n + i], kernels::convert<float>(k[u][j][i]), score);
                score = reduce_lanes<lanes>(score, Sum{});
                const ScoreFormula<float> formula{.softcap = p.softcap, .alibi_slope = slope[h]};
                if (formula.changes_products())
                    score = formula.template of_product<device::PreciseMath>(score).value;
                if (formula.has_distance_terms())
                    score = formula.template add_distance_terms<device::PreciseMath>(score, position - own);
                if (own >= keys.end) score = -INFINITY;
                const float next = fmaxf(maximum[h], score);
                const float keep = exponential(maximum[h] - next), probability = exponential(score - next);
                maximum[h] = next;
                sum[h] = fmaf(sum[h], keep, probability);
#pragma unroll
                for (int j = 0; j < vectors; ++j)
#pragma unroll
                    for (int i = 0; i < n; ++i)
                        o[h][j * n + i] =
                            fmaf(o[h][j * n + i], keep, probability * kernels::convert<float>(v[u][j][i]));
            }
        }
    }

    // The parts of a warp's lanes, then those of the warps.
#pragma unroll
    for (int h = 0; h < heads_together; ++h) {
#pragma unroll
        for (int distance = lanes; distance < 32; distance *= 2) {
            const float other = __shfl_xor_sync(~0u, maximum[h], distance), next = fmaxf(maximum[h], other);
            const float keep = exponential(maximum[h] - next), keep_other = exponential(other - next);
            maximum[h] = next;
            sum[h] = sum[h] * keep + __shfl_xor_sync(~0u, sum[h], distance) * keep_other;
#pragma unroll
            for (int i = 0; i < columns; ++i)
                o[h][i] = o[h][i] * keep + __shfl_xor_sync(~0u, o[h][i], distance) * keep_other;
        }
        if (lane < lanes) {
#pragma unroll
            for (int j = 0; j < vectors; ++j)
#pragma unroll
                for (int i = 0; i < n; ++i) warp_o[warp][h][column_of(j) + i] = o[h][j * n + i];
        }
        if (lane == 0) warp_sums[warp][h] = {maximum[h], sum[h]};
    }
    __syncthreads();
    const int block_columns = (end_head - first_head) * p.head_dim;
    const auto sink_of = [&](int head) {
        return p.sink == nullptr ? -INFINITY : p.sink[head * p.sink_stride];
    };
    for (int i = thread; i < block_columns; i += decode_threads) {
        const int h = i / p.head_dim, column = i % p.head_dim, head = first_head + h;
        float all = -std::numeric_limits<float>::max(), total = 0, value = 0;
        for (int w = 0; w < decode_warps; ++w) all = fmaxf(all, warp_sums[w][h].x);
        if (keys.splits == 1) all = fmaxf(all, sink_of(head));
        for (int w = 0; w < decode_warps; ++w) {
            const float weight = exponential(warp_sums[w][h].x - all);
            total = fmaf(weight, warp_sums[w][h].y, total);
            value = fmaf(weight, warp_o[w][h][column], value);
        }
        if (keys.splits == 1) {
            total += exponential(sink_of(head) - all);
            p.o.at(row, head)[column] = kernels::convert<T>(value / total);
        } else {
            const std::int64_t part = (std::int64_t{row} * p.heads + head) * splits + split;
            p.part_o[part * p.head_dim + column] = value;
            if (column == 0) *reinterpret_cast<float2*>(p.part_sums + 2 * part) = {all, total};
        }
    }
    if (keys.splits == 1) return;

    // The block that finishes last merges the splits, in their order.
    __threadfence();
    __syncthreads();
    int* const counter = p.counters + std::int64_t{row} * gridDim.y + blockIdx.y;
    if (thread == 0) {
        is_last = atomicAdd(counter, 1) == keys.splits - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int i = thread; i < (end_head - first_head) * keys.splits; i += decode_threads) {
        const int h = i / keys.splits, of_split = i % keys.splits;
        const std::int64_t part = (std::int64_t{row} * p.heads + first_head + h) * splits + of_split;
        split_sums[h][of_split] = __ldcg(reinterpret_cast<const float2*>(p.part_sums + 2 * part));
    }
    __syncthreads();
    for (int i = thread; i < block_columns; i += decode_threads) {
        const int h = i / p.head_dim, column = i % p.head_dim, head = first_head + h;
        const float* const parts =
            p.part_o + ((std::int64_t{row} * p.heads + head) * splits) * p.head_dim + column;
        float all = sink_of(head), value = 0;
        for (int s = 0; s < keys.splits; ++s) all = fmaxf(all, split_sums[h][s].x);
        float total = exponential(sink_of(head) - all);
#pragma unroll 8
        for (int s = 0; s < keys.splits; ++s) {
            const float weight = exponential(split_sums[h][s].x - all);
            total = fmaf(weight, split_sums[h][s].y, total);
            value = fmaf(weight, __ldcg(parts + std::int64_t{s} * p.head_dim), value);
        }
        p.o.at(row, head)[column] = kernels::convert<T>(value / total);
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
    bool whole = reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0;
    for (int axis = 0; axis + 1 < x.rank(); ++axis)
        whole = whole && (x.size(axis) == 1 || x.stride(axis) * size % 16 == 0);
    check(whole, "decode: ", x, " with strides ", x.strides(), "; expected heads on 16-byte boundaries");
}

template <class T>
HeadsOfRows<T> heads_of_rows(const Tensor& x) {
    return {x.data<std::remove_const_t<T>>(), x.stride(0), x.stride(1)};
}

}  // namespace

void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const Options& options, const DecodeScratch& scratch) {
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
        const DecodeParameters<T> p{
            .q = heads_of_rows<const T>(in.q),
            .k = heads_of_rows<const T>(in.k),
            .v = heads_of_rows<const T>(in.v),
            .o = heads_of_rows<T>(o),
            .cached_k = {cache.k.data<T>(), cache.k.stride(0), cache.k.stride(1), cache.k.stride(2)},
            .cached_v = {cache.v.data<T>(), cache.v.stride(0), cache.v.stride(1), cache.v.stride(2)},
            .places = in.places.data<std::int32_t>(),
            .positions = in.positions.data<std::int32_t>(),
            .heads = static_cast<int>(heads),
            .group = static_cast<int>(heads / kv_heads),
            .head_sets = plan.head_sets,
            .head_dim = static_cast<int>(dim),
            .cache_places = static_cast<int>(cache.k.size(0)),
            .context = static_cast<int>(cache.k.size(1)),
            .left = options.window.left < 0
                        ? -1
                        : static_cast<int>(std::min(options.window.left, cache.k.size(1))),
            .scale = static_cast<float>(options.scale.value_or(1.0 / std::sqrt(static_cast<double>(dim)))),
            .softcap = static_cast<float>(options.softcap),
            .alibi_slopes = options.alibi_slopes.defined() ? options.alibi_slopes.data<float>() : nullptr,
            .sink = options.sink.defined() ? options.sink.data<float>() : nullptr,
            .alibi_stride = options.alibi_slopes.defined() ? options.alibi_slopes.stride(0) : 0,
            .sink_stride = options.sink.defined() ? options.sink.stride(0) : 0,
            .counters = scratch.counters.data<std::int32_t>(),
            .part_o = scratch.o.data<float>(),
            .part_sums = scratch.sums.data<float>()};
        const dim3 grid(static_cast<unsigned>(plan.splits), static_cast<unsigned>(blocks),
                        static_cast<unsigned>(rows));
        visit_lanes<T>(dim, [&]<int lanes, int vectors>() {
            visit_heads_together(plan.heads_together, [&]<int together>() {
                gradtile::cuda::launch(ctx, decode_kernel<T, lanes, vectors, together>, grid,
                                       {.threads = decode_threads, .starts_early = true}, p);
            });
        });
    };
    switch (in.q.dtype()) {
        case DType::f32:
            return launch_kernel(TypeTag<float>{});
        case DType::bf16:
            return launch_kernel(TypeTag<bfloat16>{});
        case DType::f16:
            return launch_kernel(TypeTag<float16>{});
        default:
            throw Error(concat("decode: no kernel for ", in.q.dtype()));
    }
}

}  // namespace gradtile::attention::cuda
