// The table of published models.
#include <gradtile/tools/formats/families/published_models.h>

#include <map>
#include <set>

#include <gtest/gtest.h>

#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/formats/families/model_family.h>

namespace gradtile {
namespace {

TEST(PublishedModels, HaveTheirPublishedNumberOfParameters) {
    for (const PublishedModel& model : published_models())
        EXPECT_EQ(parameter_count(config_of(model)), model.parameters) << model.name;
}

TEST(PublishedModels, AreInTheOrderOfTheFamiliesAndOfSize) {
    std::vector<std::string_view> families;
    std::set<std::string_view> names;
    const PublishedModel* last = nullptr;
    for (const PublishedModel& model : published_models()) {
        EXPECT_TRUE(names.insert(model.name).second) << model.name;
        if (last && last->family == model.family) {
            EXPECT_LT(last->parameters, model.parameters) << model.name;
        } else {
            families.push_back(model.family);
        }
        last = &model;
    }
    std::vector<std::string_view> expected;
    for (const ModelFamily& family : model_families()) expected.push_back(family.type);
    EXPECT_EQ(families, expected);
}

TEST(PublishedModels, WindowsAreThoseOfTheirConfigs) {
    const std::map<std::string_view, std::int64_t> windows{
        {"Mistral-7B-v0.1", 4096}, {"Mistral-7B-v0.3", 0}, {"Mistral-Nemo-12B", 0}, {"Qwen2.5-0.5B", 0},
        {"Gemma-2-2B", 4096},      {"Gemma-3-1B", 512},    {"Phi-3-mini-4k", 2047}, {"Phi-4-mini", 0},
        {"SmolLM3-3B", 0},         {"Llama-3.2-1B", 0},    {"Qwen3-0.6B", 0}};
    std::size_t found = 0;
    for (const PublishedModel& model : published_models()) {
        const auto expected = windows.find(model.name);
        if (expected == windows.end()) continue;
        EXPECT_EQ(config_of(model).window, expected->second) << model.name;
        ++found;
    }
    EXPECT_EQ(found, windows.size());
}

}  // namespace
}  // namespace gradtile
