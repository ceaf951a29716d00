#include <gradtile/train/config/settings.h>

#include <functional>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/error_message.h>

#include "tiny_run.h"

namespace gradtile {
namespace {

using test::message_of;
using test::TinyRun;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Settings, HaveUniqueNamesAndHelp) {
    const TrainConfig any;
    std::set<std::string> names;
    visit_settings(any, [&](const Setting& setting, const auto&) {
        EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
        EXPECT_NE(setting.help, std::string()) << setting.name;
    });
    const JsonValue values = to_json(any);
    EXPECT_EQ(values.size(), names.size());
    for (const auto& [name, value] : values.items()) EXPECT_TRUE(names.contains(name)) << name;
}

template <class Part, class Member>
bool is_inside(const Part& part, const Member& member) {
    const auto *begin = reinterpret_cast<const char*>(&part), *at = reinterpret_cast<const char*>(&member);
    return std::less_equal()(begin, at) && std::less()(at, begin + sizeof part);
}

TEST(Settings, HaveTheGroupOfTheOptionsThatHoldThem) {
    const TrainConfig any;
    visit_settings(any, [&](const Setting& setting, const auto& member) {
        SCOPED_TRACE(setting.name);
        EXPECT_EQ(setting.group == SettingGroup::architecture, is_inside(any.model, member));
        EXPECT_EQ(setting.group == SettingGroup::adapters, is_inside(any.adapters, member));
        if (is_inside(any.training, member)) {
            EXPECT_EQ(setting.group, SettingGroup::training);
        }
    });
}

/// A list gives rows in bench, so a setting with lists needs a command of bench.
TEST(Settings, WithListsAreUsedByABenchmark) {
    const TrainConfig any;
    visit_settings(any, [&](const Setting& setting, const auto&) {
        const SettingUsers& users = setting.used_by;
        const bool is_in_bench =
            users.bench_train || users.bench_generate || users.bench_gemm || users.bench_layers;
        EXPECT_TRUE(setting.in_bench == FlagTakes::value || is_in_bench) << setting.name;
    });
}

/// Each setting is changed on a resume: to another value if it may change, else to the value that it has.
TEST(Settings, ChangeOnAResumeExactlyWhereTheirTraitsSay) {
    TinyRun run;
    run.config.dtype = TrainDType::bf16;  // for split masters
    // Documents, because a plain text of characters has no token cache.
    const std::string documents = test::some_conversations(60), validation = test::some_conversations(20);
    run.config.data = run.directory.write("documents.jsonl", documents);
    run.config.val_data = run.directory.write("val.jsonl", validation);
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    const std::map<std::string, JsonValue> other_values{
        {"data", run.directory.write("moved.jsonl", documents)},
        {"val-data", run.directory.write("moved_val.jsonl", validation)},
        {"steps", 15},
        {"tensorboard", (run.directory / "events").string()},
        {"threads", 3},
        {"token-cache", (run.directory / "cache").string()},
        {"device", "auto"},
        {"zero", 1},
        {"shard-copies", 1},
        {"masters", "split"},
        {"offload", "optimizer"},
        {"save-every", 2},
        {"checkpoint-parts", true},
        {"context-parallel", 2}};
    const TrainConfig any = run.config;
    const JsonValue values = to_json(any);
    visit_settings(any, [&](const Setting& setting, const auto&) {
        SCOPED_TRACE(setting.name);
        const auto other = other_values.find(setting.name);
        ASSERT_EQ(other != other_values.end(), setting.on_resume == OnResume::may_change);
        if (setting.on_resume == OnResume::fixed) {
            const ResumeOptions same{.changes = JsonValue::object({{setting.name, values[setting.name]}})};
            EXPECT_THAT(message_of([&] { Trainer(run.config.out, same, run.on_message); }),
                        testing::AllOf(StartsWith(concat(setting.name, ": cannot change when a run is ")),
                                       HasSubstr("steps"), HasSubstr("val-data")));
            return;
        }
        EXPECT_NE(other->second, values[setting.name]);
        if (setting.name == std::string("context-parallel")) {  // it may change, but needs processes
            EXPECT_EQ(message_of([&] {
                          Trainer(run.config.out, {.changes = JsonValue::object({{setting.name, 2}})},
                                  run.on_message);
                      }),
                      "context-parallel: 2 does not divide the number of processes, 1");
            return;
        }
        if (setting.name == std::string("checkpoint-parts")) {  // it may change, but needs shards
            EXPECT_EQ(message_of([&] {
                          Trainer(run.config.out, {.changes = JsonValue::object({{setting.name, true}})},
                                  run.on_message);
                      }),
                      "checkpoint-parts: true without zero, so that every rank holds all of a checkpoint; "
                      "expected false");
            return;
        }
        if (setting.name == std::string("shard-copies")) {  // it may change, but needs shards
            EXPECT_EQ(message_of([&] {
                          Trainer(run.config.out, {.changes = JsonValue::object({{setting.name, 1}})},
                                  run.on_message);
                      }),
                      "shard-copies: 1 without zero, so that every process has the whole state; expected 0");
            return;
        }
        if (setting.name == std::string("offload")) {  // it may change, but needs a GPU
            EXPECT_EQ(message_of([&] {
                          Trainer(run.config.out,
                                  {.changes = JsonValue::object({{setting.name, "optimizer"}})},
                                  run.on_message);
                      }),
                      "offload: \"optimizer\" on cpu; expected none, because its memory is the host's");
            return;
        }
        const Trainer resumed(run.config.out, {.changes = JsonValue::object({{setting.name, other->second}})},
                              run.on_message);
        EXPECT_EQ(resumed.step(), 5);
        if (setting.name == std::string("steps")) {
            EXPECT_EQ(resumed.last_step(), 15);
            EXPECT_EQ(resumed.config().steps, run.config.steps);
        } else {
            EXPECT_EQ(to_json(resumed.config())[setting.name], other->second);
        }
    });
    EXPECT_THAT(
        message_of([&] {
            Trainer(run.config.out, {.changes = JsonValue::object({{"preset", "demo"}})}, run.on_message);
        }),
        StartsWith("preset: cannot change"));
}

/// tests/reference/lora_run is a run that was stopped after step 2 of 4, when ModelConfig still held the
/// options of training and adapters (commit 98b792c0, with the keys of 96ba9f6). No architecture, training
/// option or adapter option has its default. The losses of steps 3 and 4 are those of that program.
class EarlierRun : public testing::Test {
  protected:
    EarlierRun() {
        std::filesystem::copy(std::filesystem::path(GRADTILE_SOURCE_DIR) / "tests/reference/lora_run", run_,
                              std::filesystem::copy_options::recursive);
    }
    test::TemporaryDirectory directory_;
    const std::filesystem::path run_ = directory_ / "run",
                                checkpoint_ = run_ / "checkpoints/step_00000002.h5";
};

TEST_F(EarlierRun, HasTheSettingsThatItWasWrittenWith) {
    const JsonValue stored = read_checkpoint(checkpoint_).config;
    TrainConfig config, from_file;
    apply_json(config, stored, "checkpoint");
    apply_config_file(from_file, (run_ / "config.json").string());
    EXPECT_EQ(to_json(from_file), to_json(config));
    EXPECT_EQ(config.model, (ModelConfig{.layers = 1,
                                         .heads = 2,
                                         .kv_heads = 1,
                                         .width = 8,
                                         .hidden = 24,
                                         .context = 8,
                                         .vocabulary = 3,
                                         .norm = Norm::rms,
                                         .activation = Activation::swiglu,
                                         .positions = Positions::rope,
                                         .rope_base = 500,
                                         .norm_epsilon = 0.001,
                                         .bias = false,
                                         .tied_head = false,
                                         .qk_norm = true,
                                         .window = 4,
                                         .window_pattern = 2,
                                         .softcap = 20,
                                         .sinks = true}));
    EXPECT_EQ(config.training, (TrainingOptions{.dropout = 0.125,
                                                .attention_dropout = 0.25,
                                                .recompute = Recompute::block,
                                                .deterministic = true}));
    EXPECT_EQ(config.adapters, (AdapterOptions{.rank = 2, .alpha = 3, .on = "attn"}));
    const JsonValue now = to_json(config);
    for (const auto& [name, value] : stored.items())  // memory budgets were numbers
        EXPECT_EQ(now[name], name == "memory-budget" ? JsonValue("") : value) << name;
}

/// A forward and backward pass has some thousand roundings, in an order that depends on the machine.
TEST_F(EarlierRun, IsResumedWithTheLossesOfTheProgramThatWroteIt) {
    Trainer trainer(run_, {.changes = JsonValue::object({{"data", (run_ / "text.txt").string()}})});
    EXPECT_EQ(trainer.step(), 2);
    EXPECT_TRUE(trainer.model().has_adapters());
    trainer.run();
    const std::vector<nlohmann::json> steps = TinyRun::losses(run_);
    ASSERT_EQ(steps.size(), 4u);
    const double bound = 1e3 * 0x1p-24;
    EXPECT_NEAR(steps[2]["loss"].get<double>(), 1.09656628, bound);
    EXPECT_NEAR(steps[3]["loss"].get<double>(), 1.09788704, bound);
}

TEST_F(EarlierRun, IsLoadedWithMergedAdapters) {
    const auto model = load_model(checkpoint_);
    EXPECT_FALSE(model->has_adapters());
    EXPECT_EQ(model->transformer.config.sinks, true);
}

}  // namespace
}  // namespace gradtile
