// The memory and the speed that `gradtile models` predicts.
#include <gradtile/tools/models/model_costs.h>

#include <gtest/gtest.h>

#include <gradtile/layers/transformer/key_value_cache.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/memory_request.h>

namespace gradtile {
namespace {

const Context dry = Context(Device::cpu(), 1).plan(Arena::for_planning(Device::cpu()));

ModelConfig gpt2(std::int64_t layers, std::int64_t heads, std::int64_t width) {
    return {.layers = layers, .heads = heads, .width = width, .context = 1024, .vocabulary = 50257};
}

ModelCost generation(const ModelConfig& config, std::int64_t texts) {
    return generation_cost(dry, Device::cpu(), config, DType::bf16, texts, h200_constants());
}

TrainConfig training(const ModelConfig& model, std::int64_t rank) {
    TrainConfig config;
    config.model = model;
    config.dtype = TrainDType::bf16;
    config.batch = 2;
    config.adapters.rank = rank;
    return config;
}

/// The weights are 2 bytes each, with 47 rows that pad the vocabulary. The activations of a pass over the
/// context are less than 16 rows of the widest tensor, the packed MLP, and the logits.
TEST(ModelCosts, GenerationHoldsWeightsCachesAndAPass) {
    const ModelConfig config = gpt2(12, 12, 768);
    const double weights = 2.0 * static_cast<double>(parameter_count(config) + 47 * 768);
    const double cache = KeyValueCache::bytes_of_text(config, DType::bf16, config.context);
    const double pass = 16.0 * 1024 * 4 * 768 * 2 + 4.0 * 50304 * 8;
    for (const std::int64_t texts : {1, 3}) {
        const auto memory = static_cast<double>(generation(config, texts).memory);
        EXPECT_GE(memory, weights + static_cast<double>(texts) * cache);
        EXPECT_LE(memory, weights + static_cast<double>(texts) * (cache + pass));
    }
}

/// An H100 measured 3,709 and 885 tokens/s (docs/benchmarks.md). An H200 reads memory 1.2 times as fast, and
/// half of a step of the smaller model is the kernels' fixed time.
TEST(ModelCosts, GenerationIsAsFastAsMeasured) {
    EXPECT_NEAR(generation(gpt2(12, 12, 768), 1).tokens_per_second / 3709, 1, 0.2);
    EXPECT_NEAR(generation(gpt2(36, 20, 1280), 1).tokens_per_second / 885, 1, 0.2);
}

TEST(ModelCosts, SeveralTextsShareTheReadingOfWeights) {
    const ModelConfig config = gpt2(12, 12, 768);
    const double one = generation(config, 1).tokens_per_second,
                 eight = generation(config, 8).tokens_per_second;
    EXPECT_GT(eight, 2 * one);
    EXPECT_LT(eight, 8 * one);
}

TEST(ModelCosts, TrainingEqualsThePlan) {
    const TrainConfig config = training(gpt2(2, 12, 768), 0);
    const ModelCost cost = training_cost(dry, Device::cpu(), config, h200_constants());
    EXPECT_EQ(cost.memory, plan_memory(dry, memory_request(config, Device::cpu())).total());
    const StepCost step =
        step_cost(parallel_step(config, 1), h200_constants(), GpuLayout(1, 1), {.nvlink = {}, .network = {}});
    EXPECT_NEAR(cost.tokens_per_second, 2 * 1024 / step.seconds(), 1e-9 * cost.tokens_per_second);
}

/// A step of matrix products alone has 4 instead of 6 products with frozen weights, so 1.5 is the most that
/// adapters gain there. The update of all weights is left out.
TEST(ModelCosts, AdaptersTakeLessMemoryAndTime) {
    CostConstants only_products = h200_constants();
    only_products.attention_flops = only_products.memory_bytes = only_products.update_bytes = 1e30;
    only_products.block_seconds = 0;
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
        TrainConfig all = training(gpt2(12, 12, 768), 0), adapters = training(all.model, 1);
        all.training.recompute = adapters.training.recompute = recompute;
        const ModelCost full = training_cost(dry, Device::cpu(), all, only_products),
                        lora = training_cost(dry, Device::cpu(), adapters, only_products);
        EXPECT_LT(lora.memory, full.memory);
        const double gain = lora.tokens_per_second / full.tokens_per_second;
        EXPECT_GT(gain, recompute == Recompute::none ? 1.45 : 1.3);
        EXPECT_LT(gain, 1.5);
    }
}

}  // namespace
}  // namespace gradtile
