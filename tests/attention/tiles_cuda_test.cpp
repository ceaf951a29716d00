// Tests the GPU kernels' tile sizes for every shared-memory limit per thread block, including GPUs for which
// the sizes were not tuned. These tests need no GPU.
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/attention/cuda/f32/tiles.h>
#include <gradtile/attention/cuda/sm80/tiles.h>

namespace gradtile::attention::cuda {
namespace {

/// Every kernel's shared-memory bytes, for every head dim, at one limit.
std::vector<int> shared_bytes_at(int limit) {
    std::vector<int> bytes;
    const auto add = [&]<int head_dim>(SharedMemory<head_dim>) {
        bytes.push_back(Bits16ForwardChoice<head_dim>::tiles(limit).shared_bytes(head_dim) +
                        static_shared_bytes);
        bytes.push_back(Bits16BackwardChoice<head_dim>::tiles(limit).shared_bytes(head_dim) +
                        static_shared_bytes +
                        4 * head_dim * Bits16BackwardChoice<head_dim>::whole_head_rows(limit));
        bytes.push_back(F32ForwardChoice<head_dim>::tiles(limit).shared_bytes(head_dim));
        bytes.push_back(F32BackwardChoice<head_dim>::tiles(limit).shared_bytes(head_dim));
    };
    add(SharedMemory<32>{});
    add(SharedMemory<64>{});
    add(SharedMemory<96>{});
    add(SharedMemory<128>{});
    add(SharedMemory<192>{});
    add(SharedMemory<256>{});
    return bytes;
}

TEST(AttentionTilesCuda, TilesOfEveryHeadDimFitTheSharedMemoryOfEveryGpu) {
    for (const int limit : shared_memory_limits)
        for (const int bytes : shared_bytes_at(limit)) EXPECT_LE(bytes, limit);
}

TEST(AttentionTilesCuda, TilesDoNotGrowWhenTheSharedMemoryShrinks) {
    for (int index = 1; index < shared_memory_classes; ++index) {
        const std::vector<int> more = shared_bytes_at(shared_memory_limits[index - 1]),
                               less = shared_bytes_at(shared_memory_limits[index]);
        for (std::size_t i = 0; i < more.size(); ++i) EXPECT_LE(less[i], more[i]) << i;
    }
}

struct ExampleChoice {
    static constexpr int tiles(int limit) { return limit >= shared_memory_limits[1] ? 2 : 1; }
};

TEST(AttentionTilesCuda, AGpuGetsTheLargestTilesThatFitItsSharedMemory) {
    const auto chosen = [](int available) {
        int limit = 0;
        visit_shared_memory<ExampleChoice>(available, [&]<int bytes>(SharedMemory<bytes>) { limit = bytes; });
        return limit;
    };
    EXPECT_EQ(chosen(shared_memory_limits[0]), shared_memory_limits[0]);
    EXPECT_EQ(chosen(shared_memory_limits[1]), shared_memory_limits[0])
        << "limits with the same tiles share one kernel";
    EXPECT_EQ(chosen(shared_memory_limits[1] - 1), shared_memory_limits[2]);
    EXPECT_EQ(chosen(shared_memory_limits[2]), shared_memory_limits[2]);
}

}  // namespace
}  // namespace gradtile::attention::cuda
