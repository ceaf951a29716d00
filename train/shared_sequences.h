#pragma once
/// SharedSequences: context parallelism. Groups of neighbouring ranks share the sequences of a batch: each
/// rank holds all parameters, and computes two chunks of every sequence, in zigzag order. Only attention
/// needs the other ranks' tokens (ring_attention.h). Losses and gradients are sums over all ranks' tokens, as
/// they are over sequences.
#include <memory>

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
    /// Whether this process is the first one of its group.
    bool is_first() const { return ring_->rank() == 0; }
    /// The shortest rows that hold `longest` tokens and can be shared.
    std::int64_t row_length(std::int64_t longest) const;
    /// Returns this process's part [B, T / processes] of a group's rows [B,T] on ctx's device, with
    /// positions; the batch itself if sequences are not shared. Throws Error unless T is a multiple of 2 *
    /// processes and at most the context, or if the batch has documents.
    Batch part_of(const Context& ctx, const Batch& full) const;

  private:
    int groups_, group_;
    std::unique_ptr<attention::Ring> ring_;
    Tensor positions_;  // int32 [context] on the device: 0, 1, ...; undefined if sequences are not shared
};

}  // namespace gradtile
