#include <gradtile/train/configured_optimizer.h>

#include <gtest/gtest.h>

#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/memory_request.h>
#include <gradtile/train/parallel/data_parallel.h>

namespace gradtile {
namespace {

/// The optimizer state bytes that process `rank` allocates for its shard, without the update counter (4
/// bytes).
OptimizerPart allocated_part(const TrainConfig& config, int rank, int processes) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const Transformer model(config.model, store);
    store.allocate(ctx, storage_dtype(config.dtype),
                   {.multiple = flat_multiple(processes), .masters = false});
    OptimizerShard shard;
    std::int64_t packed = 0;
    for (const ShardBucket& bucket :
         shard_buckets(store.parameters(), store.flat_elements(), DataParallelOptions{}.bucket_elements,
                       processes, whole_cost(config)))
        for (const OwnedRange& part : bucket.parts)
            if (part.owner == rank) {
                shard.ranges.push_back(part.range);
                packed += part.range.length;
            }
    shard.gradients = zeros(ctx, {packed}, DType::f32);
    if (is_16_bit(store.dtype())) shard.masters = zeros(ctx, {packed}, DType::f32);
    return {static_cast<std::size_t>(packed), make_optimizer(ctx, store, config, shard)->state_bytes() - 4};
}

/// Runs once for each optimizer in the list.
class EveryOptimizer : public testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(ConfiguredOptimizer, EveryOptimizer, testing::ValuesIn([] {
                             std::vector<OptimizerKind> kinds;
                             for (const auto& [kind, name] : EnumNames<OptimizerKind>::names)
                                 kinds.push_back(kind);
                             return kinds;
                         }()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(EveryOptimizer, HasThePlannedBytesInItsLargestShard) {
    TrainConfig config;
    config.optimizer = GetParam();
    config.model = {.layers = 3, .heads = 2, .width = 64, .context = 32, .vocabulary = 101};
    config.micro_batch = 1;
    config.zero = 1;
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16})
        for (const int processes : {2, 3, 4}) {
            config.dtype = dtype;
            config.batch = processes;
            const MemoryPlan plan =
                plan_memory(Context(Device::cpu(), 1), memory_request(config, Device::cpu(), processes));
            OptimizerPart largest;
            for (int rank = 0; rank < processes; ++rank) {
                const OptimizerPart part = allocated_part(config, rank, processes);
                largest.elements = std::max(largest.elements, part.elements);
                largest.state_bytes = std::max(largest.state_bytes, part.state_bytes);
            }
            EXPECT_EQ(plan.optimizer, largest.state_bytes) << processes;
            EXPECT_EQ(plan.masters, dtype == TrainDType::bf16 ? 4 * largest.elements : 0u) << processes;
        }
}

TEST_P(EveryOptimizer, HasThePlannedBytes) {
    TrainConfig config;
    config.optimizer = GetParam();
    config.model = {.layers = 2, .heads = 2, .width = 64, .context = 32, .vocabulary = 101};
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const Transformer model(config.model, store);
    store.allocate(ctx, DType::f32);
    EXPECT_EQ(plan_memory(ctx, memory_request(config, Device::cpu())).optimizer,
              make_optimizer(ctx, store, config)->state_bytes() - 4);
}

TEST(ConfiguredOptimizer, RefusesAnUnknownOptimizer) {
    TrainConfig config;
    config.optimizer = static_cast<OptimizerKind>(99);
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const Transformer model(
        config.model = {.layers = 1, .heads = 1, .width = 8, .context = 8, .vocabulary = 8}, store);
    store.allocate(ctx, DType::f32);
    EXPECT_THROW(make_optimizer(ctx, store, config), Error);
    EXPECT_THROW(update_of(config, store.parameters().front()), Error);
}

/// One moment for a block's matrix, two for every other element.
TEST(ConfiguredOptimizer, PlansOneMomentForMuonsMatrices) {
    TrainConfig config;
    config.model = {.layers = 2, .heads = 2, .width = 64, .context = 32, .vocabulary = 128};
    const Context ctx(Device::cpu(), 1);
    const std::size_t adamw = plan_memory(ctx, memory_request(config, Device::cpu())).optimizer;
    config.optimizer = kind_of<MuonSettings>;
    const std::size_t muon = plan_memory(ctx, memory_request(config, Device::cpu())).optimizer;
    EXPECT_EQ(adamw - muon, 4u * 2 * (3 + 1 + 4 + 4) * 64 * 64);
}

}  // namespace
}  // namespace gradtile
