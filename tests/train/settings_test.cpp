#include <gradtile/train/config/settings.h>

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
    const std::string validation = test::some_text(400);
    run.config.val_data = run.directory.write("val.txt", validation);
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    const std::map<std::string, JsonValue> other_values{
        {"data", run.directory.write("moved.txt", test::some_text(2000))},
        {"val-data", run.directory.write("moved_val.txt", validation)},
        {"steps", 15},
        {"tensorboard", (run.directory / "events").string()},
        {"threads", 3},
        {"device", "auto"},
        {"zero", 1},
        {"save-every", 2}};
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

}  // namespace
}  // namespace gradtile
