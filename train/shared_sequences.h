#pragma once
/// SharedSequences: context parallelism. Groups of neighbouring ranks share the sequences of a batch: each
/// rank holds all parameters, and computes two chunks of every sequence, in zigzag order. Only attention
/// needs the other ranks' tokens (ring_attention.h). Losses and gradients are sums over all ranks' tokens, as
/// they are over sequences.
#include <memory>
#include <span>

#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/parallel/communicator.h>

namespace gradtile {

class SharedSequences {
  public:
    /// `processes` neighbouring ranks share sequences of at most `context` tokens; 1: each process computes
    /// whole sequences. The communicator must outlive this object. Throws Error unless `processes` divides
    /// the communicator's size.
    SharedSequences(const Context& ctx, const Communicator& communicator, std::int64_t processes,
                    std::int64_t context);

    /// The number of groups, which compute different sequences.
    int groups() const { return groups_; }
    int group() const { return group_; }  ///< this process's group
    /// How many processes share a sequence.
    int processes() const { return ring_->size(); }
    /// Whether this process is the first one of its group.
    bool is_first() const { return ring_->rank() == 0; }
    /// The shortest rows that hold `longest` tokens and can be shared.
    std::int64_t row_length(std::int64_t longest) const;
    /// Returns this process's part [B, T / processes] of a group's rows [B,T] on ctx's device, with
    /// positions; the batch itself if sequences are not shared. Packed rows have the ranges of
    /// write_row_ranges() instead of offsets. Throws Error unless T is a multiple of 2 * processes and at
    /// most the context.
    Batch part_of(const Context& ctx, const Batch& full) const;

    /// Whether part_of() needs row ranges of packed rows.
    bool needs_row_ranges(const Packing& packing) const { return processes() > 1 && packing; }
    /// Writes the row ranges of all ranks' keys, [processes * B, 1, T / processes, 4] in host memory, for
    /// packed rows of T tokens whose documents begin at `offsets`, see Documents.
    void write_row_ranges(std::span<const std::int32_t> offsets, std::int64_t row_length,
                          std::span<std::int32_t> ranges) const;
    /// Returns a host batch as part_of() needs it: packed rows with their row ranges, in new memory from ctx.
    Batch with_row_ranges(const Context& ctx, const Batch& host) const;

  private:
    int groups_, group_;
    std::unique_ptr<attention::Ring> ring_;
    Tensor positions_;  // int32 [context] on the device: 0, 1, ...; undefined if sequences are not shared
};

}  // namespace gradtile
