#include <gradtile/train/train_config.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <gradtile/layers/memory_plan.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using nlohmann::json;
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

TEST(TrainConfig, EveryPresetIsValid) {
    for (const std::string& name : preset_names()) EXPECT_NO_THROW(validate(preset(name))) << name;
}

TEST(TrainConfig, UnknownKeyIsRefusedWithTheNearestKnownOne) {
    TrainConfig config;
    EXPECT_EQ(message_of([&] {
                  apply_json(config, {{"warmpu", 3}}, "a.json");
              }),
              "a.json: unknown setting 'warmpu'; the nearest known one is 'warmup'");
}

TEST(TrainConfig, DeeplyNestedValuesAreRefusedWithoutPrintingThem) {
    TrainConfig config;
    const std::size_t depth = 1'000'000;
    const std::string text = "{\"steps\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
    EXPECT_EQ(message_of([&] { apply_config_text(config, text, "a.json"); }),
              "a.json: steps: [...] is an array; expected an integer");
}

TEST(TrainConfig, WrongTypesAreNamedWithWhatWasExpected) {
    TrainConfig config;
    EXPECT_EQ(message_of([&] {
                  apply_json(config, {{"steps", "many"}}, "a.json");
              }),
              "a.json: steps: \"many\" is a string; expected an integer");
    EXPECT_EQ(message_of([&] {
                  apply_json(config, {{"steps", 1.5}}, "a.json");
              }),
              "a.json: steps: 1.5 is a number; expected an integer");
    EXPECT_EQ(message_of([&] {
                  apply_json(config, {{"bias", 1}}, "a.json");
              }),
              "a.json: bias: 1 is a number; expected true or false");
    EXPECT_EQ(message_of([&] {
                  apply_json(config, {{"norm", "batch"}}, "a.json");
              }),
              "a.json: norm: 'batch' is unknown; expected layer or rms");
    EXPECT_THAT(message_of([&] { apply_json(config, json::array(), "a.json"); }),
                HasSubstr("expected an object"));
    EXPECT_THAT(message_of([&] { apply_json(config, {{"seed", -1}}, "a.json"); }), HasSubstr("0 or more"));
}

TEST(TrainConfig, APresetInTheFileIsTheBaseOfItsOtherSettings) {
    TrainConfig config;
    apply_json(config, {{"layers", 7}, {"preset", "shakespeare-char"}}, "a.json");
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
    EXPECT_EQ(refusal([](TrainConfig& c) { c.micro_batch = 5; }), "micro-batch: 5 does not divide batch 12");
    EXPECT_EQ(refusal([](TrainConfig& c) { c.lr = -1; }), "lr: -1; expected more than 0");
    EXPECT_EQ(refusal([](TrainConfig& c) { c.model.dropout = 1; }), "dropout: 1; expected 0 <= dropout < 1");
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
    config.zero = 2;
    EXPECT_EQ(message_of([&] { validate(config); }), "zero: 2; expected 0 or 1");
}

TEST(TrainConfig, MemoryIsAskedForByTheSettings) {
    TrainConfig config;
    config.batch = 24;
    config.dtype = TrainDType::bf16;
    MemoryRequest request = memory_request(config, Device::cuda(), 4);
    EXPECT_EQ(request.micro_batch, 6);
    EXPECT_EQ(request.dtype, DType::bf16);
    EXPECT_EQ(request.optimizer_shards, 1);
    EXPECT_TRUE(request.snapshot);
    EXPECT_TRUE(memory_request(config, Device::cpu()).snapshot);
    config.zero = 1;
    EXPECT_FALSE(memory_request(config, Device::cuda(), 4).snapshot);  // it is put together on the host
    EXPECT_EQ(memory_request(config, Device::cuda(), 4).optimizer_shards, 4);
}

TEST(TrainConfig, UnknownPresetIsRefusedWithTheNearest) {
    EXPECT_THAT(message_of([] { preset("gpt2-124"); }), HasSubstr("the nearest is 'gpt2-124m'"));
}

}  // namespace
}  // namespace gradtile
