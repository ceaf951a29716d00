#include <gradtile/train/config/train_config.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/philox.h>
#include <gradtile/core/text/nearest_name.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/config/settings.h>

#include <support/error_message.h>

#include <gradtile/train/memory_request.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::HasSubstr;

TEST(TrainConfig, EverySettingSurvivesJson) {
    for (const std::string& name : preset_names()) {
        const TrainConfig original = preset(name);
        TrainConfig copy;
        apply_json(copy, to_json(original), "config.json");
        EXPECT_EQ(to_json(copy), to_json(original)) << name;
    }
}

/// A checkpoint from an older version has no settings for the attention options.
TEST(TrainConfig, SettingsThatAnOlderRunLacksAreOff) {
    JsonValue older = to_json(preset("llama-tiny"));
    for (const char* name : {"window", "window-pattern", "softcap", "sinks", "attention-dropout"}) {
        ASSERT_TRUE(older.contains(name)) << name;
        older.erase(name);
    }
    TrainConfig config;
    apply_json(config, older, "config.json");
    EXPECT_EQ(config.model, preset("llama-tiny").model);
    EXPECT_EQ(config.model.window_of(0), 0);
    EXPECT_EQ(config.model.softcap, 0.0);
    EXPECT_EQ(config.training.attention_dropout, 0.0);
    EXPECT_FALSE(config.model.sinks);
}

TEST(TrainConfig, EveryPresetIsValid) {
    for (const std::string& name : preset_names()) EXPECT_NO_THROW(validate(preset(name))) << name;
}

TEST(TrainConfig, UnknownKeyIsRefusedWithTheNearestKnownOne) {
    TrainConfig config;
    EXPECT_EQ(message_of([&] {
                  apply_json(config, JsonValue::object({{"warmpu", 3}}), "a.json");
              }),
              "a.json: unknown setting 'warmpu'; did you mean 'warmup'?");
}

/// Files of earlier versions hold settings that were removed.
TEST(TrainConfig, RemovedSettingsAreReadIfTheyWereOff) {
    TrainConfig config;
    apply_config_text(config,
                      R"({"smear": false, "unet-skips": false, "average-decay": 0.0, "context-start": 0,
                          "context-warmup": 0, "layers": 3})",
                      "a.json");
    EXPECT_EQ(config.model.layers, 3);
    for (const char* on : {R"({"smear": true})", R"({"unet-skips": true})", R"({"average-decay": 0.9})",
                           R"({"context-start": 8})"})
        EXPECT_THAT(message_of([&] { apply_config_text(config, on, "a.json"); }),
                    HasSubstr("a.json: unknown setting '"));
}

TEST(TrainConfig, DeeplyNestedValuesAreRefusedWithoutPrintingThem) {
    TrainConfig config;
    const std::size_t depth = 1'000'000;
    const std::string text = "{\"steps\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
    EXPECT_EQ(message_of([&] { apply_config_text(config, text, "a.json"); }),
              "a.json: nested more than 64 levels deep");
    EXPECT_EQ(message_of([&] { apply_config_text(config, R"({"steps": [1, [2]]})", "a.json"); }),
              "a.json: steps: [...] is an array; expected an integer");
}

TEST(TrainConfig, WrongTypesAreNamedWithWhatWasExpected) {
    TrainConfig config;
    EXPECT_EQ(message_of([&] {
                  apply_json(config, JsonValue::object({{"steps", "many"}}), "a.json");
              }),
              "a.json: steps: \"many\" is a string; expected an integer");
    EXPECT_EQ(message_of([&] {
                  apply_json(config, JsonValue::object({{"steps", 1.5}}), "a.json");
              }),
              "a.json: steps: 1.5 is a number; expected an integer");
    EXPECT_EQ(message_of([&] {
                  apply_json(config, JsonValue::object({{"bias", 1}}), "a.json");
              }),
              "a.json: bias: 1 is a number; expected true or false");
    EXPECT_EQ(message_of([&] {
                  apply_json(config, JsonValue::object({{"norm", "batch"}}), "a.json");
              }),
              "a.json: norm: 'batch' is unknown; expected layer or rms");
    EXPECT_THAT(message_of([&] { apply_json(config, JsonValue::array(), "a.json"); }),
                HasSubstr("expected an object"));
    EXPECT_THAT(message_of([&] {
                    apply_json(config, JsonValue::object({{"seed", -1}}), "a.json");
                }),
                HasSubstr("0 or more"));
}

TEST(TrainConfig, APresetInTheFileIsTheBaseOfItsOtherSettings) {
    TrainConfig config;
    apply_json(config, JsonValue::object({{"layers", 7}, {"preset", "shakespeare-char"}}), "a.json");
    EXPECT_EQ(config.model.layers, 7);
    EXPECT_EQ(config.model.width, 384);
}

TEST(TrainConfig, AFileThatIsNotJsonIsNamed) {
    const std::string path = testing::TempDir() + "broken_config.json";
    std::ofstream(path) << "{\"steps\": }";
    TrainConfig config;
    EXPECT_THAT(message_of([&] { apply_config_file(config, path); }), HasSubstr(path + ": not JSON"));
    EXPECT_THAT(message_of([&] { apply_config_file(config, "no/such.json"); }), HasSubstr("no/such.json"));
    std::filesystem::remove(path);
}

TEST(TrainConfig, ValuesOutOfRangeAreNamed) {
    const auto refusal = [](auto&& change) {
        TrainConfig config;
        change(config);
        return message_of([&] { validate(config); });
    };
    EXPECT_EQ(refusal([](TrainConfig& c) { c.model.heads = 3; }), "heads: 3 does not divide width 128");
    EXPECT_EQ(refusal([](TrainConfig& c) {
                  c.model.heads = 3;
                  c.model.head_width = 24;
              }),
              "no error");
    EXPECT_EQ(refusal([](TrainConfig& c) { c.micro_batch = 5; }), "micro-batch: 5 does not divide batch 12");
    EXPECT_EQ(refusal([](TrainConfig& c) { c.lr = -1; }), "lr: -1; expected more than 0, at most 1e+30");
    EXPECT_EQ(refusal([](TrainConfig& c) { c.training.dropout = 1; }),
              "dropout: 1; expected 0 or more, less than 1");
    EXPECT_EQ(refusal([](TrainConfig& c) { c.schedule = static_cast<ScheduleKind>(99); }),
              "schedule: value 99 has no name; expected cosine, wsd, linear or constant");
    EXPECT_EQ(refusal([](TrainConfig& c) { c.data = std::string("s.txt\0x", 7); }),
              "data: 's.txt\\u0000x' contains a zero byte; expected text");
}

TEST(TrainConfig, ARunHasStepsOrATimeBudget) {
    TrainConfig config;
    apply_json(config, JsonValue::object({{"time-budget", "5m"}}), "a.json");
    EXPECT_EQ(config.steps, 0);
    EXPECT_NO_THROW(validate(config));
    TrainConfig copy;
    apply_json(copy, to_json(config), "config.json");
    EXPECT_EQ(to_json(copy), to_json(config));
    apply_json(config, JsonValue::object({{"steps", 7}}), "a.json");  // the later one counts
    EXPECT_EQ(config.time_budget, "");
    EXPECT_NO_THROW(validate(config));
    EXPECT_EQ(message_of([&] {
                  apply_json(config, JsonValue::object({{"steps", 7}, {"time-budget", "5m"}}), "a.json");
              }),
              "a.json: steps and time-budget; expected only one of them");
    config.steps = 0;
    EXPECT_EQ(message_of([&] { validate(config); }), "steps: 0; expected 1 to 1e+12, or a time-budget");
    config.time_budget = "5";
    EXPECT_EQ(message_of([&] { validate(config); }),
              "time-budget: '5'; expected a time such as 90s, 5m or 1h30m, at most a year");
    config = {};
    config.replay_clock = "runs/a";
    EXPECT_EQ(message_of([&] { validate(config); }),
              "replay-clock: 'runs/a' without time-budget; expected the budget of that run");
}

TEST(TrainConfig, ListsOfNumbersAreReadAndWritten) {
    TrainConfig config, again;
    apply_config_text(config, R"({"rope-short-factors": [1, 1.5], "rope-long-factors": []})", "a.json");
    EXPECT_EQ(config.model.rope_scaling.short_factors, (std::vector<double>{1, 1.5}));
    apply_json(again, to_json(config), "again");
    EXPECT_EQ(again.model, config.model);
    for (const auto& [text, message] :
         {std::pair{R"({"rope-short-factors": 3})",
                    "a.json: rope-short-factors: 3 is a number; expected an array of numbers"},
          std::pair{R"({"rope-short-factors": [1, "2"]})",
                    "a.json: rope-short-factors: \"2\" is a string; expected a number"}})
        EXPECT_EQ(message_of([text = text, &config] { apply_config_text(config, text, "a.json"); }), message);
}

TEST(TrainConfig, EveryNumberIsLimited) {
    TrainConfig config;
    visit_settings(config, [&](const Setting& setting, auto& member) {
        const char* const name = setting.name;
        using Member = std::remove_cvref_t<decltype(member)>;
        if constexpr (std::is_same_v<Member, std::int64_t> || std::is_same_v<Member, double>) {
            const Member former = std::exchange(member, std::numeric_limits<Member>::max());
            EXPECT_THAT(message_of([&] { validate(config); }), testing::StartsWith(concat(name, ": ")));
            member = std::numeric_limits<Member>::lowest();
            EXPECT_THAT(message_of([&] { validate(config); }), testing::StartsWith(concat(name, ": ")));
            if constexpr (std::is_same_v<Member, double>) {
                for (const double wrong : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
                    member = wrong;
                    EXPECT_THAT(message_of([&] { validate(config); }),
                                testing::AllOf(testing::StartsWith(concat(name, ": ")),
                                               HasSubstr("expected a finite number")));
                }
            }
            member = former;
        }
    });
    EXPECT_NO_THROW(validate(config));
}

TEST(TrainConfig, ProductsOfSizesAreLimited) {
    TrainConfig config;
    config.model.layers = 10'000;
    config.model.width = 1 << 20;
    config.model.heads = 4096;
    config.model.hidden = 1 << 22;
    EXPECT_THAT(message_of([&] { validate(config); }), HasSubstr("too many parameters"));
    config = {};
    config.batch = 1 << 30;
    config.model.context = 1 << 24;
    EXPECT_THAT(message_of([&] { validate(config); }), HasSubstr("are too many"));
    EXPECT_FALSE(activations_are_countable(config.model, config.batch));
    config.micro_batch = 1;
    EXPECT_NO_THROW(validate(config));
}

/// For any sizes in a file, either the sizes are refused, or no number that is computed from them overflows.
TEST(TrainConfig, AnySizesAreCheckedQuickly) {
    const std::int64_t sizes[] = {-1, 0, 1, 2, 3, 64, 4096, 10'000, 1 << 20, 1 << 24, 1 << 30, INT64_MAX};
    std::uint64_t random = 1;
    int valid = 0;
    for (int round = 0; round < 4'000; ++round) {
        TrainConfig config;
        for (std::int64_t* member : {&config.model.layers, &config.model.heads, &config.model.kv_heads,
                                     &config.model.width, &config.model.hidden, &config.model.context,
                                     &config.model.vocabulary, &config.batch, &config.micro_batch}) {
            random = mix_seed(random, 1);
            if (random % 3 == 0) *member = sizes[random / 3 % std::size(sizes)];
        }
        try {
            validate(config);
        } catch (const Error&) {
            continue;
        }
        ++valid;
        EXPECT_GE(config.accumulation_steps(), 1);
        EXPECT_GT(flops_per_token(config.model, config.model.context), 0.0);
        if (config.model.layers <= 64) {
            config.model.vocabulary = std::max<std::int64_t>(config.model.vocabulary, 65);
            const Context ctx(Device::cpu(), 1);
            EXPECT_GT(plan_memory(ctx, memory_request(config, Device::cpu())).total(), 0u);
        }
    }
    EXPECT_GT(valid, 100);
}

TEST(NearestName, IsNearOrNone) {
    const std::vector<std::string> known{"batch", "micro-batch", "steps", "lr", "layers"};
    EXPECT_EQ(nearest_name("stepz", known), "steps");
    EXPECT_EQ(nearest_name("setps", known), "steps");
    EXPECT_EQ(nearest_name("batch-size", known), "batch");
    EXPECT_EQ(nearest_name("lay", known), "layers");
    EXPECT_EQ(nearest_name("frobnicate", known), "");
    EXPECT_EQ(nearest_name("", known), "");
    EXPECT_EQ(nearest_name(std::string(1 << 20, 'b'), known), "");
    EXPECT_EQ(nearest_name("steps", {}), "");
    EXPECT_EQ(did_you_mean("stepz", known, "--", ""), "; did you mean --steps?");
    EXPECT_EQ(did_you_mean("frobnicate", known), "");
}

TEST(TrainConfig, RanksShareTheBatch) {
    TrainConfig config;
    config.batch = 24;
    EXPECT_EQ(config.micro_batch_size(4), 6);
    EXPECT_EQ(config.accumulation_steps(4), 1);
    config.micro_batch = 2;
    EXPECT_EQ(config.micro_batch_size(4), 2);
    EXPECT_EQ(config.accumulation_steps(4), 3);
    EXPECT_NO_THROW(validate(config, 4));
    EXPECT_EQ(message_of([&] { validate(config, 5); }),
              "batch: 24 is not a multiple of the 5 processes that share it");
    EXPECT_EQ(message_of([&] { validate(config, 8); }),
              "micro-batch: 2 does not divide the 3 sequences of each of 8 processes");
    config.zero = 4;
    EXPECT_EQ(message_of([&] { validate(config); }), "zero: 4; expected 0 to 3");
}

TEST(TrainConfig, SettingsDetermineTheMemoryRequest) {
    TrainConfig config;
    config.batch = 24;
    config.dtype = TrainDType::bf16;
    MemoryRequest request = memory_request(config, Device::cuda(), 4);
    EXPECT_EQ(request.micro_batch, 6);
    EXPECT_EQ(request.dtype, DType::bf16);
    EXPECT_EQ(request.optimizer_shards, 1);
    using Save = MemoryRequest::Save;
    EXPECT_EQ(request.save, Save::whole);
    EXPECT_EQ(memory_request(config, Device::cpu()).save, Save::whole);
    EXPECT_FALSE(request.gradient_memory);
    config.zero = 1;
    EXPECT_FALSE(memory_request(config, Device::cuda(), 4).gradient_memory);
    EXPECT_EQ(memory_request(config, Device::cuda(), 4).save, Save::gathered);
    EXPECT_EQ(memory_request(config, Device::cuda(), 1).save, Save::whole);
    config.checkpoint_parts = true;
    EXPECT_EQ(memory_request(config, Device::cuda(), 4).save, Save::part);
    EXPECT_EQ(memory_request(config, Device::cuda(), 4).optimizer_shards, 4);
    config.zero = 2;
    EXPECT_EQ(memory_request(config, Device::cuda(), 4).optimizer_shards, 4);
    EXPECT_TRUE(memory_request(config, Device::cuda(), 4).gradient_memory);
    EXPECT_FALSE(memory_request(config, Device::cuda(), 4).value_slots);
    EXPECT_FALSE(memory_request(config, Device::cuda(), 1).gradient_memory);
    config.zero = 3;
    request = memory_request(config, Device::cuda(), 4);
    EXPECT_TRUE(request.gradient_memory);
    EXPECT_TRUE(request.value_slots);
    EXPECT_FALSE(request.samples);
    config.sample_every = 5;
    EXPECT_TRUE(memory_request(config, Device::cuda(), 4).samples);
    request = memory_request(config, Device::cuda(), 1);
    EXPECT_FALSE(request.gradient_memory);
    EXPECT_FALSE(request.value_slots);
    EXPECT_FALSE(request.samples);
}

TEST(TrainConfig, UnknownPresetIsRefusedWithTheNearest) {
    EXPECT_THAT(message_of([] { preset("gpt2-124"); }), HasSubstr("did you mean 'gpt2-124m'?"));
}

}  // namespace
}  // namespace gradtile
