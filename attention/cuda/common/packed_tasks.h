#pragma once
/// INTERNAL. Packed sequences on the GPU. The host does not know their lengths: kernels read the offsets when
/// they run, so that a captured CUDA graph can be replayed with other offsets. A small kernel first writes a
/// task table. A task is a row block or a key block in one sequence. The table is long enough for every way
/// to divide the total rows or keys into sequences.
#include <cstdint>

#include <cuda_runtime_api.h>

#include <gradtile/attention/cuda/common/packed_shapes.h>
#include <gradtile/attention/cuda/common/mask.cuh>

namespace gradtile::attention::cuda {

/// Packed sequence offsets. An offset outside the tensors is replaced by the nearest valid offset. The rows
/// and keys after the last sequence count as sequence number `count`. These rows see no keys, and no row sees
/// these keys.
struct PackedOffsets {
    const std::int32_t *q = nullptr, *k = nullptr;  ///< [count + 1] each; null if sequences are not packed
    int count = 0;
    int total_queries = 0, total_keys = 0;
    int max_queries = 0, max_keys = 0;  ///< longer sequences are cut: the biases have no numbers beyond
    bool top_left = false;

    PackedOffsets() = default;
    explicit PackedOffsets(const ResolvedOptions& options) {
        if (!options.packed) return;
        q = options.packed.q_offsets.data<std::int32_t>();
        k = options.packed.k_offsets.data<std::int32_t>();
        count = static_cast<int>(options.packed.count);
        total_queries = static_cast<int>(options.mask.queries);
        total_keys = static_cast<int>(options.mask.keys);
        max_queries = static_cast<int>(options.packed.max_queries);
        max_keys = static_cast<int>(options.packed.max_keys);
        top_left = options.packed.top_left;
    }
    GRADTILE_HOST_DEVICE explicit operator bool() const { return q != nullptr; }

    struct Range {
        int begin, end;
    };
    __device__ Range queries(int sequence) const { return range(q, sequence, total_queries, max_queries); }
    __device__ Range keys(int sequence) const { return range(k, sequence, total_keys, max_keys); }
    /// Returns the sequence that contains q row `row`.
    __device__ int sequence_of_query(int row) const { return sequence_of(q, row); }
    __device__ int sequence_of_key(int key) const { return sequence_of(k, key); }

  private:
    __device__ Range range(const std::int32_t* offsets, int sequence, int total, int longest) const {
        const int begin = max(0, min(offsets[sequence], total));
        if (sequence == count) return {begin, total};
        return {begin, max(begin, min(offsets[sequence + 1], begin + min(longest, total - begin)))};
    }
    /// The last sequence that begins at or before `position`.
    __device__ int sequence_of(const std::int32_t* offsets, int position) const {
        int first = 0, last = count;
        while (first < last) {
            const int middle = (first + last + 1) / 2;
            if (offsets[middle] <= position) {
                first = middle;
            } else {
                last = middle - 1;
            }
        }
        return first;
    }
};

/// A sequence's first padded row. Its rows, rounded up, end before the next sequence begins.
GRADTILE_HOST_DEVICE inline int packed_padded_row(int sequence, int first_query) {
    return (first_query / packed_row_padding + sequence) * packed_row_padding;
}

/// Counters for kernels whose thread blocks take one task after the other.
struct PackedCounters {
    int tasks;  ///< the tasks in the table
    int taken;  ///< 0 at first; kernels add to it
};

/// One kernel's tasks; empty unless the call is packed.
struct PackedTasks {
    PackedTask* first = nullptr;
    int count = 0;  ///< table elements; depends on the totals only

    GRADTILE_HOST_DEVICE explicit operator bool() const { return first != nullptr; }
    /// The counters follow the last element.
    GRADTILE_HOST_DEVICE PackedCounters* counters() const {
        return reinterpret_cast<PackedCounters*>(first + count);
    }
};

/// The tasks in a table with packed_table_elements(); null if the table is empty or undefined.
inline PackedTask* packed_tasks_in(const Tensor& table) {
    return !table.defined() || table.elements() == 0
               ? nullptr
               : reinterpret_cast<PackedTask*>(table.data<std::int32_t>());
}

/// A table divides each sequence's rows or keys into blocks. The blocks with the most work under a causal
/// mask come first: the last rows, which see the most keys, and the first keys, which most rows see. The last
/// keys come first where key blocks add to dQ in turns.
enum class PackedOrder : std::uint8_t { last_rows_first, first_keys_first, last_keys_first };

/// Enqueues the kernel that writes tasks with `block` rows or keys each to `table`. Long sequences come
/// first, block by block, so that short tasks fill the end of a run.
PackedTasks make_packed_tasks(cudaStream_t stream, const PackedOffsets& offsets, PackedOrder order, int block,
                              PackedTask* table);

}  // namespace gradtile::attention::cuda
