#pragma once
/// Models for import and export tests.
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/formats/export.h>
#include <gradtile/tools/formats/huggingface_config.h>
#include <gradtile/tools/formats/imported_run.h>
#include <gradtile/tools/formats/safetensors.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>
#include <gradtile/train/model/language_model.h>

#include <support/json.h>
#include <support/small_models.h>
#include <support/temporary_directory.h>

namespace gradtile::test {

/// The committed models; make_weights_reference.py makes them.
inline std::filesystem::path reference_weights() {
    return std::filesystem::path(GRADTILE_SOURCE_DIR) / "tests/reference/weights";
}

/// The models of other families than GPT-2 and Llama 2 among them.
inline constexpr std::array reference_families{"llama3", "mistral", "qwen2",       "qwen3",    "smollm3",
                                               "olmo2",  "gemma2",  "gemma3_text", "gpt_neox", "phi3"};

inline ModelConfig small_gpt2() {
    return {.layers = 2, .heads = 2, .width = 16, .context = 8, .vocabulary = 30};
}
inline ModelConfig small_llama() {
    ModelConfig config = as_llama({.layers = 2, .heads = 4, .width = 32, .context = 8, .vocabulary = 30});
    config.kv_heads = 2;
    return config;
}

/// A small model of each family, in the order of model_families().
inline std::vector<FamilyModel> models_of_families() {
    std::vector<FamilyModel> models{{"gpt2", small_gpt2()}};
    const auto add = [&](const char* family, const auto& change) {
        models.push_back({family, small_llama()});
        change(models.back().config);
    };
    add("llama", [](ModelConfig&) {});
    add("mistral", [](ModelConfig& c) { c.window = 3; });
    add("qwen2", [](ModelConfig& c) { c.qkv_bias = true; });
    add("qwen3", [](ModelConfig& c) {
        c.head_width = 12;
        c.qk_norm = true;
    });
    add("smollm3", [](ModelConfig& c) { c.rope_pattern = 2; });
    add("olmo2", family::olmo2);
    add("gemma2", family::gemma2);
    add("gemma3_text", family::gemma3);
    add("gpt_neox", family::neox);
    add("phi3", family::phi3);
    return models;
}

/// The config.json with which a family describes the model.
inline std::string config_text(std::string_view family, const ModelConfig& config) {
    return huggingface_config_of(*find_family(family), config, {}, DType::f32, {}, "test").dump(2);
}

/// A model whose elements all differ, so that a test notices when two elements are swapped.
inline ImportedModel random_model(const ModelConfig& config, TrainDType dtype = TrainDType::f32) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore parameters;
    const Transformer transformer(config, parameters);
    ImportedModel model{.description = "test", .config = config, .dtype = dtype};
    std::vector<double> values;
    for (const Parameter& parameter : parameters.parameters()) {
        values.resize(static_cast<std::size_t>(parameter.shape().elements()));
        double value = static_cast<double>(model.parameters.size());
        for (double& element : values) element = std::sin(value += 1.0) * 0.4;
        model.parameters[parameter.name()] = from_host(ctx, values, parameter.shape(), storage_dtype(dtype));
    }
    return model;
}

inline std::vector<std::byte> bytes_of(const Tensor& x) {
    std::vector<std::byte> bytes(x.bytes());
    copy_row_major(x, 0, x.elements(), bytes.data());
    return bytes;
}

inline void expect_equal_bits(const NamedTensors& a, const NamedTensors& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, x] : a) {
        ASSERT_TRUE(b.contains(name)) << name;
        EXPECT_EQ(x.shape(), b.at(name).shape()) << name;
        EXPECT_EQ(x.dtype(), b.at(name).dtype()) << name;
        EXPECT_EQ(bytes_of(x), bytes_of(b.at(name))) << name;
    }
}

inline nlohmann::json json_of(const std::filesystem::path& file) {
    std::ifstream in(file);
    return nlohmann::json::parse(in);
}
inline void write_json(const std::filesystem::path& file, const nlohmann::json& value) {
    std::ofstream(file) << value.dump();
}

/// A text of letters between a and t, which fit the small vocabularies.
inline std::string some_letters(std::size_t length) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + i * i % 20);
    return text;
}

/// A token file with the ids that a character tokenizer gives some_letters(), for models without a tokenizer.
inline std::string some_letter_ids(std::size_t length) {
    std::string ids;  // uint16, little-endian
    for (const char letter : some_letters(length)) ids += {static_cast<char>(letter - 'a'), '\0'};
    return ids;
}

/// Copies a committed model to change it.
inline std::filesystem::path copy_of(const char* model, const TemporaryDirectory& place) {
    std::filesystem::copy(reference_weights() / model, place / model,
                          std::filesystem::copy_options::recursive);
    return place / model;
}

}  // namespace gradtile::test
