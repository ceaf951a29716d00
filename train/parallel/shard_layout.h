#pragma once
/// Divides a ParameterStore's flat blocks into buckets (one exchange between processes each) and, under ZeRO,
/// a bucket into the ranges that each process updates.
#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// Calls visit(part, packed) for each part of `within` that is in the ranges. `packed` is the part's place if
/// the ranges are packed without gaps.
template <class Visit>
void visit_packed(std::span<const FlatRange> ranges, const FlatRange& within, Visit&& visit) {
    std::int64_t packed = 0;
    for (const FlatRange& range : ranges) {
        const std::int64_t begin = std::max(range.begin, within.begin);
        const std::int64_t end = std::min(range.end(), within.end());
        if (begin < end) visit(FlatRange{begin, end - begin}, packed + begin - range.begin);
        packed += range.length;
    }
}

/// 48 MiB of gradients in float32, which are two GPT-2 124M blocks.
inline constexpr std::int64_t max_bucket_elements = 12 << 20;

/// Where buckets end: at the first border between parameters after at least `min_elements`. A large parameter
/// is not cut: one large exchange is faster than several.
struct BucketRule {
    std::int64_t min_elements = 1;
    bool end_with_stages = false;  ///< also where a stage begins (ParameterStore::begin_stage())
};

/// The rule where slots hold a few buckets: a bucket ends after a 16th of all elements, at most 12M of them,
/// and with its stage.
BucketRule slot_bucket_rule(std::int64_t elements);

/// Cuts `within`, which begins and ends at borders between parameters, into buckets.
std::vector<FlatRange> cut_into_buckets(std::span<const Parameter> parameters, const FlatRange& within,
                                        const BucketRule& rule);

/// The update cost (in any unit) for a parameter that one process must update whole, such as a matrix under
/// Muon; 0 for parameters that can be cut. Empty: all parameters can be cut.
using WholeCost = std::function<double(const Parameter&)>;

struct OwnedRange {
    FlatRange range;
    int owner = 0;
    bool operator==(const OwnedRange&) const = default;
};

struct ShardBucket {
    FlatRange range;
    std::vector<OwnedRange> parts;  ///< contiguous; together they are `range`
    /// How many of the first parts have the same length, where process r owns parts[r]: all processes', or 0.
    int equal_parts = 0;

    /// The elements in equal parts, at the bucket's beginning, and the others.
    FlatRange equal_range() const;
    FlatRange other_range() const;
    std::span<const OwnedRange> other_parts() const {
        return std::span(parts).subspan(static_cast<std::size_t>(equal_parts));
    }
};

/// Buckets and their owners, for flat blocks with `elements` elements. If every parameter in a bucket can be
/// cut, the bucket has equal parts, and the last process also owns the elements that remain, fewer than
/// 64 `processes`. Between the first and the last parameter with a whole_cost, parameters are assigned whole:
/// by decreasing cost, each to the process with the least load (Graham 1969: at most 4/3 of the optimal
/// maximum load). Parameters with cost 0 in between have the same owner as the parameter before them.
std::vector<ShardBucket> shard_buckets(std::span<const Parameter> parameters, std::int64_t elements,
                                       const BucketRule& rule, int processes,
                                       const WholeCost& whole_cost = {});

/// The largest element count that one process updates.
std::int64_t largest_shard(std::span<const ShardBucket> buckets, int processes);

}  // namespace gradtile
