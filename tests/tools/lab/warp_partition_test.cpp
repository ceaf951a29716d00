// lab/warp_partition.h: every kernel variant against float64, and the formula for shared memory.
#include <gmock/gmock.h>

#include <gradtile/tools/lab/warp_partition.h>

#include <attention/cuda_fixture.h>

namespace gradtile::attention::test {
namespace {

using lab::GridOrder, lab::WarpPartition;

TEST_F(AttentionCuda, EveryWarpPartitionIsAsAccurateAsNaive) {
    for (const DType dtype : {DType::bf16, DType::f16})
        for (const std::int64_t d : {64, 128})
            for (const auto& [queries, keys] :
                 {std::pair{130, 150}, {150, 130}, {64, 64}, {1, 300}, {300, 1}})
                for (const bool causal : {false, true}) {
                    const Problem problem{.queries = queries,
                                          .keys = keys,
                                          .d_qk = d,
                                          .d_v = d,
                                          .causal = causal,
                                          .batch = 2,
                                          .heads = 3,
                                          .key_heads = 3};
                    const Inputs in = random_inputs(cpu, problem, dtype);
                    const Result naive = run(cpu, in, problem.options(Algorithm::naive));
                    const Reference reference =
                        float64_reference(cpu, problem, in, roundoff_of(dtype, Device::cuda(0)));
                    const Inputs on_device = on_gpu(in);
                    for (const WarpPartition partition : {WarpPartition::split_q, WarpPartition::split_k})
                        for (const GridOrder order : {GridOrder::blocks_fastest, GridOrder::heads_fastest}) {
                            SCOPED_TRACE(::testing::Message() << problem << ' ' << dtype << ", partition "
                                                              << static_cast<int>(partition) << ", order "
                                                              << static_cast<int>(order));
                            const Tensor o = empty(gpu(), in.q.shape(), dtype),
                                         lse = empty(gpu(), {2, 3, queries}, DType::f32);
                            lab::partitioned_forward(gpu(), partition, order, on_device.q, on_device.k,
                                                     on_device.v, causal, o, lse);
                            Result result = naive;  // this kernel has no gradients to compare
                            result.o = to_host(gpu(), o);
                            result.lse = to_host(gpu(), lse);
                            expect_as_accurate_as(naive, result, reference, factors_of(dtype));
                        }
                }
}

/// One tile: 64 rows and keys, 4 warps, d = 64, so Q, K and V have 8 KiB each.
TEST(WarpPartition, SplitKExchangesPartsOfOThroughSharedMemory) {
    constexpr std::int64_t kib = 1024, statistic = 4 * 64 * 4, running = 64 * 4;
    const auto q = lab::shared_traffic(WarpPartition::split_q, 1, 64, 64, 64);
    EXPECT_EQ(q.loads, 8 * kib + 4 * 16 * kib);
    EXPECT_EQ(q.stores, 0);
    const auto k = lab::shared_traffic(WarpPartition::split_k, 1, 64, 64, 64);
    EXPECT_EQ(k.loads, 4 * 8 * kib + 16 * kib + 64 * kib + 5 * (statistic + running) + statistic);
    EXPECT_EQ(k.stores, 64 * kib + 2 * statistic + running);
}

TEST(WarpPartition, TheTrafficGrowsWithTilesAndHeads) {
    for (const WarpPartition partition : {WarpPartition::split_q, WarpPartition::split_k}) {
        const std::int64_t tile_loads = lab::shared_traffic(partition, 1, 64, 64, 128).loads;
        EXPECT_EQ(lab::shared_traffic(partition, 3, 65, 129, 128).loads, 3 * 2 * 3 * tile_loads);
    }
}

TEST(WarpPartition, RefusesTheCpuByName) {
    const Context cpu(Device::cpu(), 1);
    const Tensor x = empty(cpu, {1, 4, 1, 64}, DType::bf16), lse = empty(cpu, {1, 1, 4}, DType::f32);
    try {
        lab::partitioned_forward(cpu, WarpPartition::split_q, GridOrder::blocks_fastest, x, x, x, false, x,
                                 lse);
        FAIL() << "the CPU was accepted";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("runs on cuda, not on cpu"));
    }
}

}  // namespace
}  // namespace gradtile::attention::test
