#include <gradtile/train/parallel/shard_layout.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace gradtile {
namespace {

ShardBucket split_equally(const FlatRange& range, int processes) {
    ShardBucket bucket{.range = range, .parts = {}};
    const std::int64_t length = range.length / (parameter_alignment * processes) * parameter_alignment;
    if (length > 0) {
        for (int r = 0; r < processes; ++r) bucket.parts.push_back({{range.begin + r * length, length}, r});
        bucket.equal_parts = processes;
    }
    const std::int64_t end = range.begin + length * processes;
    if (end < range.end()) bucket.parts.push_back({{end, range.end() - end}, processes - 1});
    return bucket;
}

/// Returns each parameter's owner. A parameter with cost 0 has the same owner as the parameter before it.
std::vector<int> owners_of(std::span<const double> costs, int processes) {
    std::vector<std::size_t> order(costs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) { return costs[i]; });
    std::vector<double> loads(static_cast<std::size_t>(processes), 0.0);
    std::vector<int> owners(costs.size(), 0);
    for (const std::size_t i : order) {
        const auto least = std::ranges::min_element(loads);
        *least += costs[i];
        owners[i] = static_cast<int>(least - loads.begin());
    }
    for (std::size_t i = 1; i < costs.size(); ++i)
        if (costs[i] == 0.0) owners[i] = owners[i - 1];
    return owners;
}

/// Divides a bucket at parameter borders. No parameter is cut: its owner updates it whole. `owners` are those
/// of `parameters`, which cover the bucket.
ShardBucket split_by_owners(const FlatRange& range, std::span<const Parameter> parameters,
                            std::span<const int> owners) {
    ShardBucket bucket{.range = range, .parts = {}};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const std::int64_t begin = parameters[i].offset();
        if (begin < range.begin || begin >= range.end()) continue;
        if (bucket.parts.empty() || bucket.parts.back().owner != owners[i])
            bucket.parts.push_back({{begin, 0}, owners[i]});
        const bool is_last = i + 1 == parameters.size() || parameters[i + 1].offset() >= range.end();
        FlatRange& part = bucket.parts.back().range;
        part.length = (is_last ? range.end() : parameters[i + 1].offset()) - part.begin;
    }
    return bucket;
}

}  // namespace

FlatRange ShardBucket::equal_range() const {
    return {range.begin, equal_parts > 0 ? equal_parts * parts.front().range.length : 0};
}

FlatRange ShardBucket::other_range() const {
    const std::int64_t begin = equal_range().end();
    return {begin, range.end() - begin};
}

BucketRule slot_bucket_rule(std::int64_t elements) {
    return {.min_elements = std::clamp(elements / 16, parameter_alignment, max_bucket_elements),
            .end_with_stages = true};
}

std::vector<FlatRange> cut_into_buckets(std::span<const Parameter> parameters, const FlatRange& within,
                                        const BucketRule& rule) {
    std::vector<FlatRange> buckets;
    std::int64_t begin = within.begin;
    const auto cut_at = [&](std::int64_t end) {
        if (end > begin) buckets.push_back({begin, end - begin});
        begin = end;
    };
    std::size_t stage = 0;  // of the parameter before
    for (const Parameter& parameter : parameters) {
        const bool begins_stage = parameter.first_stage() != std::exchange(stage, parameter.first_stage());
        const std::int64_t border = parameter.offset();
        if (border <= within.begin || border >= within.end()) continue;
        if (border - begin >= rule.min_elements || (rule.end_with_stages && begins_stage)) cut_at(border);
    }
    cut_at(within.end());
    return buckets;
}

std::vector<ShardBucket> shard_buckets(std::span<const Parameter> parameters, std::int64_t elements,
                                       const BucketRule& rule, int processes, const WholeCost& whole_cost) {
    std::vector<ShardBucket> buckets;
    const auto cut_equally = [&](const FlatRange& within) {
        for (const FlatRange& range : cut_into_buckets(parameters, within, rule))
            buckets.push_back(split_equally(range, processes));
    };
    std::vector<double> costs(parameters.size(), 0.0);
    if (whole_cost) std::ranges::transform(parameters, costs.begin(), whole_cost);
    const auto is_whole = [](double cost) { return cost > 0.0; };
    const auto first = std::ranges::find_if(costs, is_whole);
    if (first == costs.end()) {
        cut_equally({0, elements});
        return buckets;
    }
    // Just after the last whole parameter.
    const auto last = std::find_if(costs.rbegin(), costs.rend(), is_whole).base();
    const auto begin = static_cast<std::size_t>(first - costs.begin());
    const auto count = static_cast<std::size_t>(last - first);
    const std::span<const Parameter> whole_parameters = parameters.subspan(begin, count);
    const std::vector<int> owners = owners_of(std::span(costs).subspan(begin, count), processes);
    const std::int64_t whole_begin = whole_parameters.front().offset();
    const std::int64_t whole_end = last == costs.end() ? elements : parameters[begin + count].offset();
    cut_equally({0, whole_begin});
    for (const FlatRange& range : cut_into_buckets(parameters, {whole_begin, whole_end - whole_begin}, rule))
        buckets.push_back(split_by_owners(range, whole_parameters, owners));
    cut_equally({whole_end, elements - whole_end});
    return buckets;
}

std::int64_t largest_shard(std::span<const ShardBucket> buckets, int processes) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(processes), 0);
    for (const ShardBucket& bucket : buckets)
        for (const OwnedRange& part : bucket.parts)
            lengths[static_cast<std::size_t>(part.owner)] += part.range.length;
    return *std::ranges::max_element(lengths);
}

}  // namespace gradtile
