// `gradtile models`: its table for this machine and for a GPU that is not here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/check.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<json> rows_of(const Arguments& arguments) {
    const Outcome outcome = run(Arguments{"models", "--json"} + arguments);
    expect_success(outcome);
    return outcome.json_lines();
}

json row_of(const std::vector<json>& rows, const std::string& model) {
    for (const json& row : rows)
        if (row.at("model") == model) return row;
    throw Error("no row for " + model);
}

TEST(Models, AModelThatDoesNotFitHasNoSpeed) {
    const std::vector<json> rows = rows_of({"--gpu-memory", "24", "--context", "512"});
    EXPECT_GT(rows.size(), 50u);
    int fits = 0, uses = 0;
    for (const json& row : rows)
        for (const char* const use : {"generation", "lora", "training"}) {
            const bool has_speed = !row.at(std::string(use) + "_tokens_per_s").is_null();
            EXPECT_EQ(has_speed, row.at(std::string(use) + "_gib") <= 24) << row << use;
            fits += has_speed;
            ++uses;
        }
    EXPECT_GT(fits, uses / 4);
    EXPECT_LT(fits, uses);
    const json qwen = row_of(rows, "Qwen2.5-0.5B");
    EXPECT_EQ(qwen.at("model_type"), "qwen2");
    EXPECT_EQ(qwen.at("parameters"), 494032768);
    EXPECT_EQ(qwen.at("context"), 512);
    EXPECT_LT(qwen.at("generation_gib"), qwen.at("lora_gib"));
    EXPECT_LT(qwen.at("lora_gib"), qwen.at("training_gib"));
    EXPECT_GT(qwen.at("lora_tokens_per_s"), qwen.at("training_tokens_per_s"));
    // Its positions are weights, so its context stays.
    EXPECT_EQ(row_of(rows, "GPT-2").at("context"), 1024);
}

TEST(Models, AgreesWithPlan) {
    const json gpt2 = row_of(rows_of({"--gpu-memory", "139", "--batch", "4"}), "GPT-2");
    const Outcome outcome =
        run({"plan", "--model", "gpt2-124m", "--dtype", "bf16", "--batch", "4", "--json"});
    expect_success(outcome);
    const json plan = json::parse(outcome.out);
    // The table's numbers have nine digits.
    const double bytes = plan.at("memory").at("total_bytes"),
                 speed = plan.at("predictions")[0].at("tokens_per_s");
    EXPECT_NEAR(gpt2.at("training_gib").get<double>() * (1 << 30), bytes, 1e-8 * bytes);
    EXPECT_NEAR(gpt2.at("training_tokens_per_s").get<double>(), speed, 1e-8 * speed);
}

/// The figures of docs/fine_tuning.md.
TEST(Models, QuantizedMatricesLetAModelOfSevenBillionBeTunedIn12GiB) {
    const auto lora_of = [](const Arguments& more) {
        return row_of(rows_of(Arguments{"--gpu-memory", "12", "--recompute", "block"} + more), "Llama-2-7B");
    };
    const json plain = lora_of({}), int8 = lora_of({"--frozen-dtype", "int8"}),
               nf4 = lora_of({"--frozen-dtype", "nf4"});
    EXPECT_GT(plain.at("lora_gib"), 12);
    EXPECT_LT(nf4.at("lora_gib"), int8.at("lora_gib"));
    EXPECT_LT(nf4.at("lora_gib"), 12);
    EXPECT_FALSE(nf4.at("lora_tokens_per_s").is_null());
    EXPECT_EQ(nf4.at("training_gib"), plain.at("training_gib"))
        << "trains all weights, so that none is frozen";
    EXPECT_EQ(nf4.at("generation_gib"), plain.at("generation_gib"));
}

TEST(Models, FlagsChangeWhatFits) {
    const auto training_gib = [](const Arguments& more) {
        return row_of(rows_of(Arguments{"--gpu-memory", "80"} + more), "Llama-3.2-1B")
            .at("training_gib")
            .get<double>();
    };
    const double usual = training_gib({});
    EXPECT_LT(training_gib({"--recompute", "block"}), usual);
    EXPECT_LT(training_gib({"--context", "256"}), usual);
    EXPECT_GT(training_gib({"--batch", "4"}), usual);
    EXPECT_GT(training_gib({"--dtype", "f32"}), usual * 0.9);
}

TEST(Models, MeasuresThisMachine) {
    const Outcome outcome = run({"models", "--context", "128", "--dtype", "f32"});
    expect_success(outcome);
    for (const char* const part : {"this machine's CPU, ", "f32, 1 x 128 tokens", "\nQwen2.5-0.5B ",
                                   "A model without tokens/s does not fit.", "measured rates"})
        EXPECT_THAT(outcome.out, HasSubstr(part));
}

TEST(Models, RefusesBadFlagsInOneLine) {
    for (const auto& [arguments, parts] : std::vector<std::pair<Arguments, std::vector<std::string>>>{
             {{"--context", "0"}, {"--context: 0", "1 to"}},
             {{"--batch", "-1"}, {"--batch: -1", "1 to"}},
             {{"--batch", "9223372036854775807"}, {"--batch: 9223372036854775807"}},
             {{"--gpu-memory", "-4"}, {"--gpu-memory: -4"}},
             {{"--gpu-memory", "nan"}, {"--gpu-memory"}},
             {{"--gpu-memory", "8", "--device", "cpu"}, {"--gpu-memory: 8 with --device cpu"}},
             {{"--dtype", "f8"}, {"--dtype: 'f8'", "f32"}},
             {{"--recompute", "all"}, {"--recompute: 'all'"}},
             {{"qwen"}, {"qwen"}}}) {
        const Outcome outcome = run(Arguments{"models"} + arguments);
        EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
        expect_refused(outcome, parts);
    }
    expect_refused(run({"models", "--device", "cuda"}), {});  // the tests hide GPUs
}

}  // namespace
}  // namespace gradtile::test
