#include <gradtile/tools/plan/collective_cost.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

constexpr Links links{.nvlink = {.bytes_per_second = 300e9, .latency = 5e-6},
                      .network = {.bytes_per_second = 50e9, .latency = 20e-6}};

TEST(CollectiveCost, OneGpuSendsNothingAndTakesNoTime) {
    const GpuLayout alone(1, 8);
    EXPECT_EQ(all_reduce_wire_bytes(alone, 1e9).total(), 0);
    EXPECT_EQ(all_reduce_seconds(alone, links, 1e9), 0);
    EXPECT_EQ(scatter_seconds(alone, links, 1e9), 0);
    EXPECT_EQ(broadcast_seconds(alone, links, 1e9), 0);
}

/// A ring sends 2 (n - 1) / n times the bytes, regardless of how many links are inside nodes.
TEST(CollectiveCost, AllReduceSendsTheBytesOfARing) {
    for (const std::int64_t gpus : {2, 4, 8, 16, 64, 1024})
        for (const std::int64_t per_node : {1, 2, 4, 8, 1024}) {
            if (gpus > per_node && gpus % per_node != 0) continue;
            const auto n = static_cast<double>(gpus);
            const double expected = 2 * (n - 1) / n * 1e9;
            const GpuLayout layout(gpus, per_node);
            EXPECT_NEAR(all_reduce_wire_bytes(layout, 1e9).total(), expected, 1e-12 * expected);
            EXPECT_NEAR(2 * scatter_wire_bytes(layout, 1e9).total(), expected, 1e-12 * expected);
        }
}

TEST(CollectiveCost, OneNodeUsesNoNetwork) {
    const GpuLayout node(4, 8);
    EXPECT_EQ(all_reduce_wire_bytes(node, 1e9).network, 0);
    // The ring has six steps, and each GPU sends 1.5 times the bytes.
    EXPECT_DOUBLE_EQ(all_reduce_seconds(node, links, 1e9), 6 * 5e-6 + 1.5e9 / 300e9);
    EXPECT_DOUBLE_EQ(scatter_seconds(node, links, 1e9), 3 * 5e-6 + 0.75e9 / 300e9);
    EXPECT_DOUBLE_EQ(broadcast_seconds(node, links, 1e9), 3 * 5e-6 + 1e9 / 300e9);
    Links slow = links;
    slow.network = {.bytes_per_second = 1, .latency = 1};
    EXPECT_EQ(all_reduce_seconds(node, slow, 1e9), all_reduce_seconds(node, links, 1e9));
}

TEST(CollectiveCost, TheSlowerLinkDeterminesTheTimeBetweenNodes) {
    const GpuLayout two_nodes(16, 8);
    // Each GPU sends 1/8 GB over the network: 2.5 ms. Within its node it sends 1.75 GB: 5.8 ms.
    const double latency = 2 * (7 * 5e-6 + 20e-6);
    EXPECT_DOUBLE_EQ(all_reduce_seconds(two_nodes, links, 1e9), latency + 1.75e9 / 300e9);
    Links slow = links;
    slow.network.bytes_per_second = 10e9;
    EXPECT_DOUBLE_EQ(all_reduce_seconds(two_nodes, slow, 1e9), latency + 0.125e9 / 10e9);
    // One-GPU nodes have only a network. A tree with 5 nodes has depth 3, and a ring has 4 steps.
    const GpuLayout single(5, 1);
    EXPECT_DOUBLE_EQ(all_reduce_seconds(single, links, 1e9), 2 * 3 * 20e-6 + 1.6e9 / 50e9);
    EXPECT_DOUBLE_EQ(scatter_seconds(single, links, 1e9), 4 * 20e-6 + 0.8e9 / 50e9);
}

TEST(CollectiveCost, MoreGpusAndMoreBytesTakeLonger) {
    double before = 0;
    for (const std::int64_t gpus : {1, 2, 4, 8, 16, 32, 64, 4096}) {
        const double now = all_reduce_seconds(GpuLayout(gpus, 8), links, 1e8);
        EXPECT_GT(all_reduce_seconds(GpuLayout(gpus, 8), links, 2e8), gpus == 1 ? -1.0 : now);
        EXPECT_GE(now, before);
        before = now;
    }
}

TEST(CollectiveCost, NodesMustBeFull) {
    EXPECT_EQ(GpuLayout(24, 8).nodes(), 3);
    EXPECT_EQ(GpuLayout(6, 8).per_node(), 6);
    try {
        GpuLayout(12, 8);
        FAIL() << "12 GPUs in nodes of 8 were accepted";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("gpus: 12 do not fill nodes of 8"));
    }
    EXPECT_THROW(GpuLayout(0, 8), Error);
    EXPECT_THROW(GpuLayout(8, 0), Error);
}

}  // namespace
}  // namespace gradtile
