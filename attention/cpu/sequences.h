#pragma once
/// INTERNAL. The sequences of a call. Those of a batch have one length; packed sequences have their own.
#include <vector>

#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cpu {

struct Sequence {
    std::int64_t index = 0;  ///< the sequence's number in the call, which selects dropout's masks
    Mask mask;               ///< with the lengths of this sequence
    std::int64_t batch = 0;  ///< where the tensors [B, S, H, D] hold its rows and keys
    std::int64_t first_row = 0, first_key = 0;
};

/// The sequences of a call with q [B, Sq, Hq, Dqk], packed ones in order of decreasing work: long sequences
/// should start first. Throws Error naming the option, the index and the value of a wrong offset. Not for dry
/// runs, which cannot read offsets.
std::vector<Sequence> sequences_of(const ResolvedOptions& options, const Tensor& q);

/// The options of a call that has only this one of the packed sequences.
ResolvedOptions options_of(const ResolvedOptions& options, const Sequence& sequence);

/// The part of x [1, S, ...] after the last packed sequence; empty if the call is not packed.
Tensor rows_after_last(const PackedSequences& packed, const Tensor& x);
Tensor keys_after_last(const PackedSequences& packed, const Tensor& x);

}  // namespace gradtile::attention::cpu
