#include <gradtile/train/parallel/shard_layout.h>

#include <algorithm>
#include <numeric>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

ShardBucket split_equally(const FlatRange& range, int processes) {
    ShardBucket bucket{.range = range, .parts = {}};
    const std::int64_t length = range.length / processes;
    for (int r = 0; r < processes; ++r) bucket.parts.push_back({{range.begin + r * length, length}, r});
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

void append(ShardBucket& bucket, const OwnedRange& part) {
    bucket.range.length += part.range.length;
    if (!bucket.parts.empty() && bucket.parts.back().owner == part.owner) {
        bucket.parts.back().range.length += part.range.length;
    } else {
        bucket.parts.push_back(part);
    }
}

/// Divides `within` into buckets at parameter borders. No parameter is cut: its owner updates it whole.
std::vector<ShardBucket> buckets_of_whole_parameters(std::span<const Parameter> parameters,
                                                     std::span<const int> owners, const FlatRange& within,
                                                     std::int64_t min_elements) {
    std::vector<ShardBucket> buckets;
    std::int64_t begin = within.begin;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (buckets.empty() || buckets.back().range.length >= min_elements)
            buckets.push_back({.range = {begin, 0}, .equal_parts = false, .parts = {}});
        const std::int64_t end = i + 1 < parameters.size() ? parameters[i + 1].offset() : within.end();
        append(buckets.back(), {{begin, end - begin}, owners[i]});
        begin = end;
    }
    return buckets;
}

}  // namespace

std::vector<FlatRange> cut_into_buckets(std::span<const Parameter> parameters, const FlatRange& within,
                                        std::int64_t min_elements, std::int64_t multiple) {
    std::vector<FlatRange> buckets;
    std::int64_t begin = within.begin;
    const auto cut_at = [&](std::int64_t end) {
        buckets.push_back({begin, end - begin});
        begin = end;
    };
    for (const Parameter& parameter : parameters) {
        const std::int64_t border =
            std::min(within.begin + rounded_up(parameter.offset() - within.begin, multiple), within.end());
        if (border - begin >= min_elements) cut_at(border);
    }
    if (begin < within.end()) cut_at(within.end());
    return buckets;
}

std::int64_t flat_multiple(int parts) {
    return parameter_alignment * parts;
}

std::vector<ShardBucket> shard_buckets(std::span<const Parameter> parameters, std::int64_t elements,
                                       std::int64_t min_elements, int processes,
                                       const WholeCost& whole_cost) {
    const std::int64_t multiple = flat_multiple(processes);
    check(elements % multiple == 0, "shards: flat blocks of ", elements, " elements; expected a multiple of ",
          multiple);
    std::vector<ShardBucket> buckets;
    const auto cut_equally = [&](const FlatRange& within) {
        for (const FlatRange& range : cut_into_buckets(parameters, within, min_elements, multiple))
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
    // Both borders of the whole-parameter range move outwards to a multiple of `multiple`, because only such
    // ranges can be cut into equal parts.
    const std::int64_t end = last == costs.end() ? elements : parameters[begin + count].offset();
    const std::int64_t whole_begin = whole_parameters.front().offset() / multiple * multiple;
    const std::int64_t whole_end = elements - (elements - end) / multiple * multiple;
    if (whole_begin > 0) cut_equally({0, whole_begin});
    const std::vector<int> owners = owners_of(std::span(costs).subspan(begin, count), processes);
    for (ShardBucket& bucket : buckets_of_whole_parameters(
             whole_parameters, owners, {whole_begin, whole_end - whole_begin}, min_elements))
        buckets.push_back(std::move(bucket));
    if (whole_end < elements) cut_equally({whole_end, elements - whole_end});
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
