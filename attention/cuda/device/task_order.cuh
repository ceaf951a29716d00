#pragma once
/// Which part of which (batch, head) a thread block works on.
#include <algorithm>
#include <cstdint>

namespace gradtile::attention::cuda::device {

/// Blocks start in the order of their index. Long tasks belong first, so that the end of the run is filled
/// with short ones: parts are numbered by falling work, and part 0 of all matrices precedes part 1. But the
/// parts of one matrix read the same tensors, so this goes group by group of matrices that the L2 cache holds
/// at once.
struct TaskOrder {
    int matrices = 0, parts = 0, group = 1;

    TaskOrder() = default;
    TaskOrder(std::int64_t matrix_count, int part_count, std::int64_t bytes_per_matrix)
        : matrices(static_cast<int>(matrix_count)), parts(part_count) {
        constexpr std::int64_t cache_bytes = 24 << 20;  // half of what Hopper's L2 holds
        group = static_cast<int>(
            std::clamp<std::int64_t>(cache_bytes / std::max<std::int64_t>(1, bytes_per_matrix), 1,
                                     std::max<std::int64_t>(1, matrix_count)));
    }

    struct Task {
        int matrix, part;
    };
    __device__ Task operator()(int index) const {
        const int first = index / (group * parts) * group, in_group = index - first * parts;
        const int width = min(group, matrices - first);
        return {first + in_group % width, in_group / width};
    }
};

}  // namespace gradtile::attention::cuda::device
