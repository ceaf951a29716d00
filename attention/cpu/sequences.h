#pragma once
/// INTERNAL. A call's sequences. In a batch, all sequences have the same length. Packed sequences have
/// different lengths.
#include <vector>

#include <gradtile/attention/cpu/kernels.h>
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cpu {

struct Sequence {
    std::int64_t index = 0;  ///< the sequence's number in the call, from which dropout's masks follow
    Mask mask;               ///< the call's mask, with this sequence's lengths
    std::int64_t batch = 0;  ///< the sequence's batch index in tensors [B, S, H, D]
    std::int64_t first_row = 0, first_key = 0;
};

/// Returns the sequences of a call with q [B, Sq, Hq, Dqk]. Packed sequences are sorted by decreasing work,
/// because long sequences should start first. On a wrong offset, throws Error naming the option, the index
/// and the value. Dry runs must not call this function, because they cannot read offsets.
std::vector<Sequence> sequences_of(const ResolvedOptions& options, const Tensor& q);

/// Returns the options for one packed sequence, as if the call had only this sequence.
ResolvedOptions options_of(const ResolvedOptions& options, const Sequence& sequence);

/// Returns the part of x [1, S, ...] after the last packed sequence. The part is empty if the call has no
/// packed sequences.
Tensor rows_after_last(const PackedSequences& packed, const Tensor& x);
Tensor keys_after_last(const PackedSequences& packed, const Tensor& x);
/// Returns where one (batch, head)'s LSE and remainder are in `saved`, from row `first_row` on.
template <class A>
RowLse<A> row_lse_of(const Saved& saved, std::int64_t batch, std::int64_t head, std::int64_t first_row = 0) {
    const auto numbers = [&](const Tensor& x) {
        return x.defined() ? x.data<A>() + batch * x.stride(0) + head * x.stride(1) + first_row : nullptr;
    };
    return {numbers(saved.lse), numbers(saved.lse_remainder)};
}
/// Sets the LSE to -inf and the remainder to 0 in rows after the last packed sequence.
void clear_lse_after_last(const Context& ctx, const PackedSequences& packed, const Saved& saved);

}  // namespace gradtile::attention::cpu
