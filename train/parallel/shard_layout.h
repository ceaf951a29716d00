#pragma once
/// How the flat blocks of a ParameterStore are cut into buckets, each one exchange between processes, and
/// which process updates which stretch of a bucket under ZeRO-1.
#include <functional>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// `within`, cut near borders of parameters into stretches that are multiples of `multiple` and hold
/// `at_least` elements where there are as many. A large parameter is not cut: one exchange of it is faster
/// than several.
std::vector<FlatRange> cut_into_buckets(std::span<const Parameter> parameters, const FlatRange& within,
                                        std::int64_t at_least, std::int64_t multiple);

/// What the flat blocks' length must be a multiple of, for parts that are equal and aligned.
std::int64_t flat_multiple(int parts);

/// What updating a parameter costs, in any unit, where one process must update all of it, as Muon must with a
/// matrix; 0 where it can be cut anywhere. Empty: every parameter can.
using WholeCost = std::function<double(const Parameter&)>;

struct OwnedRange {
    FlatRange range;
    int owner = 0;
    bool operator==(const OwnedRange&) const = default;
};

struct ShardBucket {
    FlatRange range;
    bool equal_parts = true;        ///< parts[r] is process r's, all of one length
    std::vector<OwnedRange> parts;  ///< back to back, all of the range
};

/// The buckets of flat blocks of `elements`, a multiple of flat_multiple(processes), and who updates what.
/// Where every parameter can be cut, parts are equal. From the first parameter to the last one that must stay
/// whole, parameters are handed out whole: the costliest first, each to the process with the least to do
/// (Graham 1969: at most 4/3 of the best balance); what lies between them goes with its predecessor.
std::vector<ShardBucket> shard_buckets(std::span<const Parameter> parameters, std::int64_t elements,
                                       std::int64_t at_least, int processes,
                                       const WholeCost& whole_cost = {});

/// The most elements that one process updates.
std::int64_t largest_shard(std::span<const ShardBucket> buckets, int processes);

}  // namespace gradtile
