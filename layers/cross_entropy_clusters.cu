// Softmax cross-entropy for wide rows on Hopper and later: every logit is read from global memory once and
// its gradient is written once.
//
// A thread block cluster holds a row in shared memory, one row part per block. A block's shared memory is a
// stage ring, which one warp fills by bulk copies and the other warps consume in two passes: first the
// softmax, then the gradient, which frees the stages. The ring is larger than a row part, and freed stages
// are filled with the next rows at once. So global memory is read during both passes.
#include <gradtile/core/tensor.h>
#include <gradtile/core/cuda/device/cluster.cuh>
#include <gradtile/core/cuda/device/cluster_copy.cuh>
#include <gradtile/layers/device/cross_entropy_rows.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace {

/// A thread block: `warps` warps that compute, and one that copies.
struct RingOfRows {
    static constexpr int stages = 14, warps = 16, blocks = 1;  // blocks per multiprocessor
    static constexpr int threads = 32 * warps;
    static constexpr int stage_vectors = 1024, stage_bytes = 16 * stage_vectors;  // 16-byte vectors
    static constexpr int bytes = stages * stage_bytes;
    /// A cluster may have up to 8 blocks on every GPU that has clusters.
    static constexpr int max_cluster = 8;
    /// A row part is smaller than the ring: the other stages load the next row during the softmax, when no
    /// stage is freed.
    static constexpr int max_part_vectors = 10 * stage_vectors;
    /// Upper bound for the shared memory in addition to the ring.
    static constexpr int bytes_of_barriers = 3 << 10;
    /// Shorter rows would spend more time in the exchange between warps than in copies.
    static constexpr std::int64_t min_row_bytes = 48 << 10;
};

template <class L, class Cap>
struct ClusterRows {
    CrossEntropy<L, Cap> c;
    int cluster;       ///< thread blocks that hold a row together
    int part_vectors;  ///< 16-byte vectors per row part; the last block may hold fewer
};

#ifdef GRADTILE_HAS_CLUSTERS

/// Every warp's softmax of a row, for the whole cluster. Consecutive rows alternate between two buffers: a
/// warp sends its softmax of row i only when all warps have sent theirs of row i - 1. All warps have then
/// read the softmaxes of row i - 2, which those of row i overwrite.
template <class Tiles>
struct SharedSoftmax {
    float2 warp_softmaxes[2][Tiles::max_cluster * Tiles::warps];  // largest, sum
    std::uint64_t barriers[2];
};

/// Combines the softmaxes that the cluster's threads have of one row.
template <class Tiles>
class SoftmaxExchange {
  public:
    __device__ __forceinline__ SoftmaxExchange(SharedSoftmax<Tiles>& shared, int cluster)
        : shared_(shared), cluster_(cluster), rank_(device::rank_in_cluster()) {}

    /// One thread calls this; publish_barriers() and a cluster barrier follow.
    __device__ __forceinline__ void initialize() const {
        for (int turn = 0; turn < 2; ++turn) {
            barrier(turn).initialize(is_alone() ? Tiles::warps : 1);
            if (!is_alone()) expect(turn);
        }
    }

    __device__ __forceinline__ Softmax<float> combine(const Softmax<float>& thread_softmax) {
        const Softmax<float> own = combined<32>(thread_softmax);
        send(own);
        barrier(turn_).wait(round_);
        if (threadIdx.x == 0 && !is_alone()) expect(turn_);
        const Softmax<float> all = combined<32>(combined_by_lane());
        turn_ ^= 1;
        if (turn_ == 0) round_ ^= 1;
        return all;
    }

  private:
    /// A kernel that is launched without clusters must not execute st.async: it is an illegal instruction
    /// there. So if a block holds a row alone, its warps use a plain store and a plain arrive.
    __device__ __forceinline__ bool is_alone() const { return cluster_ == 1; }
    __device__ __forceinline__ device::Barrier barrier(int turn) const {
        return device::Barrier(device::shared_address(&shared_.barriers[turn]));
    }
    __device__ __forceinline__ void expect(int turn) const {
        barrier(turn).arrive_and_expect(static_cast<int>(sizeof(float2)) * Tiles::warps * cluster_);
    }
    /// Lane i sends the warp's softmax to block i.
    __device__ __forceinline__ void send(const Softmax<float>& own) {
        const int lane = device::lane_index(), place = rank_ * Tiles::warps + device::warp_index();
        if (lane >= cluster_) return;
        const float2 value = make_float2(own.largest, own.sum);
        float2* const to = &shared_.warp_softmaxes[turn_][place];
        if (is_alone()) {
            *to = value;
            barrier(turn_).arrive();
        } else {
            device::ClusterReceiver(&shared_.barriers[turn_]).send(to, lane, value);
        }
    }
    /// Combines every 32nd softmax.
    __device__ __forceinline__ Softmax<float> combined_by_lane() const {
        const float2* const parts = shared_.warp_softmaxes[turn_];
        Softmax<float> result;
#pragma unroll 1
        for (int i = device::lane_index(); i < cluster_ * Tiles::warps; i += 32)
            result.merge({parts[i].x, parts[i].y});
        return result;
    }

    SharedSoftmax<Tiles>& shared_;
    int cluster_, rank_, turn_ = 0, round_ = 0;
};

/// The row part that this block holds.
template <class L>
struct PartOfRow {
    static constexpr int n = device::vector_length<L>;
    L* logits;
    /// first: the part's first logit, as an index in the row; length: how many logits the part has.
    int first, length;

    template <class Cap>
    __device__ __forceinline__ PartOfRow(const ClusterRows<L, Cap>& rows, std::int64_t row)
        : first(device::rank_in_cluster() * rows.part_vectors * n),
          length(max(0, min(rows.c.width - first, rows.part_vectors * n))) {
        logits = rows.c.logits + row * rows.c.stride + first;
    }
    __device__ __forceinline__ int vectors() const { return (length + n - 1) / n; }
};

/// Calls process(row, target) for this cluster's rows. Reads a row's target while the previous row is
/// processed.
template <class L, class Cap, class Process>
__device__ __forceinline__ void for_each_row(const ClusterRows<L, Cap>& rows, Process&& process) {
    const int clusters = static_cast<int>(gridDim.x) / rows.cluster;
    std::int64_t row = static_cast<int>(blockIdx.x) / rows.cluster;
    int next_target = rows.c.targets[row];  // the grid has no more clusters than there are rows
    for (; row < rows.c.rows; row += clusters) {
        const int target = next_target;
        if (row + clusters < rows.c.rows) next_target = rows.c.targets[row + clusters];
        process(row, target);
    }
}

/// One thread fills the ring with the rows that have a valid target.
template <class Tiles, class L, class Cap>
__device__ __forceinline__ void load_rows(const ClusterRows<L, Cap>& rows, device::Ring<Tiles::stages>& ring,
                                          const uint4* data) {
    device::RingPosition<Tiles::stages> place(ring);
    for_each_row(rows, [&](std::int64_t row, int target) {
        if (!is_valid_target(rows.c, target)) return;
        const PartOfRow<L> part(rows, row);
        for (int begin = 0; begin < part.vectors(); begin += Tiles::stage_vectors) {
            const int bytes = 16 * min(Tiles::stage_vectors, part.vectors() - begin);
            place.wait_empty();
            place.full().arrive_and_expect(bytes);
            device::load_bytes(device::shared_address(data) + place.stage() * Tiles::stage_bytes,
                               part.logits + begin * part.n, bytes, place.full());
            place.advance();
        }
    });
}

/// This thread's vectors in a stage, which begins at vector `begin` of the part.
template <class Tiles, class L>
struct VectorsOfStage {
    static constexpr int count = Tiles::stage_vectors / Tiles::threads;
    uint4 packed[count];

    __device__ __forceinline__ explicit VectorsOfStage(const uint4* stage) {
#pragma unroll
        for (int k = 0; k < count; ++k) packed[k] = stage[threadIdx.x + k * Tiles::threads];
    }
    /// The index of vector k's first logit in the part.
    __device__ __forceinline__ static int logit(int begin, int k) {
        return (begin + static_cast<int>(threadIdx.x) + k * Tiles::threads) * device::vector_length<L>;
    }
};

/// The softmax over this thread's logits in the part.
template <class Tiles, class L, class Cap>
__device__ __forceinline__ Softmax<float> softmax_of(const PartOfRow<L>& part, const Cap& cap,
                                                     const uint4* data,
                                                     device::RingPosition<Tiles::stages>& place) {
    constexpr int n = PartOfRow<L>::n;
    Softmax<float> own;
    for (int begin = 0; begin < part.vectors(); begin += Tiles::stage_vectors) {
        place.wait_full();
        const VectorsOfStage<Tiles, L> vectors(data + place.stage() * Tiles::stage_vectors);
        float values[vectors.count * n];
#pragma unroll
        for (int k = 0; k < vectors.count; ++k) {
            device::unpack<L>(values + k * n, vectors.packed[k]);
#pragma unroll
            for (int j = 0; j < n; ++j) values[k * n + j] = cap(values[k * n + j]).value;
            // The stage holds other bytes beyond the row's end.
            if (const int left = part.length - vectors.logit(begin, k); left < n) {
#pragma unroll
                for (int j = 0; j < n; ++j)
                    if (j >= left) values[k * n + j] = -std::numeric_limits<float>::infinity();
            }
        }
        own.add(values);
        place.advance();
    }
    return own;
}

/// Stores the first `count` elements of a vector.
template <class L>
__device__ __forceinline__ void store_vector(L* to, const float (&values)[PartOfRow<L>::n], int count) {
    if (count >= PartOfRow<L>::n) {
        *reinterpret_cast<uint4*>(to) = device::pack<L>(values);
        return;
    }
#pragma unroll
    for (int j = 0; j < PartOfRow<L>::n; ++j)
        if (j < count) to[j] = device::convert<L>(values[j]);
}

/// A row's target, if this thread computes its gradient.
struct OwnTarget {
    bool found = false;
    float logit = 0;
};

/// Writes the part's gradient and frees its stages. `target` is an index in the part, or outside it.
template <class Tiles, class L, class Cap>
__device__ __forceinline__ OwnTarget write_gradient(const PartOfRow<L>& part, const uint4* data,
                                                    device::RingPosition<Tiles::stages>& place, int target,
                                                    const RowGradient<float, Cap>& gradient) {
    constexpr int n = PartOfRow<L>::n;
    OwnTarget own;
    for (int begin = 0; begin < part.vectors(); begin += Tiles::stage_vectors) {
        const VectorsOfStage<Tiles, L> vectors(data + place.stage() * Tiles::stage_vectors);
        device::release(place);
#pragma unroll
        for (int k = 0; k < vectors.count; ++k) {
            const int first = vectors.logit(begin, k);
            if (first >= part.length) continue;
            float values[n], gradients[n];
            device::unpack<L>(values, vectors.packed[k]);
#pragma unroll
            for (int j = 0; j < n; ++j) gradients[j] = gradient(values[j]);
            if (const int offset = target - first; offset >= 0 && offset < n) {
#pragma unroll
                for (int j = 0; j < n; ++j)
                    if (j == offset) {
                        own = {true, values[j]};
                        gradients[j] -= gradient.target_term(values[j]);
                    }
            }
            store_vector(part.logits + first, gradients, part.length - first);
        }
    }
    return own;
}

/// Writes the loss and the gradient for a row without a valid target: 0 if the target is ignored, else NaN.
template <class Tiles, class L, class Cap>
__device__ void write_part_without_target(const ClusterRows<L, Cap>& rows, std::int64_t row, bool ignored) {
    constexpr int n = PartOfRow<L>::n;
    const PartOfRow<L> part(rows, row);
    if (part.first == 0 && threadIdx.x == 0)
        rows.c.losses[row] = ignored ? 0.0 : std::numeric_limits<double>::quiet_NaN();
    float values[n];
#pragma unroll
    for (float& value : values) value = ignored ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    for (int i = static_cast<int>(threadIdx.x); i < part.vectors(); i += Tiles::threads)
        store_vector(part.logits + i * n, values, part.length - i * n);
}

template <class Tiles, class L, class Cap>
__device__ __forceinline__ void process_rows(const ClusterRows<L, Cap>& rows,
                                             device::Ring<Tiles::stages>& ring, const uint4* data,
                                             SoftmaxExchange<Tiles> exchange) {
    const float factor = gradient_factor(rows.c);
    device::RingPosition<Tiles::stages> place(ring);
    for_each_row(rows, [&](std::int64_t row, int target) {
        if (!is_valid_target(rows.c, target)) {
            write_part_without_target<Tiles>(rows, row, target == ignored_target);
            return;
        }
        const PartOfRow<L> part(rows, row);
        device::RingPosition<Tiles::stages> again = place;
        const Softmax<float> all = exchange.combine(softmax_of<Tiles>(part, rows.c.cap, data, place));
        const RowGradient<float, Cap> gradient{all.largest, factor / all.sum, factor, rows.c.cap};
        const OwnTarget own = write_gradient<Tiles>(part, data, again, target - part.first, gradient);
        if (own.found) rows.c.losses[row] = loss_of_row(all, rows.c.cap(own.logit).value);
    });
}

#endif

template <class L, class Cap, class Tiles>
__global__ void __launch_bounds__(Tiles::threads + 32, Tiles::blocks)
    cross_entropy_clusters_kernel(const ClusterRows<L, Cap> rows) {
#ifdef GRADTILE_HAS_CLUSTERS
    extern __shared__ uint4 ring_of_rows[];
    __shared__ device::Ring<Tiles::stages> ring;
    __shared__ SharedSoftmax<Tiles> shared;
    static_assert(sizeof(ring) + sizeof(shared) <= Tiles::bytes_of_barriers);
    const SoftmaxExchange<Tiles> exchange(shared, rows.cluster);
    if (threadIdx.x == 0) {
        device::initialize(ring, Tiles::warps);
        exchange.initialize();
        device::publish_barriers();
    }
    device::wait_for_cluster();
    device::await_predecessor();
    if (device::warp_index() < Tiles::warps) {
        process_rows<Tiles>(rows, ring, ring_of_rows, exchange);
    } else if (device::lane_index() == 0) {
        load_rows<Tiles>(rows, ring, ring_of_rows);
    }
#endif
}

/// How many blocks share a row; 0 if the row does not fit in the largest cluster.
template <class Tiles>
int cluster_for(std::int64_t row_vectors) {
    for (int cluster = 1; cluster <= Tiles::max_cluster; cluster *= 2)
        if (ceil_div(row_vectors, std::int64_t{cluster}) <= Tiles::max_part_vectors) return cluster;
    return 0;
}

/// Whether every row begins on a 16-byte boundary.
template <class L, class Cap>
bool has_aligned_rows(const CrossEntropy<L, Cap>& c) {
    return reinterpret_cast<std::uintptr_t>(c.logits) % 16 == 0 && c.stride % device::vector_length<L> == 0;
}

template <class Tiles, class L, class Cap>
bool launch_clusters_of_rows(const Context& ctx, const CrossEntropy<L, Cap>& c) {
    constexpr auto kernel = cross_entropy_clusters_kernel<L, Cap, Tiles>;
    use_device(ctx.device());
    const std::int64_t vectors = ceil_div(std::int64_t{c.width}, std::int64_t{device::vector_length<L>});
    const int cluster = cluster_for<Tiles>(vectors);
    if (!c.gradients || !has_aligned_rows(c) || 16 * vectors < Tiles::min_row_bytes || cluster == 0 ||
        !has_clusters(reinterpret_cast<const void*>(kernel)) ||
        shared_memory_of_a_block() < Tiles::bytes + Tiles::bytes_of_barriers)
        return false;
    const Block block{.threads = Tiles::threads + 32,
                      .shared_bytes = static_cast<std::size_t>(Tiles::bytes),
                      .starts_early = true,
                      .cluster = static_cast<unsigned>(cluster)};
    const std::int64_t clusters =
        std::min<std::int64_t>(c.rows, clusters_at_once(reinterpret_cast<const void*>(kernel), block));
    if (clusters == 0) return false;
    const ClusterRows<L, Cap> rows{c, cluster, static_cast<int>(ceil_div(vectors, std::int64_t{cluster}))};
    launch(ctx, kernel, dim3(static_cast<unsigned>(clusters * cluster)), block, rows);
    return true;
}

}  // namespace

template <class L, class Cap>
bool cross_entropy_in_clusters(const Context& ctx, const CrossEntropy<L, Cap>& rows) {
    return launch_clusters_of_rows<RingOfRows>(ctx, rows);
}

using Tanh = TanhSoftcap<SoftcapMath, float>;
using Root = RootSoftcap<SoftcapMath, float>;
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<float, NoSoftcap>&);
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<bfloat16, NoSoftcap>&);
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<float16, NoSoftcap>&);
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<float, Tanh>&);
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<bfloat16, Tanh>&);
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<float16, Tanh>&);
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<float, Root>&);
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<bfloat16, Root>&);
template bool cross_entropy_in_clusters(const Context&, const CrossEntropy<float16, Root>&);

}  // namespace gradtile::cuda
