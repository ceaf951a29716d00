#pragma once
/// How gradtile's GPU kernels divide the keys if there is one query per head, which is the case when a model
/// generates text. The rule is the same as for FlashAttention's num_splits. The functions here need no GPU.
#include <cstdint>
#include <vector>

namespace gradtile::cli {

/// Multiprocessors and shared-memory bytes per multiprocessor in an H100 or H200.
inline constexpr int example_multiprocessors = 132, example_shared_bytes = 227 << 10;

struct KeySplit {
    std::int64_t heads = 0;  ///< batch x K/V heads: thread blocks without splits
    int splits = 1;          ///< key parts, one thread block each
    /// Without splits: the fraction of the GPU that works, averaged over the run.
    double occupancy_of_one = 0;
    double occupancy = 0;  ///< with splits: the same fraction
};

/// Returns the splits for several head counts. The list is empty if there are fewer than 512 keys, because
/// the usual kernels compute such shapes.
std::vector<KeySplit> key_splits(std::int64_t keys, std::int64_t head_dim);

}  // namespace gradtile::cli
