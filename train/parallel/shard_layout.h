#pragma once
/// Divides a ParameterStore's flat blocks into buckets (one exchange between processes each) and, under
/// ZeRO-1, a bucket into the ranges that each process updates.
#include <functional>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// Cuts `within` into ranges near parameter borders. Lengths are multiples of `multiple` and at least
/// `min_elements`, except for the last. A large parameter is not cut: one large exchange is faster than
/// several.
std::vector<FlatRange> cut_into_buckets(std::span<const Parameter> parameters, const FlatRange& within,
                                        std::int64_t min_elements, std::int64_t multiple);

/// The flat blocks' length must be a multiple of this number, so that parts are equal and aligned.
std::int64_t flat_multiple(int parts);

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
    bool equal_parts = true;        ///< parts[r] belongs to process r, and all have the same length
    std::vector<OwnedRange> parts;  ///< contiguous; together they are `range`
};

/// Buckets and their owners, for flat blocks with `elements` elements, a multiple of
/// flat_multiple(processes). If every parameter in a bucket can be cut, the bucket's parts are equal. Between
/// the first and the last parameter with a whole_cost, parameters are assigned whole: by decreasing cost,
/// each to the process with the least load (Graham 1969: at most 4/3 of the optimal maximum load). Parameters
/// with cost 0 in between have the same owner as the parameter before them.
std::vector<ShardBucket> shard_buckets(std::span<const Parameter> parameters, std::int64_t elements,
                                       std::int64_t min_elements, int processes,
                                       const WholeCost& whole_cost = {});

/// The largest element count that one process updates.
std::int64_t largest_shard(std::span<const ShardBucket> buckets, int processes);

}  // namespace gradtile
