// Settings that do not go together, and how a run names them.
#include <limits>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/philox.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/config/refused_combinations.h>
#include <gradtile/train/config/train_config.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::HasSubstr;

TEST(TrainConfig, OptimizerSettingsWithoutEffectAreRefused) {
    const auto refusal = [](auto&& change) {
        TrainConfig config;
        change(config);
        return message_of([&] { validate(config); });
    };
    EXPECT_EQ(refusal([](TrainConfig& c) { std::get<MuonSettings>(c.optimizer_settings).split = true; }),
              "muon-split: true with optimizer adamw; expected optimizer muon");
    EXPECT_EQ(refusal([](TrainConfig& c) {
                  c.optimizer = kind_of<LionSettings>;
                  std::get<MuonSettings>(c.optimizer_settings).coefficients = MuonCoefficients::polar_express;
              }),
              "muon-coefficients: \"polar-express\" with optimizer lion; expected optimizer muon");
    EXPECT_EQ(refusal([](TrainConfig& c) { c.head_lr_factor = 2; }),
              "head-lr-factor: 2 with tied-head, where the head is the token embedding; expected "
              "embedding-lr-factor");
    EXPECT_EQ(refusal([](TrainConfig& c) {
                  c.cautious_decay = true;
                  c.weight_decay = 0;
              }),
              "cautious-decay: true with weight-decay 0; expected a weight decay");
    EXPECT_THAT(refusal([](TrainConfig& c) {
                    c.adapters.rank = 2;
                    c.vector_lr_factor = 2;
                }),
                HasSubstr("with lora-rank 2 only adapters are trained; expected 1"));
    EXPECT_EQ(refusal([](TrainConfig& c) { c.lr = 1e-5; }), "min-lr: 0.0001; expected 0 to lr (1e-05)");
    EXPECT_EQ(refusal([](TrainConfig& c) {
                  c.lr = 1e-5;
                  c.schedule = ScheduleKind::constant;
              }),
              "no error");
    // Runs of older versions may have these settings with any optimizer.
    TrainConfig config;
    std::get<MuonSettings>(config.optimizer_settings).lr = 0.05;
    std::get<MuonSettings>(config.optimizer_settings).momentum = 0.9;
    EXPECT_NO_THROW(validate(config));
}

TEST(TrainConfig, EveryRefusedCombinationIsNamed) {
    struct Example {
        void (*change)(TrainConfig&);
        const char* message;
    };
    const Example examples[] = {
        // one for each combination, in the list's order
        {[](TrainConfig& c) { c.wsd_shape = CooldownShape::cosine; },
         "wsd-shape: \"cosine\" without schedule wsd; expected linear"},
        {[](TrainConfig& c) { c.masters = MasterFormat::split; },
         "masters: \"split\" without dtype bf16; expected f32"},
        {[](TrainConfig& c) { c.adapters.frozen_format = WeightFormat::nf4; },
         "frozen-dtype: \"nf4\" without lora-rank, so that no matrix is frozen; expected same"},
        {[](TrainConfig& c) { c.batch_start = 6; },
         "batch-start: 6 without batch-warmup; expected the steps in which the batch grows"},
        {[](TrainConfig& c) { c.batch_warmup = 100; },
         "batch-warmup: 100 without batch-start; expected the first batch"},
        {[](TrainConfig& c) {
             c.batch_start = 4;
             c.batch_warmup = 100;
         },
         "batch-start: 4 does not double up to batch; expected batch divided by 2, 4, 8 or a higher power of "
         "two"},
        {[](TrainConfig& c) { c.window_start = 8; },
         "window-start: 8 without window-warmup; expected the steps in which the window grows"},
        {[](TrainConfig& c) { c.window_warmup = 100; },
         "window-warmup: 100 without window-start; expected the first window"},
        {[](TrainConfig& c) {
             c.window_start = 16;
             c.window_warmup = 100;
             c.model.window = 16;
         },
         "window-start: 16 is not smaller than the window or the context of every layer; expected fewer "
         "keys"},
        {[](TrainConfig& c) {
             c.stream_buffer = 100;
             c.token_cache = "cache";
         },
         "token-cache: \"cache\" with stream-buffer; expected none, because a cache keeps tokens that are "
         "encoded before the first step"},
        {[](TrainConfig& c) {
             c.stream_buffer = 100;
             c.val_fraction = 0.2;
         },
         "val-fraction: 0.2 with stream-buffer; expected 0, or none: one row in 100 is for validation"},
        {[](TrainConfig& c) {
             c.context_parallel = 2;
             c.model.prefix = true;
         },
         "context-parallel: 2 with prefix, whose mask has two ranges of rows for a key; expected 1"},
        {[](TrainConfig& c) {
             c.context_parallel = 2;
             c.model.window = 8;
         },
         "context-parallel: 2 with window, which would need part of a chunk; expected 1"},
        {[](TrainConfig& c) {
             c.context_parallel = 2;
             c.window_start = 8;
             c.window_warmup = 100;
         },
         "context-parallel: 2 with window-start, which would need part of a chunk; expected 1"},
        {[](TrainConfig& c) {
             c.context_parallel = 2;
             c.model.positions = Positions::alibi;
         },
         "context-parallel: 2 with positions alibi, which counts rows and not positions; expected 1"},
        {[](TrainConfig& c) {
             c.context_parallel = 2;
             c.training.dropout = 0.1;
         },
         "context-parallel: 2 with dropout, whose masks count rows and not positions; expected 1"},
        {[](TrainConfig& c) {
             c.context_parallel = 2;
             c.training.attention_dropout = 0.1;
         },
         "context-parallel: 2 with attention-dropout, whose masks count rows and not positions; expected 1"},
        {[](TrainConfig& c) {
             c.context_parallel = 2;
             c.model.positions = Positions::rope;
             c.model.rotary_width = 8;
             c.model.key_offset = true;
         },
         "context-parallel: 2 with key-offset, which reads the token before, of another chunk; expected 1"},
        {[](TrainConfig& c) { c.checkpoint_parts = true; },
         "checkpoint-parts: true without zero, so that every rank holds all of a checkpoint; expected false"},
        {[](TrainConfig& c) {
             c.adapters.rank = 4;
             c.offload = Offload::optimizer | Offload::gradients;
         },
         "offload: \"optimizer+gradients\" with lora-rank, whose gradients are small; expected no gradients"},
        {[](TrainConfig& c) {
             c.zero = 2;
             c.offload = Offload::residuals | Offload::weights;
         },
         "offload: \"residuals+weights\" with zero 1 or 2, whose processes would each gather all weights in "
         "host "
         "memory; expected zero 0 or 3"},
        {[](TrainConfig& c) {
             c.adapters.rank = 4;
             c.gradient_dtype = TrainDType::bf16;
         },
         "gradient-dtype: \"bf16\" with lora-rank, whose gradients are small; expected f32"},
        {[](TrainConfig& c) { c.shard_copies = 1; },
         "shard-copies: 1 without zero, so that every process has the whole state; expected 0"},
        {[](TrainConfig& c) {
             c.adapters.rank = 4;
             c.zero = 1;
             c.shard_copies = 1;
         },
         "shard-copies: 1 with lora-rank, whose frozen weights no process copies; expected 0"},
    };
    ASSERT_EQ(std::size(examples), refused_combinations().size());
    for (std::size_t i = 0; i < std::size(examples); ++i) {
        TrainConfig config;
        examples[i].change(config);
        EXPECT_TRUE(refused_combinations()[i].is_in(config)) << examples[i].message;
        EXPECT_EQ(message_of([&] { validate(config); }), examples[i].message);
    }
}

TEST(TrainConfig, GivenSettingsWithoutEffectAreNamed) {
    struct Example {
        const char* setting;
        const char* value;
        const char* unused_in;  ///< settings of a config that does not use it
        const char* used_in;
    };
    constexpr const char* none = "{}";
    constexpr const char* rope = R"({"positions": "rope"})";
    constexpr const char* yarn = R"({"positions": "rope", "rope-scaling": "yarn"})";
    constexpr const char* llama3 = R"({"positions": "rope", "rope-scaling": "llama3"})";
    constexpr const char* longrope = R"({"positions": "rope", "rope-scaling": "longrope"})";
    constexpr const char* scaled_without_rope = R"({"positions": "alibi", "rope-scaling": "yarn"})";
    constexpr const char* lora = R"({"lora-rank": 4})";
    constexpr const char* start = R"({"init-from": "runs/a"})";
    constexpr const char* lion = R"({"optimizer": "lion"})";
    constexpr const char* muon = R"({"optimizer": "muon"})";
    constexpr const char* samples = R"({"sample-every": 10})";
    const Example examples[] = {
        // one for each setting, in the list's order
        {"rope-base", "500000.0", none, rope},
        {"rotary-width", "8", none, rope},
        {"rope-pattern", "4", none, rope},
        {"window-rope-base", "1000.0", rope, R"({"positions": "rope", "window": 8})"},
        {"rope-scaling", "\"yarn\"", none, rope},
        {"rope-factor", "4.0", R"({"positions": "rope", "rope-scaling": "half-truncated"})",
         R"({"positions": "rope", "rope-scaling": "linear"})"},
        {"rope-original-context", "64", R"({"positions": "rope", "rope-scaling": "linear"})",
         R"({"positions": "rope", "rope-scaling": "dynamic"})"},
        {"rope-low-factor", "2.0", yarn, llama3},
        {"rope-high-factor", "8.0", rope, llama3},
        {"rope-beta-fast", "16.0", llama3, yarn},
        {"rope-beta-slow", "2.0", longrope, yarn},
        {"rope-truncate", "false", scaled_without_rope, yarn},
        {"rope-mscale", "1.0", rope, yarn},
        {"rope-mscale-all-dim", "1.0", none, yarn},
        {"rope-attention-factor", "1.5", llama3, longrope},
        {"rope-short-factors", "[1.0,2.0]", yarn, longrope},
        {"rope-long-factors", "[1.0,2.0]", rope, longrope},
        {"window", "4", R"({"window-pattern": 1})", R"({"window-pattern": 2})"},
        {"window-pattern", "2", none, R"({"window": 8})"},
        {"qk-norm-kind", "\"projection\"", none, R"({"qk-norm": true})"},
        {"logit-softcap-form", "\"root\"", none, R"({"logit-softcap": 15})"},
        {"lora-alpha", "16.0", none, lora},
        {"lora-on", "\"attn\"", none, lora},
        {"zero-init", "true", start, none},
        {"embedding-std", "0.1", start, none},
        {"val-fraction", "0.2", R"({"val-data": "b.txt"})", none},
        {"token-type", "\"uint32\"", R"({"data": "a.txt"})", R"({"data": "a.bin"})"},
        {"document-token", "3", none, R"({"packed": true})"},
        {"max-documents", "3", none, R"({"packed": true})"},
        {"min-lr", "0.0002", R"({"schedule": "constant"})", R"({"schedule": "linear"})"},
        {"wsd-decay", "0.4", none, R"({"schedule": "wsd"})"},
        {"beta1", "0.5", lion, none},
        {"beta2", "0.5", lion, muon},
        {"epsilon", "1e-05", lion, muon},
        {"lion-beta1", "0.5", none, lion},
        {"lion-beta2", "0.5", muon, lion},
        {"muon-lr", "0.02", none, muon},
        {"muon-momentum", "0.9", lion, muon},
        {"muon-products", "\"f32\"", none, muon},
        {"sample-tokens", "5", none, samples},
        {"sample-prompt", "\"Once\"", none, samples},
    };
    ASSERT_EQ(std::size(examples), conditional_settings().size());
    const auto refusal = [](const JsonValue& given, const char* others) {
        TrainConfig config;
        apply_json(config, given, "command line");
        apply_config_text(config, others, "preset");
        return message_of([&] { check_used(config, given); });
    };
    for (std::size_t i = 0; i < std::size(examples); ++i) {
        const Example& e = examples[i];
        JsonValue given = JsonValue::object();
        given.set(e.setting, parse_json_or_null(e.value));
        EXPECT_EQ(refusal(given, e.unused_in), concat(e.setting, ": ", e.value, " has no effect without ",
                                                      conditional_settings()[i].condition));
        EXPECT_EQ(refusal(given, e.used_in), "no error") << e.setting;
        // A preset or a config file may hold the setting, and a default value promises nothing.
        EXPECT_EQ(refusal(JsonValue::object(), e.unused_in), "no error") << e.setting;
        given.set(e.setting, to_json(TrainConfig())[e.setting]);
        EXPECT_EQ(refusal(given, e.unused_in), "no error") << e.setting;
    }
}

TEST(TrainConfig, SettingsThatRowRangesDoNotSupportAreNamed) {
    const struct {
        void (*change)(TrainConfig&);
        const char* message;
    } examples[] = {
        {[](TrainConfig& c) { c.model.window = 8; },
         "window: 8 with prefix; expected 0, because windows count rows and not positions"},
        {[](TrainConfig& c) {
             c.window_start = 8;
             c.window_warmup = 100;
         },
         "window-start: 8 with prefix; expected 0, because windows count rows and not positions"},
        {[](TrainConfig& c) { c.model.positions = Positions::alibi; },
         "positions: \"alibi\" with prefix; expected learned or rope, because ALiBi counts rows and not "
         "positions"},
        {[](TrainConfig& c) { c.train_on = TrainOn::all; },
         "train-on: \"all\" with prefix; expected answers, because a prompt's tokens see what they would "
         "predict, or are shared"},
    };
    ASSERT_EQ(std::size(examples), refused_with_row_ranges().size());
    for (std::size_t i = 0; i < std::size(examples); ++i) {
        TrainConfig config;
        examples[i].change(config);
        EXPECT_TRUE(refused_with_row_ranges()[i].is_in(config)) << examples[i].message;
        EXPECT_NO_THROW(validate(config));
        config.model.prefix = true;
        EXPECT_EQ(message_of([&] { validate(config); }), examples[i].message);
    }
}

TEST(TrainConfig, SettingsThatNeedAGpuAreNamed) {
    const struct {
        void (*change)(TrainConfig&);
        const char* message;
    } examples[] = {
        {[](TrainConfig& c) { c.offload = Offload::optimizer; },
         "offload: \"optimizer\" on cpu; expected none, because its memory is the host's"},
    };
    ASSERT_EQ(std::size(examples), refused_on_cpu().size());
    for (const Offload offload : {Offload::gradients, Offload::residuals,
                                  Offload::optimizer | Offload::residuals, Offload::weights}) {
        TrainConfig config;
        config.offload = offload;
        EXPECT_EQ(message_of([&] { check_device(config, Device::cpu()); }),
                  concat("offload: \"", name_of(offload),
                         "\" on cpu; expected none, because its memory is the host's"));
    }
    for (std::size_t i = 0; i < std::size(examples); ++i) {
        TrainConfig config;
        EXPECT_NO_THROW(check_device(config, Device::cpu()));
        examples[i].change(config);
        EXPECT_NO_THROW(validate(config));
        EXPECT_NO_THROW(check_device(config, Device::cuda()));
        EXPECT_EQ(message_of([&] { check_device(config, Device::cpu()); }), examples[i].message);
    }
}

TEST(TrainConfig, SettingsThatNeedACpuAreNamed) {
    ASSERT_EQ(refused_on_gpu().size(), 1u);
    TrainConfig config;
    EXPECT_NO_THROW(check_device(config, Device::cuda()));
    config.zero = config.shard_copies = 1;
    EXPECT_NO_THROW(validate(config, 2));
    EXPECT_NO_THROW(check_device(config, Device::cpu()));
    EXPECT_EQ(message_of([&] { check_device(config, Device::cuda()); }),
              concat("shard-copies: 1 on ", Device::cuda(),
                     "; expected 0, because copies of shards are kept on CPUs only"));
    EXPECT_EQ(message_of([&] { validate(config); }),
              "shard-copies: 1 with one process; expected 0, because no other process has a copy");
}

TEST(TrainConfig, ProcessesThatCannotShareSequencesAreNamed) {
    TrainConfig config;
    config.batch = 12;
    config.model.context = 24;
    config.context_parallel = 2;
    EXPECT_NO_THROW(validate(config, 2));
    EXPECT_NO_THROW(validate(config, 4));
    EXPECT_EQ(config.sequence_groups(4), 2);
    EXPECT_EQ(config.micro_batch_size(4), 6);
    config.micro_batch = 3;
    EXPECT_EQ(config.accumulation_steps(4), 2);
    for (const int ranks : {1, 3})
        EXPECT_EQ(message_of([&] { validate(config, ranks); }),
                  concat("context-parallel: 2 does not divide the number of processes, ", ranks));
    EXPECT_EQ(message_of([&] { validate(config, 10); }),
              "batch: 12 is not a multiple of the 5 groups of processes that share it");
    config.context_parallel = 8;
    EXPECT_EQ(message_of([&] { validate(config, 8); }),
              "context: 24 with context-parallel 8; expected a multiple of 16, two chunks for each process");
    config.context_parallel = 0;
    EXPECT_THAT(message_of([&] { validate(config, 8); }), HasSubstr("context-parallel: 0"));
}

TEST(TrainConfig, AFirstBatchThatProcessesCannotShareIsNamed) {
    TrainConfig config;
    config.batch = 24;
    config.batch_start = 6;
    config.batch_warmup = 100;
    EXPECT_NO_THROW(validate(config));
    EXPECT_NO_THROW(validate(config, 2));
    EXPECT_EQ(message_of([&] { validate(config, 4); }),
              "batch-start: 6 is not a multiple of the 4 processes that share it");
    config.micro_batch = 3;
    EXPECT_NO_THROW(validate(config));
    config.micro_batch = 4;
    EXPECT_EQ(message_of([&] { validate(config); }),
              "batch-start: 6 sequences of a process and micro-batch 4; expected that one divides the other");
    config.micro_batch = 12;
    EXPECT_NO_THROW(validate(config));
}

TEST(TrainConfig, RotationsThatDoNotFitAreNamed) {
    const auto refusal = [](auto&& change) {
        TrainConfig config;
        config.model.positions = Positions::rope;  // the head width is 32
        change(config.model, config.model.rope_scaling);
        return message_of([&] { validate(config); });
    };
    EXPECT_EQ(refusal([](ModelConfig&, RopeScaling&) {}), "no error");
    EXPECT_EQ(refusal([](ModelConfig& c, RopeScaling&) { c.rotary_width = 34; }),
              "rotary-width: 34; expected at most the head width 32");
    EXPECT_EQ(refusal([](ModelConfig& c, RopeScaling&) { c.rotary_width = 7; }),
              "rotary-width: 7; expected an even number");
    EXPECT_EQ(refusal([](ModelConfig& c, RopeScaling&) { c.head_width = 7; }),
              "positions: rope requires an even head width; it is 7");
    EXPECT_EQ(refusal([](ModelConfig& c, RopeScaling&) { c.window_rope_base = 0.5; }),
              "window-rope-base: 0.5; expected 0 (as in other layers) or more than 1");
    EXPECT_EQ(refusal([](ModelConfig&, RopeScaling& s) {
                  s = {.kind = RopeKind::llama3, .low_factor = 4, .high_factor = 4};
              }),
              "rope-low-factor: 4; expected less than rope-high-factor (4)");
    EXPECT_EQ(refusal([](ModelConfig&, RopeScaling& s) {
                  s = {.kind = RopeKind::yarn, .beta_fast = 1, .beta_slow = 2};
              }),
              "rope-beta-slow: 2; expected less than rope-beta-fast (1)");
    EXPECT_EQ(refusal([](ModelConfig& c, RopeScaling& s) {
                  c.rotary_width = 6;
                  s.kind = RopeKind::half_truncated;
              }),
              "rope-scaling: half-truncated requires a rotary width divisible by 4; it is 6");
    EXPECT_EQ(refusal([](ModelConfig&, RopeScaling& s) { s.kind = RopeKind::longrope; }),
              "rope-original-context: 0; longrope requires at least 2");
    const auto longrope_refusal = [&](const std::vector<double>& factors) {
        return refusal([&](ModelConfig& c, RopeScaling& s) {
            c.rotary_width = 4;
            s = {.kind = RopeKind::longrope,
                 .original_context = 8,
                 .short_factors = {1, 2},
                 .long_factors = factors};
        });
    };
    EXPECT_EQ(longrope_refusal({1, 2}), "no error");
    EXPECT_EQ(longrope_refusal({1}),
              "rope-long-factors: 1 numbers; expected 2, one for each pair of rotated columns");
    EXPECT_THAT(longrope_refusal({1, 0}), testing::StartsWith("rope-long-factors: 0; expected more than 0"));
}

}  // namespace
}  // namespace gradtile
