// Fine-tuning with adapters: training, checkpoints, resume, and the merged model.
#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tiny_run.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/train/configured_optimizer.h>
#include <gradtile/train/model/merged_adapters.h>

#include <support/error_message.h>
#include <support/overfit_batch.h>

namespace gradtile {
namespace {

using test::message_of;
using test::state_of;
using test::TinyRun;
using testing::HasSubstr;

bool is_adapter(const std::string& name) {
    return name.find(".lora_") != std::string::npos;
}

/// A trained base, and the settings for a run that adapts it to other text.
struct LoraRun : TinyRun {
    std::string base;

    explicit LoraRun(TrainDType dtype = TrainDType::f32) {
        config.dtype = dtype;
        config.eval_every = config.save_every = 0;
        config.steps = 100;
        Trainer trainer(config, on_message);
        base = trainer.run().checkpoint.string();
        // The base text's characters in other words, so that the tokenizer knows them.
        std::string other;
        for (int i = 0; i < 700; ++i) other += i % 3 == 0 ? "tac dog. " : i % 3 == 1 ? "nar eht\n" : "gat a ";
        config.data = directory.write("other.txt", other);
        config.init_from = base;
        config.adapters.rank = 4;
        config.out = (directory / "lora").string();
        config.lr = 1e-2;
        config.steps = 40;
        config.save_every = 10;
    }
};

Checkpoint newest(const std::string& run) {
    return load_checkpoint(run);
}

void expect_equal_bits(const Tensor& a, const Tensor& b, const std::string& name) {
    ASSERT_EQ(a.shape(), b.shape()) << name;
    ASSERT_EQ(a.dtype(), b.dtype()) << name;
    EXPECT_EQ(std::memcmp(a.raw_data(), b.raw_data(), a.bytes()), 0) << name;
}

/// The codes of the quantized matrices.
std::vector<double> codes_of(const Trainer& trainer) {
    const LanguageModel& model = trainer.model();
    return model.frozen.codes().defined() ? to_host(model.ctx, model.frozen.codes()) : std::vector<double>();
}

class LoraWithOptimizer : public testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(All, LoraWithOptimizer,
                         testing::Values(kind_of<AdamWSettings>, kind_of<LionSettings>,
                                         kind_of<MuonSettings>),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(LoraWithOptimizer, LearnsWithoutChangingTheBase) {
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16}) {
        LoraRun run(dtype);
        run.config.optimizer = GetParam();
        if (GetParam() == kind_of<LionSettings>) run.config.lr = 2e-3;
        Trainer trainer(run.config, run.on_message);
        std::vector<double> losses;
        trainer.on_step([&](const StepReport& report) { losses.push_back(report.loss); });
        trainer.run();
        EXPECT_LT(losses.back(), 0.8 * losses.front()) << name_of(dtype);

        const Checkpoint before = read_checkpoint(run.base), after = newest(run.config.out);
        for (const auto& [name, x] : before.params) {
            ASSERT_TRUE(after.params.contains(name)) << name;
            expect_equal_bits(after.params.at(name), x, name);
        }
        EXPECT_EQ(after.params.size(), before.params.size() + 2 * 4 * 2);
        // Only adapters have masters and an optimizer's state.
        EXPECT_EQ(after.master.size(), dtype == TrainDType::bf16 ? 16u : 0u);
        for (const auto& [name, x] : after.master) EXPECT_TRUE(is_adapter(name)) << name;
        for (const auto& [name, x] : after.optimizer)
            EXPECT_TRUE(name == "updates" || is_adapter(name)) << name;
        EXPECT_TRUE(run.messages.empty()) << run.messages.front();
    }
}

class LoraResume : public testing::TestWithParam<test::RunSetting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings, LoraResume,
    testing::Values(test::RunSetting{"float32", [](TrainConfig&) {}},
                    test::RunSetting{"bfloat16", [](TrainConfig& c) { c.dtype = TrainDType::bf16; }},
                    test::RunSetting{"muon", [](TrainConfig& c) { c.optimizer = kind_of<MuonSettings>; }},
                    test::RunSetting{"nf4",
                                     [](TrainConfig& c) { c.adapters.frozen_format = WeightFormat::nf4; }},
                    test::RunSetting{"int8_bfloat16",
                                     [](TrainConfig& c) {
                                         c.dtype = TrainDType::bf16;
                                         c.adapters.frozen_format = WeightFormat::int8;
                                     }},
                    test::RunSetting{"everything",
                                     [](TrainConfig& c) {
                                         c.adapters.frozen_format = WeightFormat::nf4;
                                         c.dtype = TrainDType::bf16;
                                         c.training.dropout = 0.1;
                                         c.training.attention_dropout = 0.1;
                                         c.training.recompute = Recompute::block;
                                         c.adapters.on = "attn.qkv,mlp.proj";
                                         c.adapters.alpha = 7;
                                         c.micro_batch = 1;
                                     }}),
    [](const auto& info) { return info.param.name; });

TEST_P(LoraResume, ResumedRunWithOtherThreadCountEqualsUninterruptedRun) {
    LoraRun run;
    GetParam().change(run.config);
    run.config.eval_every = 7;
    TrainConfig uninterrupted_config = run.config;
    uninterrupted_config.out = (run.directory / "uninterrupted").string();
    Trainer uninterrupted(uninterrupted_config, run.on_message);
    uninterrupted.run();
    Trainer(run.config, run.on_message).run(/*stop_after=*/20);
    std::filesystem::remove(run.base);  // the run's own checkpoints are enough
    Trainer second(run.config.out, ResumeOptions{.changes = JsonValue::object({{"threads", 3}})},
                   run.on_message);
    EXPECT_EQ(second.step(), 20);
    second.run();
    EXPECT_EQ(state_of(second), state_of(uninterrupted));
    EXPECT_EQ(to_host(second.model().ctx, second.model().frozen.values()),
              to_host(uninterrupted.model().ctx, uninterrupted.model().frozen.values()));
    EXPECT_EQ(codes_of(second), codes_of(uninterrupted));
    EXPECT_EQ(codes_of(second).empty(), run.config.adapters.frozen_format == WeightFormat::same);
    EXPECT_EQ(TinyRun::losses(run.config.out), TinyRun::losses(uninterrupted_config.out));
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

/// The loaded model has one matrix in place of W x + alpha/r B A x, so results agree to rounding.
TEST(Lora, ALoadedModelHasTheMergedWeights) {
    LoraRun run;
    run.config.adapters.alpha = 10;
    Trainer trainer(run.config, run.on_message);
    trainer.run();
    const LanguageModel& adapted = trainer.model();
    const auto merged = load_model(run.config.out);
    EXPECT_FALSE(merged->has_adapters());
    EXPECT_FALSE(merged->parameters.gradients().defined()) << "a loaded model holds its weights only";
    const Tensor tokens = from_host(adapted.ctx, std::vector<std::int32_t>{1, 5, 2, 7, 3, 3, 0, 8}, {1, 8});
    const auto expected = to_host(adapted.ctx, adapted.transformer.logits_of_all(adapted.ctx, tokens)),
               found = to_host(merged->ctx, merged->transformer.logits_of_all(merged->ctx, tokens)),
               base =
                   to_host(merged->ctx, load_model(run.base)->transformer.logits_of_all(merged->ctx, tokens));
    double largest = 0, error = 0, change = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        error = std::max(error, std::abs(found[i] - expected[i]));
        change = std::max(change, std::abs(base[i] - expected[i]));
    }
    // Two layers of sums over at most 128 elements, each element with a rounding.
    EXPECT_LE(error, 2 * 2 * 128 * 0x1p-24 * largest);
    EXPECT_GT(change, 0.1 * largest);
    EXPECT_EQ(sample(*merged, {.prompt = "the cat", .tokens = 20, .temperature = 0}),
              sample(adapted, {.prompt = "the cat", .tokens = 20, .temperature = 0}));
}

TEST(Lora, MergedWeightsOfABfloat16RunHaveMastersOfTheSum) {
    LoraRun run(TrainDType::bf16);
    Trainer(run.config, run.on_message).run();
    const Checkpoint adapted = newest(run.config.out), merged = merged_adapters(adapted, "run");
    const Context ctx(Device::cpu(), 1);
    const std::string module = "h.1.mlp.fc";
    const auto w = to_host(ctx, adapted.params.at(module + ".weight")),
               a = to_host(ctx, adapted.master.at(module + ".lora_a")),
               b = to_host(ctx, adapted.master.at(module + ".lora_b")),
               sum = to_host(ctx, merged.master.at(module + ".weight")),
               rounded = to_host(ctx, merged.params.at(module + ".weight"));
    for (std::size_t i = 0; i < w.size(); ++i) {
        double expected = w[i], size = std::abs(w[i]);
        for (std::size_t r = 0; r < 4; ++r) {
            const double product = b[i / 32 * 4 + r] * a[r * 32 + i % 32];
            expected += product;
            size += std::abs(product);
        }
        ASSERT_NEAR(sum[i], expected, 6 * 0x1p-24 * size) << i;
        ASSERT_NEAR(rounded[i], sum[i], 0x1p-8 * std::abs(sum[i])) << i;
    }
    EXPECT_EQ(merged.master.size(), merged.params.size());
    EXPECT_TRUE(merged.optimizer.empty());
    for (const auto& [name, x] : merged.params) EXPECT_FALSE(is_adapter(name)) << name;
    EXPECT_EQ(merged.config["lora-rank"], 0);
    EXPECT_EQ(merged_adapters(merged, "run").params.size(), merged.params.size()) << "has none to merge";
}

/// Both a run that trains all weights and a run with new adapters begin with the merged model.
TEST(Lora, AnAdaptedModelCanBeTrainedFurther) {
    LoraRun run;
    Trainer(run.config, run.on_message).run();
    const auto merged = load_model(run.config.out);
    for (const std::int64_t rank : {0, 2}) {
        TrainConfig config = run.config;
        config.init_from = run.config.out;
        config.adapters.rank = rank;
        config.out = (run.directory / concat("further", rank)).string();
        const Trainer further(config, run.on_message);
        const ParameterStore& base = rank == 0 ? further.model().parameters : further.model().frozen;
        EXPECT_EQ(to_host(merged->ctx, base.values()), to_host(merged->ctx, merged->parameters.values()));
    }
}

TEST(Lora, RefusesWhatCannotBeByName) {
    LoraRun run;
    const auto refusal = [&](const auto& change) {
        TrainConfig config = run.config;
        change(config);
        const std::string message = message_of([&] { const Trainer trainer(config, run.on_message); });
        EXPECT_FALSE(exists(std::filesystem::path(run.config.out)));
        return message;
    };
    EXPECT_EQ(refusal([](TrainConfig& c) { c.init_from = ""; }),
              "lora-rank: 4 without init-from; expected the run or checkpoint whose weights the adapters "
              "adapt");
    EXPECT_THAT(refusal([](TrainConfig& c) { c.adapters.on = "wte"; }), HasSubstr("lora-on: 'wte'"));
    EXPECT_THAT(refusal([](TrainConfig& c) { c.adapters.rank = 33; }), HasSubstr("lora-rank: 33"));
    EXPECT_THAT(refusal([](TrainConfig& c) { c.adapters.alpha = -1; }), HasSubstr("lora-alpha: -1"));
    EXPECT_THAT(refusal([](TrainConfig& c) { c.model.width = 48; }), HasSubstr("this model's is"));
}

TEST(Lora, RefusesACheckpointWhoseAdaptersDoNotFit) {
    LoraRun run;
    Trainer(run.config, run.on_message).run();
    const auto refusal = [&](const auto& change) {
        Checkpoint checkpoint = newest(run.config.out);
        change(checkpoint);
        return message_of([&] { merged_adapters(checkpoint, "a.h5"); });
    };
    EXPECT_EQ(refusal([](Checkpoint& c) { c.params.erase("h.1.attn.qkv.lora_b"); }),
              "a.h5: has no parameter 'h.1.attn.qkv.lora_b'; expected [96, 4]");
    EXPECT_THAT(refusal([](Checkpoint& c) { c.config.set("lora-rank", 3); }),
                HasSubstr("parameter 'h.0.attn.qkv.lora_a' is [4, 32]; this model's is [3, 32]"));
    EXPECT_THAT(refusal([](Checkpoint& c) { c.config.set("lora-on", "attn"); }),
                HasSubstr("parameter 'h.0.mlp.fc.lora_a' is not one of this model's"));
    const Context ctx(Device::cpu(), 1);
    EXPECT_THAT(refusal([&](Checkpoint& c) { c.master["x"] = zeros(ctx, {2}, DType::f32); }),
                HasSubstr("a.h5: master 'x' is not one of this model's"));
    EXPECT_THAT(refusal([&](Checkpoint& c) {
                    c.master["h.0.attn.qkv.lora_b"] = zeros(ctx, {96, 5}, DType::f32);
                }),
                HasSubstr("a.h5: master 'h.0.attn.qkv.lora_b' is [96, 5]"));
    EXPECT_THAT(refusal([&](Checkpoint& c) {
                    c.master["h.0.attn.qkv.lora_b"] = zeros(ctx, {96, 4}, DType::i32);
                }),
                HasSubstr("expected [96, 4] float32"));
    EXPECT_THAT(refusal([](Checkpoint& c) { c.config.set("lora-rank", "four"); }),
                HasSubstr("a.h5: lora-rank"));
    EXPECT_THAT(refusal([](Checkpoint& c) { c.config.set("lora-rank", -4); }), HasSubstr("lora-rank: -4"));
    EXPECT_THAT(refusal([](Checkpoint& c) { c.config.set("lora-on", "x"); }), HasSubstr("lora-on: 'x'"));
}

// ---- Quantized matrices ----

/// A checkpoint's tensor, quantized and dequantized.
Tensor rounded_to(WeightFormat format, const Tensor& weights) {
    const Context ctx(Device::cpu(), 1);
    const Tensor codes = empty(ctx, {quantized_layout(format, weights.elements()).words}, DType::i32);
    quantize_weights(ctx, codes, weights, format);
    Tensor result = empty(ctx, weights.shape(), DType::f32);
    dequantize_weights(ctx, result, codes, format);
    return result;
}

bool is_block_matrix(const std::string& name, const Tensor& x) {
    return name.starts_with("h.") && x.rank() == 2 && !is_adapter(name);
}

class LoraOnQuantized : public testing::TestWithParam<std::tuple<WeightFormat, TrainDType>> {};
INSTANTIATE_TEST_SUITE_P(Formats, LoraOnQuantized,
                         testing::Combine(testing::Values(WeightFormat::nf4, WeightFormat::int8),
                                          testing::Values(TrainDType::f32, TrainDType::bf16)),
                         [](const auto& info) {
                             return concat(name_of(std::get<0>(info.param)), '_',
                                           name_of(std::get<1>(info.param)));
                         });

/// The base's masters are quantized, if it has any: its 16-bit weights have already been rounded once.
TEST_P(LoraOnQuantized, LearnsAndSavesTheCodesOfTheBase) {
    const auto [format, dtype] = GetParam();
    LoraRun run(dtype);
    run.config.adapters.frozen_format = format;
    Trainer trainer(run.config, run.on_message);
    std::vector<double> losses;
    trainer.on_step([&](const StepReport& report) { losses.push_back(report.loss); });
    const std::vector<double> before = codes_of(trainer);
    trainer.run();
    EXPECT_LT(losses.back(), 0.8 * losses.front());
    EXPECT_EQ(codes_of(trainer), before);
    const Checkpoint base = read_checkpoint(run.base), after = newest(run.config.out);
    const Context ctx(Device::cpu(), 1);
    int matrices = 0;
    for (const auto& [name, x] : base.params) {
        const Tensor& saved = after.params.at(name);
        if (!is_block_matrix(name, x)) {
            expect_equal_bits(saved, x, name);
            continue;
        }
        ++matrices;
        const Tensor codes = empty(ctx, {quantized_layout(format, x.elements()).words}, DType::i32);
        quantize_weights(ctx, codes, dtype == TrainDType::bf16 ? base.master.at(name) : x, format);
        expect_equal_bits(saved, codes, name);
    }
    EXPECT_EQ(matrices, 2 * 4);
    EXPECT_TRUE(run.messages.empty()) << run.messages.front();
}

TEST_P(LoraOnQuantized, MergesIntoDequantizedMatrices) {
    const auto [format, dtype] = GetParam();
    LoraRun run(dtype);
    run.config.adapters.frozen_format = format;
    run.config.adapters.on = "attn";
    Trainer(run.config, run.on_message).run();
    const Checkpoint base = read_checkpoint(run.base), adapted = newest(run.config.out);
    const Checkpoint merged = merged_adapters(adapted, "run");
    const Context ctx(Device::cpu(), 1);
    const bool has_masters = dtype == TrainDType::bf16;
    for (const auto& [name, x] : base.params) {
        if (!is_block_matrix(name, x)) continue;
        const Tensor expected = rounded_to(format, has_masters ? base.master.at(name) : x);
        const Tensor &value = merged.params.at(name), &full = has_masters ? merged.master.at(name) : value;
        EXPECT_EQ(value.dtype(), storage_dtype(dtype)) << name;
        EXPECT_EQ(to_host(ctx, value), to_host(ctx, cast(ctx, full, value.dtype()))) << name;
        if (name.find(".mlp.") != std::string::npos) {
            expect_equal_bits(full, expected, name);
            continue;
        }
        const std::string module = name.substr(0, name.rfind('.'));
        const NamedTensors& adapters = has_masters ? adapted.master : adapted.params;
        const auto w = to_host(ctx, expected), sum = to_host(ctx, full),
                   a = to_host(ctx, adapters.at(module + ".lora_a")),
                   b = to_host(ctx, adapters.at(module + ".lora_b"));
        double change = 0;
        for (std::size_t i = 0; i < w.size(); ++i) {
            double exact = w[i], size = std::abs(w[i]);
            for (std::size_t r = 0; r < 4; ++r) {
                exact += b[i / 32 * 4 + r] * a[r * 32 + i % 32];
                size += std::abs(b[i / 32 * 4 + r] * a[r * 32 + i % 32]);
            }
            ASSERT_NEAR(sum[i], exact, 6 * 0x1p-24 * size) << name;
            change = std::max(change, std::abs(exact - w[i]));
        }
        EXPECT_GT(change, 1e-3) << name << " has learned";
    }
    EXPECT_EQ(merged.config["frozen-dtype"], "same");
    for (const auto& [name, x] : merged.params) EXPECT_TRUE(is_floating(x.dtype())) << name;

    // What the run's own model computes, to rounding, and a run that begins with the merged model.
    const auto loaded = load_model(run.config.out);
    TrainConfig further = run.config;
    further.init_from = run.config.out;
    further.out = (run.directory / "further").string();
    const Trainer second(further, run.on_message);
    const std::string name = "h.1.attn.proj.weight";
    EXPECT_EQ(
        to_host(ctx, second.model().frozen.find(name).dequantized(ctx)),
        to_host(ctx,
                cast(ctx, rounded_to(format, has_masters ? merged.master.at(name) : merged.params.at(name)),
                     storage_dtype(dtype))));
    // A loaded model is made from the weights alone, without masters.
    const Checkpoint weights =
        merged_adapters(load_checkpoint(run.config.out, {.training_state = false}), "run");
    EXPECT_EQ(to_host(ctx, loaded->parameters.find(name).value()), to_host(ctx, weights.params.at(name)));
}

TEST(Lora, ALoadedModelOfAQuantizedRunComputesWhatTheRunComputes) {
    LoraRun run;
    run.config.adapters.frozen_format = WeightFormat::nf4;
    run.config.adapters.alpha = 10;
    Trainer trainer(run.config, run.on_message);
    trainer.run();
    const LanguageModel& adapted = trainer.model();
    const auto merged = load_model(run.config.out);
    const Tensor tokens = from_host(adapted.ctx, std::vector<std::int32_t>{1, 5, 2, 7, 3, 3, 0, 8}, {1, 8});
    const auto expected = to_host(adapted.ctx, adapted.transformer.logits_of_all(adapted.ctx, tokens)),
               found = to_host(merged->ctx, merged->transformer.logits_of_all(merged->ctx, tokens));
    double largest = 0;
    for (const double x : expected) largest = std::max(largest, std::abs(x));
    // As in ALoadedModelHasTheMergedWeights.
    for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 2 * 2 * 128 * 0x1p-24 * largest);
    EXPECT_EQ(sample(*merged, {.prompt = "the cat", .tokens = 20, .temperature = 0}),
              sample(adapted, {.prompt = "the cat", .tokens = 20, .temperature = 0}));
}

TEST(Lora, RefusesACheckpointWhoseCodesDoNotFit) {
    LoraRun run;
    run.config.adapters.frozen_format = WeightFormat::nf4;
    Trainer(run.config, run.on_message).run();
    const Checkpoint sound = newest(run.config.out);
    const Context ctx(Device::cpu(), 1);
    const auto refusal = [&](const auto& change) {
        Checkpoint checkpoint = sound;
        change(checkpoint);
        return message_of([&] { merged_adapters(checkpoint, "a.h5"); });
    };
    const std::string name = "h.1.mlp.fc.weight";  // [128, 32]: 64 blocks
    EXPECT_EQ(refusal([&](Checkpoint& c) { c.params[name] = zeros(ctx, {500}, DType::i32); }),
              "a.h5: parameter 'h.1.mlp.fc.weight' is [500] in nf4; this model's is [530]");
    EXPECT_THAT(refusal([&](Checkpoint& c) { c.config.set("frozen-dtype", "int8"); }),
                HasSubstr("in int8; this model's is"));
    EXPECT_THAT(refusal([&](Checkpoint& c) { c.config.set("frozen-dtype", "same"); }),
                HasSubstr("'h.0.attn.qkv.weight' is [398]; this model's is [96, 32]"));
    EXPECT_THAT(refusal([&](Checkpoint& c) { c.config.set("frozen-dtype", "nf5"); }),
                HasSubstr("expected same, nf4 or int8"));
    EXPECT_THAT(refusal([&](Checkpoint& c) { c.params["wte.weight"] = zeros(ctx, {64}, DType::i32); }),
                HasSubstr("parameter 'wte.weight' is [64]"));

    // A resumed run needs codes: quantizing dequantized weights again may round differently.
    Checkpoint changed = sound;
    changed.params[name] = zeros(ctx, {128, 32}, DType::f32);
    ParameterStore adapters, frozen;
    TrainConfig config;
    apply_json(config, sound.config, "a.h5");
    const Transformer model(config.model, adapters, frozen, {}, config.adapters);
    EXPECT_EQ(message_of([&] { check_saved_dtypes(changed, DType::f32, frozen, "a.h5"); }),
              "a.h5: parameter 'h.1.mlp.fc.weight' is float32; expected int32");
    EXPECT_EQ(message_of([&] { check_saved_dtypes(sound, DType::f32, frozen, "a.h5"); }), "no error");
}

/// The head and the embeddings are frozen, so the blocks' adapters must do all the work. The base has
/// embeddings that are large enough for confident predictions.
TEST(Lora, MemorisesOneBatch) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Context ctx(Device::cpu(), 2);
        const ModelConfig config{.layers = 2, .heads = 2, .width = 32, .context = 16, .vocabulary = 64};
        ParameterStore adapters, frozen;
        const Transformer model(config, adapters, frozen, {}, {.rank = 8});
        adapters.allocate(ctx, dtype);
        frozen.allocate(ctx, dtype, {.gradients = false});
        adapters.initialize(ctx, Seed{1});
        frozen.initialize(ctx, Seed{1});
        for (const char* name : {"wte.weight", "wpe.weight"})
            fill_normal(ctx, frozen.find(name).value(), 0.0, 1.0, Seed{3});
        const std::vector<double> before = to_host(ctx, frozen.values());
        TrainConfig settings;
        settings.dtype = dtype == DType::bf16 ? TrainDType::bf16 : TrainDType::f32;
        settings.weight_decay = 0;
        const auto optimizer = make_optimizer(ctx, adapters, settings);
        const test::OverfitBatch batch(ctx);
        double loss = 0;
        constexpr int steps = 400;
        for (int step = 1; step <= steps; ++step) {
            adapters.reset_gradients();
            Transformer::Saved saved;
            loss = item(ctx, model.forward(ctx, batch.tokens, batch.targets, saved));
            model.backward(ctx, saved);
            // With a constant rate the loss would oscillate, and its last value would depend on roundings.
            optimizer->step(ctx, 1e-2 * std::min(1.0, 2.0 * (steps - step) / steps));
        }
        EXPECT_LT(loss, 0.01 * std::log(64.0)) << dtype;
        EXPECT_EQ(to_host(ctx, frozen.values()), before);
    }
}

}  // namespace
}  // namespace gradtile
