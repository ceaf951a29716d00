#pragma once
/// INTERNAL. The sequences of a call. The sequences of a batch have the same length. Packed sequences have
/// different lengths.
#include <vector>

#include <gradtile/attention/cpu/kernels.h>
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cpu {

struct Sequence {
    std::int64_t index = 0;  ///< the sequence's number in the call, from which dropout's masks follow
    Mask mask;               ///< the call's mask, with the lengths of this sequence
    std::int64_t batch = 0;  ///< the index of the sequence's batch in tensors [B, S, H, D]
    std::int64_t first_row = 0, first_key = 0;
};

/// Returns the sequences of a call with q [B, Sq, Hq, Dqk]. Packed sequences are in order of decreasing work,
/// because long sequences should start first. Throws Error naming the option, the index and the value of a
/// wrong offset. Dry runs must not call this function, because they cannot read offsets.
std::vector<Sequence> sequences_of(const ResolvedOptions& options, const Tensor& q);

/// Returns the options for one of a call's packed sequences, as if the call had only this sequence.
ResolvedOptions options_of(const ResolvedOptions& options, const Sequence& sequence);

/// Returns the part of x [1, S, ...] after the last packed sequence. The part is empty if the call has no
/// packed sequences.
Tensor rows_after_last(const PackedSequences& packed, const Tensor& x);
Tensor keys_after_last(const PackedSequences& packed, const Tensor& x);
/// Returns where the LSE of one (batch, head) of `saved` is, from row `first_row` on.
template <class A>
RowLse<A> row_lse_of(const Saved& saved, std::int64_t batch, std::int64_t head, std::int64_t first_row = 0) {
    const auto numbers = [&](const Tensor& x) {
        return x.defined() ? x.data<A>() + batch * x.stride(0) + head * x.stride(1) + first_row : nullptr;
    };
    return {numbers(saved.lse), numbers(saved.lse_remainder)};
}
/// Sets the LSE of rows after the last packed sequence to -inf, and the remainder to 0.
void clear_lse_after_last(const Context& ctx, const PackedSequences& packed, const Saved& saved);

}  // namespace gradtile::attention::cpu
