#pragma once
/// All kernels of decode.h use this file. It says which keys a thread block reads, and merges the results for
/// parts of a text's keys. decode/lanes.cuh is for few queries per K/V head, decode/tiles.cuh for more, and
/// sm90/decode.cuh for many.
///
/// With few keys, the call's time is the latency of memory accesses that depend on each other. So the first
/// keys and values are read before the preceding kernel has ended, except the new key and value, which that
/// kernel may still be writing. A text's splits are thread blocks in clusters; each cluster merges its
/// results in shared memory.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/core/internal/block_table.h>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/core/cuda/device/cluster.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/early_start.cuh>
#include <gradtile/core/cuda/device/fast_math.cuh>
#include <gradtile/core/cuda/device/packed.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::attention::cuda::decoding {

namespace kernels = gradtile::cuda::device;

/// A tensor [R, T, H, D] of new tokens, or [blocks, keys, H, D] of the cache. The elements of a head are
/// adjacent.
template <class T>
struct Heads {
    T* data;
    std::int64_t outer_stride, row_stride, head_stride;

    /// `outer` is a text or a block, `row` a token or a key.
    __device__ __forceinline__ T* at(int outer, int row, int head) const {
        return data + outer * outer_stride + row * row_stride + head * head_stride;
    }
};

template <class T>
struct DecodeParameters {
    Heads<const T> q, k, v;
    Heads<T> o;
    float* lse;  // [R, Hq, T]; may be null
    Heads<T> cached_k, cached_v;
    const std::int32_t *slots, *positions;
    int heads, kv_heads, group, head_dim;  // group: query heads that share a K/V head
    int tokens;                            // new tokens per text
    int query_sets;                        // thread blocks that share a K/V head and a split
    BlockTable blocks;
    int context;
    device::DeviceMask mask;  // for a text at the context's end
    ScoreOptions scores;
    float scale;
    int cluster_log2;           // a cluster has 2^cluster_log2 thread blocks, one per split
    int cheap_splits;           // see keys_of_split()
    int* counters;              // finished splits [R, Hkv, query_sets]
    float *part_o, *part_sums;  // [R, Hkv, T * group, clusters, D], and 2 in place of D: maximum, sum
};

/// Four columns of o, which are merged together.
using Columns = kernels::Packed<float, 4>;

/// The shared memory in which a block merges its parts. A part has the keys that one warp reads, or that
/// several warps read for different rows.
template <class Block>
struct MergeShared {
    // The four columns at a time that this block merges, from each block in the cluster. Their number per
    // block is rounded up.
    Columns cluster_o[Block::queries * Block::max_dim / 4 + DecodePlan::max_cluster];
    float2 part_sums[Block::parts][Block::queries];
    float2 cluster_sums[DecodePlan::max_cluster][Block::queries];  // like part_sums: maximum and sum
    std::uint64_t barrier;
    bool is_last;
};

/// Partial result for four columns of o over some keys: the largest score and, relative to it, the sum of
/// exponentials and the unnormalized o.
struct PartOfKeys {
    float maximum, sum;
    Columns o;
};

/// Merges `count` parts, in order.
template <class PartAt>
__device__ __forceinline__ PartOfKeys merged(int count, PartAt&& part_at) {
    PartOfKeys all{-std::numeric_limits<float>::max(), 0, {}};
    for (int i = 0; i < count; ++i) all.maximum = fmaxf(all.maximum, part_at(i).maximum);
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
        const PartOfKeys part = part_at(i);
        const float weight = kernels::exponential(part.maximum - all.maximum);
        all.sum = fmaf(weight, part.sum, all.sum);
#pragma unroll
        for (int e = 0; e < 4; ++e) all.o[e] = fmaf(weight, part.o[e], all.o[e]);
    }
    return all;
}

/// A set of queries of one text and K/V head, over one key split. Shared is a MergeShared<Block> that also
/// has part_o(part, query, column): the address of a part's o, aligned for Columns.
template <class T, class Block, class Shared>
class DecodeWork {
  protected:
    static constexpr int queries = Block::queries, threads = Block::threads;

    /// Also begins the cluster, which must happen in every block. The caller then calls
    /// require_new_blocks().
    __device__ __forceinline__ DecodeWork(const DecodeParameters<T>& p, Shared& shared)
        : p_(p),
          shared_(shared),
          receiver_(&shared.barrier),
          thread_(static_cast<int>(threadIdx.x)),
          lane_(thread_ % 32),
          warp_(thread_ / 32),
          text_(static_cast<int>(blockIdx.z)),
          kv_head_(static_cast<int>(blockIdx.y) / p.query_sets),
          split_(static_cast<int>(blockIdx.x)) {
        const int set = static_cast<int>(blockIdx.y) % p.query_sets;
        first_query_ = set * queries;
        own_queries_ = min(queries, p.tokens * p.group - first_query_);
        if (p.cluster_log2 > 0) {
            if (thread_ == 0) receiver_.initialize();
            receiver_.begin();
        }
        position_ = __ldcg(p.positions + text_);
        slot_ = __ldcg(p.slots + text_);
        if (p.cluster_log2 > 0) receiver_.await_all_begun();
        mask_ = p.mask;
        mask_.offset = position_;
        exists_ = position_ >= 0 && position_ <= p.context - p.tokens && slot_ >= 0 && slot_ < p.blocks.slots;
        if (!exists_) return;
        first_new_block_ = block_of(position_);
        last_new_block_ = block_of(position_ + p.tokens - 1);
        first_seen_key_ = mask_.first_key(token_of(0));
        // A window begins anywhere. A step of several keys lets each tile lie in one block of the cache.
        keys_ = keys_of_split(first_seen_key_ / Block::first_key_step * Block::first_key_step,
                              mask_.end_key(token_of(queries - 1)), split_, static_cast<int>(gridDim.x),
                              p.cheap_splits, Block::keys, Block::pass_keys);
    }
    /// A function of its own, so that the caller loads other entries of the table before it waits for these.
    __device__ __forceinline__ void require_new_blocks() {
        exists_ = exists_ && p_.blocks.in_cache(first_new_block_) && p_.blocks.in_cache(last_new_block_);
        if (!exists_) keys_ = {0, 0, 0};
    }

  public:
    __device__ __forceinline__ bool has_keys() const { return keys_.begin < keys_.end; }

    /// Divides the merging among the cluster's blocks.
    __device__ __forceinline__ void expect_parts() {
        const int cluster_size = 1 << p_.cluster_log2;
        cluster_ = split_ >> p_.cluster_log2;
        rank_ = split_ & (cluster_size - 1);
        clusters_ = (keys_.splits + cluster_size - 1) >> p_.cluster_log2;
        blocks_ = min(cluster_size, keys_.splits - cluster_ * cluster_size);
        share_ = (block_vectors() + max(blocks_, 1) - 1) / max(blocks_, 1);
        own_vectors_ = max(0, min(share_, block_vectors() - rank_ * share_));
        if (has_keys() && blocks_ > 1 && thread_ == 0)
            receiver_.expect(blocks_ * (own_vectors_ * static_cast<int>(sizeof(Columns)) +
                                        own_queries_ * static_cast<int>(sizeof(float2))));
    }

    /// A text outside the cache has the result NaN.
    __device__ __forceinline__ void write_missing_text() const {
        if (exists_ || split_ != 0) return;
        for (int i = thread_; i < block_vectors(); i += threads)
            write(query_of(i), column_in_head(i), {0, NAN, {{NAN, NAN, NAN, NAN}}});
    }

    /// Merges the parts' results, and then those of the cluster's blocks.
    __device__ __forceinline__ void merge_cluster() {
        for (int i = thread_; i < block_vectors(); i += threads) {
            const int h = query_of(i), column = column_in_head(i);
            const PartOfKeys part = merged(Block::parts, [&](int w) -> PartOfKeys {
                return {shared_.part_sums[w][h].x, shared_.part_sums[w][h].y,
                        *reinterpret_cast<const Columns*>(shared_.part_o(w, h, column))};
            });
            if (blocks_ == 1) {
                finish(h, column, part);
                continue;
            }
            receiver_.send(&shared_.cluster_o[rank_ * share_ + i % share_], i / share_, part.o);
            for (int r = column / 4; r < blocks_; r += head_vectors())
                receiver_.send(&shared_.cluster_sums[rank_][h], r, {part.maximum, part.sum});
        }
        if (blocks_ <= 1) return;
        receiver_.wait();
        for (int i = thread_; i < own_vectors_; i += threads) {
            const int h = query_of(rank_ * share_ + i), column = column_in_head(rank_ * share_ + i);
            finish(h, column, merged(blocks_, [&](int r) -> PartOfKeys {
                       return {shared_.cluster_sums[r][h].x, shared_.cluster_sums[r][h].y,
                               shared_.cluster_o[r * share_ + i]};
                   }));
        }
    }

    /// The block that finishes last merges the clusters, in their order.
    __device__ __forceinline__ void merge_clusters() const {
        if (clusters_ == 1) return;
        __threadfence();
        __syncthreads();
        if (thread_ == 0) {
            int* const counter = p_.counters + std::int64_t{text_} * gridDim.y + blockIdx.y;
            shared_.is_last = atomicAdd(counter, 1) == keys_.splits - 1;
            if (shared_.is_last) *counter = 0;
        }
        __syncthreads();
        if (!shared_.is_last) return;
        __threadfence();
        for (int i = thread_; i < block_vectors(); i += threads) {
            const int h = query_of(i), column = column_in_head(i);
            const std::int64_t first = first_part_of(h);
            write(h, column, merged(clusters_, [&](int c) -> PartOfKeys {
                      const float2 sums =
                          __ldcg(reinterpret_cast<const float2*>(p_.part_sums + 2 * (first + c)));
                      return {
                          sums.x, sums.y,
                          __builtin_bit_cast(Columns, __ldcg(reinterpret_cast<const float4*>(
                                                          p_.part_o + (first + c) * p_.head_dim + column)))};
                  }));
        }
    }

  protected:
    // Queries are numbered token by token. Those beyond the last one repeat it.
    __device__ __forceinline__ int number_of(int h) const { return first_query_ + min(h, own_queries_ - 1); }
    __device__ __forceinline__ int token_of(int h) const {
        return Block::several_tokens ? number_of(h) / p_.group : 0;
    }
    __device__ __forceinline__ int head_of(int h) const {
        return kv_head_ * p_.group + number_of(h) - token_of(h) * p_.group;
    }
    /// The last key that query h sees: its own.
    __device__ __forceinline__ int last_key(int h) const { return position_ + token_of(h); }

    /// Vectors of four columns of all the block's queries are numbered one query after the other.
    __device__ __forceinline__ int head_vectors() const { return p_.head_dim / 4; }
    __device__ __forceinline__ int block_vectors() const { return own_queries_ * head_vectors(); }
    __device__ __forceinline__ int query_of(int i) const { return queries == 1 ? 0 : i / head_vectors(); }
    __device__ __forceinline__ int column_in_head(int i) const {
        return 4 * (i - query_of(i) * head_vectors());
    }

    __device__ __forceinline__ int block_of(int key) const {
        // Without a table the text's slot is the block.
        return p_.blocks.entries == nullptr
                   ? slot_
                   : __ldg(p_.blocks.entries + std::int64_t{slot_} * p_.blocks.blocks_of_slot +
                           (key >> p_.blocks.log2_rows));
    }
    /// One block appends the new keys and values.
    __device__ __forceinline__ void append() const {
        if (split_ != 0 || first_query_ != 0) return;
        constexpr int n = 16 / static_cast<int>(sizeof(T));  // elements in a vector
        const int row_vectors = p_.head_dim / n;
        for (int i = thread_; i < p_.tokens * row_vectors; i += threads) {
            const int token = Block::several_tokens ? i / row_vectors : 0,
                      column = (i - token * row_vectors) * n, key = position_ + token,
                      block = key >> p_.blocks.log2_rows == position_ >> p_.blocks.log2_rows
                                  ? first_new_block_
                                  : last_new_block_;
            const auto copy = [&](const Heads<T>& to, const Heads<const T>& from) {
                *reinterpret_cast<uint4*>(to.at(block, p_.blocks.row_in_block(key), kv_head_) + column) =
                    *reinterpret_cast<const uint4*>(from.at(text_, token, kv_head_) + column);
            };
            copy(p_.cached_k, p_.k);
            copy(p_.cached_v, p_.v);
        }
    }

    /// A query's number among all texts' queries, times the clusters: its first part.
    __device__ __forceinline__ std::int64_t first_part_of(int h) const {
        const std::int64_t first = (std::int64_t{text_} * p_.kv_heads + kv_head_) * p_.tokens * p_.group;
        return (first + number_of(h)) * static_cast<int>(gridDim.x >> p_.cluster_log2);
    }
    __device__ __forceinline__ void finish(int h, int column, const PartOfKeys& part) const {
        if (clusters_ == 1) return write(h, column, part);
        const std::int64_t to = first_part_of(h) + cluster_;
        *reinterpret_cast<Columns*>(p_.part_o + to * p_.head_dim + column) = part.o;
        if (column == 0) *reinterpret_cast<float2*>(p_.part_sums + 2 * to) = {part.maximum, part.sum};
    }
    __device__ __forceinline__ void write(int h, int column, PartOfKeys part) const {
        const int head = head_of(h), token = token_of(h);
        if (const float sink = p_.scores.template rule_of<float>(text_, head).sink; sink > -INFINITY) {
            const float all = fmaxf(part.maximum, sink), weight = kernels::exponential(part.maximum - all);
            part.maximum = all;
            part.sum = fmaf(weight, part.sum, kernels::exponential(sink - all));
#pragma unroll
            for (int e = 0; e < 4; ++e) part.o[e] *= weight;
        }
        kernels::Packed<T, 4> o;
#pragma unroll
        for (int e = 0; e < 4; ++e) o[e] = kernels::convert<T>(part.o[e] / part.sum);
        *reinterpret_cast<kernels::Packed<T, 4>*>(p_.o.at(text_, token, head) + column) = o;
        if (p_.lse != nullptr && column == 0)
            p_.lse[(std::int64_t{text_} * p_.heads + head) * p_.tokens + token] =
                part.maximum + logf(part.sum);
    }

    const DecodeParameters<T>& p_;
    Shared& shared_;
    kernels::ClusterReceiver receiver_;
    int thread_, lane_, warp_;
    int text_, kv_head_, split_;
    int first_query_, own_queries_;  // among the queries that share the K/V head
    int position_, slot_;
    bool exists_;
    int first_new_block_ = -1, last_new_block_ = -1;  // of the new keys
    device::DeviceMask mask_;
    int first_seen_key_ = 0;
    KeysOfSplit keys_{0, 0, 0};
    int cluster_, rank_, clusters_;
    int blocks_;               // blocks in this cluster that have keys
    int share_, own_vectors_;  // block r in the cluster merges the vectors from r * share_ on
};

/// The grid is (splits, Hkv * query_sets, R); clusters span the split axis.
template <class Thread>
__global__ void __launch_bounds__(Thread::Block::threads, Thread::Block::blocks_per_sm)
    decode_kernel(const __grid_constant__ typename Thread::Parameters p) {
    extern __shared__ __align__(1024) unsigned char memory[];
    kernels::allow_successor();
    Thread thread(p, *reinterpret_cast<typename Thread::Shared*>(memory));
    thread.read_ahead();
    thread.expect_parts();
    kernels::await_results();
    thread.write_missing_text();
    if (!thread.has_keys()) return;
    thread.load_queries();
    thread.attend();
    thread.reduce_warps();
    thread.merge_cluster();
    thread.merge_clusters();
}

/// Nothing if the kernel has no clusters on the current device.
inline std::optional<ClustersAtOnce> clusters_by_size(const void* kernel, gradtile::cuda::Block block) {
    if (!gradtile::cuda::has_clusters(kernel)) return {};
    const auto of = [&](unsigned cluster) {
        block.cluster = cluster;
        return gradtile::cuda::clusters_at_once(kernel, block);
    };
    return ClustersAtOnce{.of_2 = of(2), .of_4 = of(4), .of_8 = of(8)};
}

/// Launches decode_kernel() for a plan, whose keys it divides for this kernel's clusters.
template <class Thread>
void launch_decode(const Context& ctx, const DecodeProblem& problem, DecodePlan plan,
                   typename Thread::Parameters p) {
    const auto kernel = decode_kernel<Thread>;
    gradtile::cuda::Block block{.threads = Thread::Block::threads,
                                .shared_bytes = sizeof(typename Thread::Shared),
                                .starts_early = true};
    gradtile::cuda::use_device(ctx.device());
    const auto at_once = clusters_by_size(reinterpret_cast<const void*>(kernel), block);
    if (at_once) {
        plan.divide_keys(problem, *at_once);
        p.cheap_splits = plan.cluster;
        p.cluster_log2 = std::countr_zero(static_cast<unsigned>(plan.cluster));
    }
    const dim3 grid(static_cast<unsigned>(plan.splits),
                    static_cast<unsigned>(problem.kv_heads * plan.query_sets),
                    static_cast<unsigned>(problem.texts));
    block.cluster = 1u << p.cluster_log2;
    gradtile::cuda::launch(ctx, kernel, grid, block, p);
}

}  // namespace gradtile::attention::cuda::decoding
