#pragma once
/// How gradtile's GPU kernels divide the keys when there is one query per head, as when a model generates
/// text: the rule of FlashAttention's num_splits, computed without a GPU.
#include <cstdint>
#include <vector>

namespace gradtile::cli {

/// A GPU with the multiprocessors and the shared memory of an H100 or H200.
inline constexpr int example_multiprocessors = 132, example_shared_bytes = 227 << 10;

struct KeySplit {
    std::int64_t heads = 0;       ///< batch x K/V heads: thread blocks without splits
    int splits = 1;               ///< parts of the keys; each is a thread block
    double occupancy_of_one = 0;  ///< without splits: the part of the GPU that works, averaged over the run
    double occupancy = 0;         ///< with splits
};

/// For several numbers of heads. Empty if the kernels of long sequences compute this shape: fewer than 512
/// keys.
std::vector<KeySplit> key_splits(std::int64_t keys, std::int64_t head_dim);

}  // namespace gradtile::cli
