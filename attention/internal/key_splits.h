#pragma once
/// INTERNAL. How many parts a call with few queries splits its keys into, on every device: the smallest
/// number that reaches at least 95% of the best occupancy (FlashAttention's num_splits rule).
#include <algorithm>
#include <cstdint>

namespace gradtile::attention {

/// Calls with fewer keys are not split: on a GPU the kernels for many queries are as fast, and on a CPU the
/// whole call takes only a few microseconds.
inline constexpr std::int64_t min_keys_to_split = 512;

/// Equally long splits; the last split may be shorter.
struct KeySplits {
    std::int64_t count = 1;
    std::int64_t blocks_per_split = 0;  ///< blocks of keys
};

/// The work of a call whose keys can be split between key blocks.
struct SplittableWork {
    std::int64_t key_blocks;
    std::int64_t tasks_per_split;
    std::int64_t concurrent_tasks;  ///< how many tasks can run at the same time
    std::int64_t start_up;          ///< the time that a task takes in addition to its keys, in key blocks

    /// Returns at most `most` splits, none empty.
    KeySplits split(std::int64_t most) const {
        const std::int64_t length = (key_blocks + most - 1) / most;
        return {(key_blocks + length - 1) / length, length};
    }
    /// Returns the busy fraction of the concurrent tasks, averaged over the run time.
    double occupancy(const KeySplits& splits) const {
        const std::int64_t tasks = tasks_per_split * splits.count,
                           runs = (tasks + concurrent_tasks - 1) / concurrent_tasks;
        const double work = static_cast<double>(tasks_per_split * key_blocks),
                     time = static_cast<double>(runs * (splits.blocks_per_split + start_up));
        return work / (time * static_cast<double>(concurrent_tasks));
    }
    /// Returns the fewest splits, at most `limit`, with at least 95% of the best occupancy.
    KeySplits fewest_splits(std::int64_t limit) const {
        double best = 0;
        for (std::int64_t most = 1; most <= limit; ++most) best = std::max(best, occupancy(split(most)));
        std::int64_t most = 1;
        while (occupancy(split(most)) < 0.95 * best) ++most;
        return split(most);
    }
};

}  // namespace gradtile::attention
