#pragma once
/// INTERNAL. A call's row ranges, in the form that the kernels read.
#include <vector>

#include <gradtile/attention/cpu/row_ranges.h>
#include <gradtile/attention/cpu/sequences.h>

namespace gradtile::attention::cpu {

/// Copies of the ranges: one for each batch and head that has its own. Without row ranges there are none.
class CallRanges {
  public:
    /// Allocates memory for a call with q [B, Sq, Hq, Dqk], also in dry runs.
    CallRanges(const Context& ctx, const ResolvedOptions& options, const Tensor& q);
    /// Copies the ranges, and returns them for [sequences, heads]; empty if the call has none.
    std::vector<KeyRanges> load(const Context& ctx, const std::vector<Sequence>& sequences) const;

  private:
    RowRanges from_;
    bool is_packed_;
    std::int64_t heads_;
    Tensor copies_;  // [B or 1, Hq or 1, 4, keys]: both begins, then both ends
};

}  // namespace gradtile::attention::cpu
