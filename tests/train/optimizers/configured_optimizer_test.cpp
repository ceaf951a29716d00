#include <gradtile/train/configured_optimizer.h>

#include <map>
#include <set>

#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
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
    store.allocate(ctx, storage_dtype(config.dtype), {.masters = false, .value_block = config.zero < 3});
    OptimizerShard shard;
    std::int64_t packed = 0;
    for (const ShardBucket& bucket : shard_buckets(store, processes, data_parallel_options(config)))
        for (const OwnedRange& part : bucket.parts)
            if (part.owner == rank) {
                shard.ranges.push_back(part.range);
                packed += part.range.length;
            }
    shard.gradients = zeros(ctx, {packed}, DType::f32);
    if (is_16_bit(store.dtype())) shard.masters = zeros(ctx, {packed}, DType::f32);
    if (config.zero == 3) shard.values = zeros(ctx, {packed}, store.dtype());
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
    for (const auto& [dtype, moments] : {std::pair{TrainDType::f32, MomentFormat::f32},
                                         {TrainDType::f32, MomentFormat::int8},
                                         {TrainDType::bf16, MomentFormat::bf16}})
        for (const auto& [processes, zero] : {std::pair{2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 2}, {3, 3}}) {
            config.zero = zero;
            config.dtype = dtype;
            config.moment_dtype = moments;
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
    for (const auto& [moments, name] : EnumNames<MomentFormat>::names) {
        config.moment_dtype = moments;
        EXPECT_EQ(plan_memory(ctx, memory_request(config, Device::cpu())).optimizer,
                  make_optimizer(ctx, store, config)->state_bytes() - 4);
    }
}

/// The row counts of q, k and v, and of gate and up, also where LoRA's adapters change them.
TEST(ConfiguredOptimizer, MuonSplitsPackedMatrices) {
    ParameterStore store, frozen;
    const Transformer model(
        as_llama({.layers = 1, .heads = 4, .kv_heads = 2, .width = 32, .context = 8, .vocabulary = 8}), store,
        frozen, {}, {.rank = 2});
    const auto rows_of = [&](const ParameterStore& of, const char* name) {
        return block_matrix_rows(of.find(name), model.config);
    };
    using Rows = std::vector<std::int64_t>;
    const std::int64_t hidden = model.config.hidden_width();
    EXPECT_EQ(rows_of(frozen, "h.0.attn.qkv.weight"), (Rows{32, 16, 16}));
    EXPECT_EQ(rows_of(frozen, "h.0.mlp.gate_up.weight"), (Rows{hidden, hidden}));
    EXPECT_EQ(rows_of(frozen, "h.0.mlp.down.weight"), (Rows{32}));
    EXPECT_EQ(rows_of(frozen, "h.0.attn.proj.weight"), (Rows{32}));
    EXPECT_EQ(rows_of(frozen, "h.0.norm_1.weight"), Rows{});
    EXPECT_EQ(rows_of(frozen, "wte.weight"), Rows{});
    EXPECT_EQ(rows_of(store, "h.0.attn.qkv.lora_a"), (Rows{2}));
    EXPECT_EQ(rows_of(store, "h.0.attn.qkv.lora_b"), (Rows{32, 16, 16}));
    EXPECT_EQ(rows_of(store, "h.0.mlp.gate_up.lora_b"), (Rows{hidden, hidden}));
}

/// Gates, embeddings of values and factors of sums are AdamW's.
TEST(ConfiguredOptimizer, MuonLeavesGatesAndValueEmbeddingsToAdamW) {
    ModelConfig config{.layers = 2, .heads = 2, .width = 32, .context = 8, .vocabulary = 8};
    config.x0_lambdas = config.attention_gate = config.value_embeddings = true;
    ParameterStore store;
    const Transformer model(config, store);
    for (const char* const name : {"h.1.attn.gate.weight", "h.1.attn.value_gate.weight",
                                   "h.1.attn.value_embedding.weight", "h.1.mix.stream", "h.1.mix.x0"})
        EXPECT_TRUE(block_matrix_rows(store.find(name), config).empty()) << name;
}

/// Without biases, Muon's matrices of a GPT-2 are all that the factors do not change.
TEST(ConfiguredOptimizer, MultipliesTheRatesOfEmbeddingsHeadAndVectors) {
    const Context ctx(Device::cpu(), 1);
    const auto values_after_a_step = [&](const std::function<void(TrainConfig&)>& change) {
        TrainConfig config;
        config.model = {.layers = 1,
                        .heads = 2,
                        .width = 16,
                        .context = 8,
                        .vocabulary = 11,
                        .tied_head = false,
                        .value_embeddings = true};
        change(config);
        validate(config);
        ParameterStore store;
        const Transformer model(config.model, store);
        store.allocate(ctx, DType::f64);
        store.initialize(ctx, Seed{1});
        copy(ctx, store.gradients(), randn(ctx, store.gradients().shape(), DType::f64, Seed{2}));
        make_optimizer(ctx, store, config)->step(ctx, config.lr);
        std::map<std::string, std::vector<double>> values;
        for (const Parameter& parameter : store.parameters())
            values[parameter.name()] = to_host(ctx, parameter.value());
        return values;
    };
    for (const OptimizerKind kind : {kind_of<AdamWSettings>, kind_of<MuonSettings>}) {
        const auto with = [&](double factor, double TrainConfig::*member) {
            return values_after_a_step([&](TrainConfig& c) {
                c.optimizer = kind;
                c.*member = factor;
            });
        };
        const auto plain = with(1.0, &TrainConfig::embedding_lr_factor);
        const auto changed_by = [&](double TrainConfig::*member) {
            std::set<std::string> names;
            for (const auto& [name, values] : with(2.0, member))
                if (values != plain.at(name)) names.insert(name);
            return names;
        };
        using Names = std::set<std::string>;
        EXPECT_EQ(changed_by(&TrainConfig::embedding_lr_factor),
                  (Names{"wte.weight", "wpe.weight", "h.0.attn.value_embedding.weight"}));
        EXPECT_EQ(changed_by(&TrainConfig::head_lr_factor), (Names{"head.weight"}));
        EXPECT_EQ(changed_by(&TrainConfig::vector_lr_factor),
                  (Names{"h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.ln_2.weight", "h.0.ln_2.bias",
                         "h.0.attn.qkv.bias", "h.0.attn.proj.bias", "h.0.mlp.fc.bias", "h.0.mlp.proj.bias",
                         "ln_f.weight", "ln_f.bias"}));
    }
}

/// Without gradients a step only decays: the blocks' matrices by muon-weight-decay, the others by
/// weight-decay.
TEST(ConfiguredOptimizer, DecaysMuonsMatricesByTheirOwnDecay) {
    const Context ctx(Device::cpu(), 1);
    TrainConfig config;
    config.model = {.layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary = 11};
    config.optimizer = kind_of<MuonSettings>;
    config.lr = 0.1;
    config.weight_decay = 0.5;
    auto& muon = std::get<MuonSettings>(config.optimizer_settings);
    muon.lr = 0.2;
    ParameterStore store;
    const Transformer model(config.model, store);
    store.allocate(ctx, DType::f64);
    fill(ctx, store.gradients(), 0.0);
    for (const auto& [decay, used] : {std::pair{-1.0, 0.5}, {0.0, 0.0}, {0.25, 0.25}}) {
        muon.weight_decay = decay;
        store.initialize(ctx, Seed{1});
        const double matrix = to_host(ctx, model.blocks[0].attn.qkv.weight.value())[0],
                     embedding = to_host(ctx, model.wte.weight.value())[0];
        make_optimizer(ctx, store, config)->step(ctx, config.lr);
        EXPECT_DOUBLE_EQ(to_host(ctx, model.blocks[0].attn.qkv.weight.value())[0], (1 - 0.2 * used) * matrix);
        EXPECT_DOUBLE_EQ(to_host(ctx, model.wte.weight.value())[0], (1 - 0.1 * 0.5) * embedding);
    }
}

/// The second moments of rows count, in every shard.
TEST(ConfiguredOptimizer, PlansTheSecondMomentsOfRows) {
    TrainConfig config;
    config.model = as_llama({.layers = 3, .heads = 2, .width = 64, .context = 32, .vocabulary = 101});
    config.optimizer = kind_of<MuonSettings>;
    std::get<MuonSettings>(config.optimizer_settings).split = true;
    std::get<MuonSettings>(config.optimizer_settings).beta2 = 0.95;
    config.moment_dtype = MomentFormat::bf16;  // of the momentum, not of the rows' moments
    config.micro_batch = 1;
    for (const int processes : {1, 2, 3}) {
        config.batch = processes;
        config.zero = processes > 1 ? 1 : 0;
        OptimizerPart largest;
        for (int rank = 0; rank < processes; ++rank)
            largest.state_bytes =
                std::max(largest.state_bytes, allocated_part(config, rank, processes).state_bytes);
        EXPECT_EQ(plan_memory(Context(Device::cpu(), 1), memory_request(config, Device::cpu(), processes))
                      .optimizer,
                  largest.state_bytes)
            << processes;
    }
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
