#pragma once
/// INTERNAL. Row ranges (Options::row_ranges) in the CPU's kernels. Kernel files for every instruction set
/// include this header, so all functions that kernels call are always inlined (see
/// GRADTILE_ATTENTION_INLINE).
#include <cstdint>

#include <gradtile/attention/mask.h>

namespace gradtile::attention::cpu {

/// One head's row ranges. Each key's two begins and two ends are in arrays of their own, which vector code
/// can read: [keys], then empty ranges up to a multiple of 64 keys.
struct KeyRanges {
    const std::int32_t* begins[2] = {};  ///< null: every row sees every key
    const std::int32_t* ends[2] = {};

    GRADTILE_ATTENTION_INLINE explicit operator bool() const { return begins[0] != nullptr; }
    GRADTILE_ATTENTION_INLINE IndexRange rows(int range, std::int64_t key) const {
        return {begins[range][key], ends[range][key]};
    }
    /// Sets x[j] to `hidden` where row i does not see key first_key + j. The loop has no branches, so that
    /// the compiler vectorises it.
    template <class A>
    GRADTILE_ATTENTION_INLINE void hide(std::int64_t i, std::int64_t first_key, std::int64_t n, A* x,
                                        A hidden) const {
        const auto row = static_cast<std::int32_t>(i);
        const std::int32_t *const begin_0 = begins[0] + first_key, *const end_0 = ends[0] + first_key,
                                  *const begin_1 = begins[1] + first_key, *const end_1 = ends[1] + first_key;
        for (std::int64_t j = 0; j < n; ++j) {
            const bool in_0 = (row >= begin_0[j]) & (row < end_0[j]);
            const bool in_1 = (row >= begin_1[j]) & (row < end_1[j]);
            x[j] = (in_0 | in_1) ? x[j] : hidden;
        }
    }
    /// How much of the block rows x keys is visible. A key counts as seen by all rows only if one of its
    /// ranges has all of them, so the result may be partial for a block of which everything is visible.
    GRADTILE_ATTENTION_INLINE Coverage coverage(IndexRange rows, IndexRange keys) const {
        const auto first = static_cast<std::int32_t>(rows.begin), end = static_cast<std::int32_t>(rows.end);
        std::int32_t some = 0, all = 1;
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
            const std::int32_t begin_0 = begins[0][j], end_0 = ends[0][j], begin_1 = begins[1][j],
                               end_1 = ends[1][j];
            some |= ((begin_0 < end) & (end_0 > first)) | ((begin_1 < end) & (end_1 > first));
            all &= ((begin_0 <= first) & (end_0 >= end)) | ((begin_1 <= first) & (end_1 >= end));
        }
        return some == 0 ? Coverage::none : all != 0 ? Coverage::full : Coverage::partial;
    }
};

/// Both masks' coverage of a block; both ranges must not be empty.
GRADTILE_ATTENTION_INLINE Coverage coverage_of(const Mask& mask, const KeyRanges& ranges, IndexRange rows,
                                               IndexRange keys) {
    const Coverage by_mask = mask.coverage(rows, keys);
    if (!ranges || by_mask == Coverage::none) return by_mask;
    const Coverage by_ranges = ranges.coverage(rows, keys);
    return by_mask == Coverage::full || by_ranges == Coverage::none ? by_ranges : by_mask;
}

}  // namespace gradtile::attention::cpu
