#pragma once
/// The sequence that a thread block works on. Kernels count rows and keys from its start.
#include <gradtile/attention/cuda/common/packed_tasks.h>
#include <gradtile/attention/score_rule.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>

namespace gradtile::attention::cuda::device {

/// A batch's sequence, or a packed sequence.
struct BlockSequence {
    DeviceMask mask;
    int index;                   ///< the sequence's number in the call; dropout and score rules depend on it
    int batch;                   ///< the batch in the tensors; 0 for packed sequences
    int first_query, first_key;  ///< the sequence's first row and key in the tensors; 0 unless packed
    int first_padded_row;        ///< the sequence's first row in memory with padded rows
    bool is_rest;                ///< true for the rows and keys after the last packed sequence

    __device__ static BlockSequence from_batch(const DeviceMask& mask, int batch) {
        return {mask, batch, batch, 0, 0, 0, false};
    }
    /// Returns a task's sequence. `mask` covers the whole tensors.
    __device__ static BlockSequence from_task(DeviceMask mask, const PackedOffsets& offsets,
                                              const PackedTask& task) {
        mask.queries = task.queries;
        mask.keys = task.keys;
        mask.offset = offsets.top_left ? 0 : task.keys - task.queries;
        return {mask,
                task.sequence,
                0,
                task.first_query,
                task.first_key,
                packed_padded_row(task.sequence, task.first_query),
                task.sequence == offsets.count};
    }

    template <class T>
    __device__ __forceinline__ StridedRows<T> queries(const TensorView<T>& x, int head) const {
        const StridedRows<T> rows = x.head(batch, head);
        return {rows.row(first_query), rows.stride};
    }
    template <class T>
    __device__ __forceinline__ StridedRows<T> keys(const TensorView<T>& x, int head) const {
        const StridedRows<T> rows = x.head(batch, head);
        return {rows.row(first_key), rows.stride};
    }
};

/// A row block of a head.
struct RowBlock {
    BlockSequence sequence;
    int head, number;
    bool exists;

    /// The row block of a thread block if sequences are packed. `mask` covers the whole tensors.
    __device__ __forceinline__ static RowBlock from_tasks(const DeviceMask& mask,
                                                          const PackedOffsets& offsets,
                                                          const PackedTasks& tasks, int block) {
        const PackedTask task = tasks.first[block % tasks.count];
        if (task.sequence < 0) return {.exists = false};
        return {BlockSequence::from_task(mask, offsets, task), block / tasks.count, task.block, true};
    }
};

/// The sequence that contains one row or key, for kernels that compute single pairs (row, key). Rows and keys
/// are numbered as in the tensors.
struct SequenceOfPair {
    Mask mask;  ///< the sequence's mask; row 0 and key 0 begin the sequence
    std::int64_t index, first_query = 0, first_key = 0;
    bool is_rest = false;  ///< true for the rows and keys after the last packed sequence

    /// A packed sequence. `full_mask` covers the whole tensors.
    __device__ SequenceOfPair(const Mask& full_mask, const PackedOffsets& packed, int sequence)
        : mask(full_mask),
          index(sequence),
          first_query(packed.queries(sequence).begin),
          first_key(packed.keys(sequence).begin),
          is_rest(sequence == packed.count) {
        mask.queries = packed.queries(sequence).end - first_query;
        mask.keys = packed.keys(sequence).end - first_key;
        mask.offset = packed.top_left ? 0 : mask.keys - mask.queries;
    }
    __device__ static SequenceOfPair from_query(const Mask& mask, const PackedOffsets& packed,
                                                std::int64_t batch, std::int64_t i) {
        return packed ? SequenceOfPair(mask, packed, packed.sequence_of_query(static_cast<int>(i)))
                      : SequenceOfPair{mask, batch};
    }
    __device__ static SequenceOfPair from_key(const Mask& mask, const PackedOffsets& packed,
                                              std::int64_t batch, std::int64_t j) {
        return packed ? SequenceOfPair(mask, packed, packed.sequence_of_key(static_cast<int>(j)))
                      : SequenceOfPair{mask, batch};
    }
    /// Returns the keys in this sequence that row i sees. If row i belongs to another sequence, the range is
    /// empty.
    __device__ IndexRange visible_keys(std::int64_t i) const {
        if (is_rest || i < first_query || i >= first_query + mask.queries) return {first_key, first_key};
        const IndexRange own = mask.visible_keys(i - first_query);
        return {first_key + own.begin, first_key + own.end};
    }
    __device__ IndexRange queries() const { return {first_query, first_query + mask.queries}; }

  private:
    __device__ SequenceOfPair(const Mask& full_mask, std::int64_t batch) : mask(full_mask), index(batch) {}
};

/// A head's rule in a BlockSequence or a SequenceOfPair.
template <class A, class Sequence>
__device__ ScoreRule<A> rule_of(const Sequence& sequence, const ScoreOptions& scores, std::int64_t head) {
    ScoreRule<A> rule = scores.rule_of<A>(sequence.index, head, sequence.first_key);
    rule.offset = sequence.mask.offset;
    if (sequence.is_rest) rule.sink = -static_cast<A>(HUGE_VAL);
    return rule;
}

}  // namespace gradtile::attention::cuda::device
