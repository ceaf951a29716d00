// The trainer follows PyTorch: 100 steps in float32 from the same weights on the same batches, with one model
// per kind. PyTorch's losses are in tests/reference/training_losses.json, written by
// tests/judge/training_judge.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "program.h"

#include <tiny_run.h>

namespace gradtile::test {
namespace {

constexpr const char* models[] = {
    "gpt2",   "llama",        "muon",  "normuon", "window",        "softcap",     "dropout",
    "packed", "packed-llama", "sinks", "alibi",   "alibi-3-heads", "all-options", "conversations",
    "gemma3", "olmo2",        "neox",  "records", "streams",       "gates",       "key-offset"};

nlohmann::json reference_cases() {
    const std::string path = GRADTILE_SOURCE_DIR "/tests/reference/training_losses.json";
    return nlohmann::json::parse(contents_of(path)).at("cases");
}

class PyTorchParity : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, PyTorchParity, testing::ValuesIn(models), [](const auto& info) {
    std::string name = info.param;
    std::ranges::replace(name, '-', '_');
    return name;
});

/// PyTorch's losses are float64. Float32 rounds every operation to 6e-8; over 100 steps the losses in float32
/// runs, PyTorch's too, differ from float64 by at most 4e-7, so 1e-6 allows another machine's addition order.
TEST_P(PyTorchParity, LossesAgreeForAHundredSteps) {
    const TemporaryDirectory place;
    const nlohmann::json expected = reference_cases().at(GetParam());
    const auto flags = expected.at("flags").get<Arguments>();
    const bool packed = std::ranges::count(flags, "--packed") > 0;
    const std::string text = std::string(GetParam()) == "conversations"
                                 ? place.write("text.jsonl", some_conversations(60))
                                 : place.write("text.txt", packed ? some_documents(400) : some_text(400));
    const auto out = place / "run";
    expect_success(
        run(Arguments{"train", "--data", text, "--val-data", text, "--eval-every", "0", "--quiet", "--device",
                      "cpu", "--threads", "1", "--steps", "100", "--out", out.string()} +
            flags));
    const std::vector<nlohmann::json> steps = steps_of(out);
    const auto losses = expected.at("losses").get<std::vector<double>>();
    ASSERT_EQ(steps.size(), 100u);
    ASSERT_EQ(losses.size(), 100u);
    for (std::size_t i = 0; i < 100; ++i)
        ASSERT_NEAR(steps[i].at("loss").get<double>(), losses[i], 1e-6 * losses[i]) << "step " << i + 1;
    EXPECT_LT(losses.back(), 0.7 * losses.front()) << "the model has not learnt";
}

TEST(PyTorchReference, EveryModelIsTested) {
    const nlohmann::json cases = reference_cases();
    std::vector<std::string> names;
    for (const auto& [name, reference] : cases.items()) names.push_back(name);
    EXPECT_THAT(names, testing::UnorderedElementsAreArray(models));
}

}  // namespace
}  // namespace gradtile::test
