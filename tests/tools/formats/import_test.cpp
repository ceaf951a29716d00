#include <gradtile/tools/formats/import.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/trainer.h>

#include <support/error_message.h>
#include <tools/formats/weights_fixture.h>

namespace gradtile {
namespace {

using test::copy_of;
using test::expect_equal_bits;
using test::json_of;
using test::message_of;
using test::reference_weights;
using test::TemporaryDirectory;
using test::write_json;
using testing::HasSubstr;

/// Computes logits in float32 from an imported model, whatever its dtype.
std::vector<double> logits_of(const ImportedModel& model, const Tensor& tokens) {
    LanguageModel computing(Context(Device::cpu(), 1), model.config, DType::f32, std::nullopt);
    copy_parameters(computing.ctx, computing.parameters, Checkpoint{.params = model.parameters}, "test");
    return to_host(computing.ctx, computing.transformer.logits_of_all(
                                      computing.ctx, tokens.reshape({1, tokens.elements()})));
}

void expect_reference_logits(const ImportedModel& model, const char* name) {
    const SafetensorsFile file((reference_weights() / concat(name, "_logits.safetensors")).string());
    const Context ctx(Device::cpu(), 1);
    const std::vector<double> expected = to_host(ctx, file.read(*file.find("logits")));
    const std::vector<double> own = logits_of(model, file.read(*file.find("tokens")));
    ASSERT_EQ(own.size(), expected.size());
    double largest = 0.0, difference = 0.0;
    for (std::size_t i = 0; i < own.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        difference = std::max(difference, std::abs(own[i] - expected[i]));
    }
    // A logit depends on a chain of about 20 sums, each with at most 48 products. In each of the two programs
    // a sum has an error of about sqrt(48) roundings, each 6e-8: 2 * 20 * 7 * 6e-8 = 1.7e-5 if all errors had
    // one sign, and sqrt(20) / 20 times as much if their signs are random.
    EXPECT_LE(difference, 1e-5 * largest) << name;
}

TEST(Import, LogitsEqualThoseOfTransformers) {
    const ImportedModel gpt2 = import_model((reference_weights() / "gpt2").string());
    EXPECT_EQ(gpt2.dtype, TrainDType::f32);
    EXPECT_TRUE(gpt2.config.tied_head);
    expect_reference_logits(gpt2, "gpt2");
    const ImportedModel sharded = import_model((reference_weights() / "llama_sharded").string());
    EXPECT_FALSE(sharded.config.tied_head);
    EXPECT_EQ(sharded.config.kv_heads, 2);
    expect_reference_logits(sharded, "llama_sharded");
    const ImportedModel half = import_model((reference_weights() / "llama_bfloat16").string());
    EXPECT_EQ(half.dtype, TrainDType::bf16);
    EXPECT_EQ(half.config.rope_base, 500.0);
    expect_reference_logits(half, "llama_bfloat16");
}

TEST(Import, LogitsOfEveryFamilyEqualThoseOfTransformers) {
    for (const char* const name : test::reference_families) {
        const ImportedModel model = import_model((reference_weights() / name).string());
        EXPECT_EQ(model.dtype, TrainDType::bf16) << name;
        expect_reference_logits(model, name);
    }
}

TEST(Import, TheDtypeOfTheWeightsCanBeChosen) {
    const ImportedModel stored = import_model((reference_weights() / "qwen3").string());
    std::int64_t last = 0, all = 0;
    const ImportedModel wide =
        import_model((reference_weights() / "qwen3").string(),
                     {.dtype = ImportDType::f32, .on_progress = [&](std::int64_t bytes, std::int64_t of) {
                          EXPECT_GT(bytes, last);
                          last = bytes;
                          all = of;
                      }});
    EXPECT_EQ(wide.dtype, TrainDType::f32);
    EXPECT_EQ(last, all);
    const Context ctx(Device::cpu(), 1);
    for (const auto& [name, x] : stored.parameters)
        EXPECT_EQ(test::bytes_of(wide.parameters.at(name)), test::bytes_of(cast(ctx, x, DType::f32))) << name;
    const ImportedModel narrow =
        import_model((reference_weights() / "llmc.bin").string(), {.dtype = ImportDType::bf16});
    EXPECT_EQ(narrow.dtype, TrainDType::bf16);
    EXPECT_EQ(narrow.parameters.at("wte.weight").dtype(), DType::bf16);
}

TEST(Import, AShorterContextSelectsLongropesShortFactors) {
    const std::string folder = (reference_weights() / "phi3").string();
    EXPECT_THAT(import_model(folder).notes, testing::ElementsAre(HasSubstr("import --context 8")));
    const ImportedModel model = import_model(folder, {.context = 8});
    EXPECT_THAT(model.notes, testing::IsEmpty());
    EXPECT_EQ(model.config.context, 8);
    EXPECT_THAT(message_of([&] { import_model(folder, {.context = 13}); }), HasSubstr("at most 12"));
    EXPECT_THAT(message_of([&] { import_model((reference_weights() / "gpt2").string(), {.context = 3}); }),
                HasSubstr("learned positions"));
}

TEST(Import, AFileOrItsIndexIsTheFolder) {
    const auto folder = reference_weights();
    expect_equal_bits(import_model((folder / "gpt2/model.safetensors").string()).parameters,
                      import_model((folder / "gpt2").string()).parameters);
    expect_equal_bits(
        import_model((folder / "llama_sharded/model.safetensors.index.json").string()).parameters,
        import_model((folder / "llama_sharded").string()).parameters);
}

TEST(Import, AModelOfLlmcHasTheWeightsItWasMadeFrom) {
    const ImportedModel model = import_model((reference_weights() / "llmc.bin").string());
    expect_equal_bits(model.parameters, import_model((reference_weights() / "gpt2").string()).parameters);
    EXPECT_EQ(model.config, import_model((reference_weights() / "gpt2").string()).config);
}

TEST(Import, ThePrefixOfNamesMayBeAbsent) {
    const TemporaryDirectory place;
    const auto folder = copy_of("gpt2", place);
    const SafetensorsFile file((folder / "model.safetensors").string());
    std::vector<NamedTensor> tensors;
    for (const SafetensorsEntry& entry : file.header().entries)
        if (entry.dtype == "F32")
            tensors.emplace_back(entry.name.substr(std::string_view("transformer.").size()),
                                 file.read(entry));
    write_safetensors((folder / "model.safetensors").string(), tensors);
    expect_equal_bits(import_model(folder.string()).parameters,
                      import_model((reference_weights() / "gpt2").string()).parameters);
}

TEST(Import, Float16WeightsAreWidenedExactly) {
    const TemporaryDirectory place;
    const auto folder = copy_of("gpt2", place);
    const Context ctx(Device::cpu(), 1);
    const SafetensorsFile file((folder / "model.safetensors").string());
    std::vector<NamedTensor> tensors;
    NamedTensors rounded;
    for (const SafetensorsEntry& entry : file.header().entries)
        if (entry.dtype == "F32") {
            tensors.emplace_back(entry.name, cast(ctx, file.read(entry), DType::f16));
            rounded[entry.name] = cast(ctx, tensors.back().second, DType::f32);
        }
    write_safetensors((folder / "model.safetensors").string(), tensors);
    const ImportedModel model = import_model(folder.string());
    EXPECT_EQ(model.dtype, TrainDType::f32);
    EXPECT_EQ(test::bytes_of(model.parameters.at("wte.weight")),
              test::bytes_of(rounded.at("transformer.wte.weight")));
}

TEST(Import, ARunOfImportedWeightsIsReadAndTrainedButNotResumed) {
    const TemporaryDirectory place;
    const std::string run = place / "run";
    const ImportedModel imported = import_model((reference_weights() / "llama_bfloat16").string());
    write_imported_run(imported, run);
    const auto model = load_model(run);
    EXPECT_EQ(model->transformer.config, imported.config);
    EXPECT_EQ(model->parameters.dtype(), DType::bf16);
    for (const Parameter& parameter : model->parameters.parameters())
        EXPECT_EQ(test::bytes_of(parameter.value()),
                  test::bytes_of(imported.parameters.at(parameter.name())));

    TrainConfig config;
    adopt_model(config, run);
    EXPECT_EQ(config.model, imported.config);
    config.init_from = run;
    config.data = place.write("tokens.bin", test::some_letter_ids(600));
    config.out = place / "tuned";
    config.steps = 2;
    config.batch = 2;
    config.threads = 1;
    config.device = DeviceChoice::cpu;
    config.dtype = TrainDType::bf16;
    Trainer trainer(config, [](const std::string&) {});
    EXPECT_EQ(trainer.run().step, 2);
    const std::string message = message_of([&] { Trainer resumed(run); });
    EXPECT_THAT(message, HasSubstr("imported weights"));
    EXPECT_THAT(message, HasSubstr("--init-from"));
    EXPECT_THAT(message_of([&] { write_imported_run(imported, run); }), HasSubstr("already holds a run"));
}

TEST(Import, WeightsThatAreNotFiniteLeaveNoRun) {
    const TemporaryDirectory place;
    ImportedModel model = test::random_model(test::small_gpt2());
    model.parameters.at("h.1.ln_2.bias").data<float>()[3] = std::nanf("");
    EXPECT_THAT(message_of([&] { write_imported_run(model, place / "run"); }), HasSubstr("h.1.ln_2.bias"));
    EXPECT_FALSE(exists(place / "run"));
    model.parameters.at("h.1.ln_2.bias").data<float>()[3] = 0.0f;
    write_imported_run(model, place / "run");
}

TEST(Import, AValueThatIsNotFiniteIsNamedWithItsFile) {
    const TemporaryDirectory place;
    const auto write_nan_before_end = [](const std::filesystem::path& file, std::uint64_t bytes) {
        const float nan = std::nanf("");
        std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
        stream.seekp(-static_cast<std::streamoff>(bytes), std::ios::end);
        stream.write(reinterpret_cast<const char*>(&nan), sizeof nan);
    };
    const auto weights = copy_of("gpt2", place) / "model.safetensors";
    const SafetensorsHeader header = SafetensorsFile(weights.string()).header();
    const auto wpe = std::ranges::find(header.entries, "transformer.wpe.weight", &SafetensorsEntry::name);
    write_nan_before_end(weights, header.entries.back().end - wpe->begin);
    EXPECT_EQ(message_of([&] { import_model(place / "gpt2"); }),
              concat(weights.string(), ": tensor 'transformer.wpe.weight' holds an infinity or a NaN"));

    const auto llmc = place / "model.bin";
    std::filesystem::copy_file(reference_weights() / "llmc.bin", llmc);
    write_nan_before_end(llmc, sizeof(float));
    EXPECT_EQ(message_of([&] { import_model(llmc); }),
              concat(llmc.string(), ": ln_f.bias holds an infinity or a NaN"));
}

TEST(Import, AValueBeyondTheDtypesRangeIsNamedWithItsFile) {
    const TemporaryDirectory place;
    const Context ctx(Device::cpu(), 1);
    const auto weights = copy_of("llama3", place) / "model.safetensors";
    const SafetensorsFile original(
        (std::filesystem::path(reference_weights()) / "llama3/model.safetensors").string());
    const std::string changed = "model.layers.1.self_attn.k_proj.weight";  // the second part of its parameter
    const auto message_with = [&](double value, DType dtype, ImportDType run) {
        std::vector<NamedTensor> tensors;
        for (const SafetensorsEntry& entry : original.header().entries) {
            const Tensor x = original.read(entry);
            std::vector<double> values = to_host(ctx, x);
            if (entry.name == changed) values.back() = value;
            tensors.emplace_back(entry.name, from_host(ctx, values, x.shape(), dtype));
        }
        write_safetensors(weights.string(), tensors);
        return message_of([&] { import_model(place / "llama3", {.dtype = run}); });
    };
    const std::string tensor = concat(weights.string(), ": tensor '", changed, "'");
    using enum ImportDType;
    EXPECT_EQ(message_with(-1e300, DType::f64, stored),
              concat(tensor, " holds -1e+300, which is beyond float32"));
    EXPECT_EQ(message_with(1e300, DType::f64, bf16),
              concat(tensor, " holds 1e+300, which is beyond bfloat16"));
    EXPECT_EQ(message_with(3.4e38, DType::f64, stored), "no error");
    // bfloat16's largest value is 3.39e38; float32's is 3.4028e38.
    EXPECT_EQ(message_with(3.4e38, DType::f32, bf16),
              concat(tensor, " holds 3.4e+38, which is beyond bfloat16; expected --dtype f32"));
    EXPECT_EQ(message_with(3.39e38, DType::f32, bf16), "no error");

    const auto llmc = place / "model.bin";
    std::filesystem::copy_file(reference_weights() / "llmc.bin", llmc);
    const float large = 3.4e38f;
    std::fstream stream(llmc, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(-static_cast<std::streamoff>(sizeof large), std::ios::end);
    stream.write(reinterpret_cast<const char*>(&large), sizeof large);
    stream.close();
    EXPECT_EQ(
        message_of([&] { import_model(llmc, {.dtype = bf16}); }),
        concat(llmc.string(), ": ln_f.bias holds 3.4e+38, which is beyond bfloat16; expected --dtype f32"));
}

TEST(Import, TensorsThatDoNotFitAreNamed) {
    const TemporaryDirectory place;
    const auto folder = copy_of("gpt2", place);
    const auto config = json_of(folder / "config.json");
    const auto message_with = [&](const char* member, const nlohmann::json& value) {
        nlohmann::json changed = config;
        changed[member] = value;
        write_json(folder / "config.json", changed);
        return message_of([&] { import_model(folder.string()); });
    };
    EXPECT_THAT(message_with("vocab_size", 41),
                HasSubstr("'transformer.wte.weight' has shape [40,8]; expected [41, 8]"));
    EXPECT_THAT(message_with("n_inner", 30),
                HasSubstr("'transformer.h.0.mlp.c_fc.weight' has shape [8,32]; expected [8, 30]"));
    EXPECT_THAT(message_with("n_layer", 3), HasSubstr("has no tensor 'transformer.h.2."));
    EXPECT_THAT(message_with("n_layer", 1), HasSubstr("'transformer.h.1."));
    EXPECT_THAT(message_with("n_layer", 1), HasSubstr("not part of the model"));
    EXPECT_THAT(message_with("tie_word_embeddings", false), HasSubstr("has no tensor 'lm_head.weight'"));
}

TEST(Import, ConfigsOfOtherModelsAreRefusedByMember) {
    const TemporaryDirectory place;
    struct Change {
        const char *model, *member;
        nlohmann::json value;
        const char* expected;
    };
    const std::vector<Change> changes = {
        {"gpt2", "model_type", "bloom", "model_type: 'bloom'"},
        {"gpt2", "vision_config", {{"model_type", "siglip"}}, "vision_config"},
        {"gpt2", "activation_function", "silu", "activation_function: 'silu'"},
        {"gpt2", "scale_attn_weights", false, "scale_attn_weights"},
        {"gpt2", "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx"},
        {"gpt2", "add_cross_attention", true, "add_cross_attention"},
        {"gpt2", "n_head", 3, "heads"},
        {"gpt2", "n_head", 0, "heads"},
        {"gpt2", "n_layer", -1, "n_layer: -1"},
        {"gpt2", "n_layer", 2.5, "n_layer: 2.5"},
        {"gpt2", "n_layer", 1e300, "n_layer"},
        {"gpt2", "n_embd", 1000000000, "width"},
        {"gpt2", "vocab_size", 0, "vocabulary: 0"},
        {"gpt2", "layer_norm_epsilon", "x", "layer_norm_epsilon"},
        {"gpt2", "layer_norm_epsilon", 0, "norm-epsilon"},
        {"gpt2", "quantization_config", nlohmann::json::object(), "quantization_config"},
        {"llama_bfloat16", "hidden_act", "gelu", "hidden_act: 'gelu'"},
        {"llama_bfloat16", "head_dim", "8", "head_dim: \"8\""},
        {"llama_bfloat16", "attention_bias", true, "attention_bias and mlp_bias differ"},
        {"llama_bfloat16", "num_key_value_heads", 3, "kv-heads"},
        {"llama_bfloat16", "rope_scaling", {{"rope_type", "mrope"}, {"factor", 2.0}}, "rope_type: 'mrope'"},
        {"llama_bfloat16", "rope_scaling", {{"type", "yarn"}}, "has no factor"},
        {"llama_bfloat16", "rope_parameters", {{"rope_type", "llama3"}}, "has no factor"},
        {"llama_bfloat16", "rope_parameters", 3, "rope_parameters: 3; expected an object"},
        {"llama_bfloat16", "rope_scaling", "x", "rope_scaling: \"x\"; expected an object"},
        {"llama_bfloat16", "num_attention_heads", nullptr, "num_attention_heads: null; expected an integer"},
        {"gpt2", "n_embd", nullptr, "n_embd: null; expected an integer"},
        {"llama_bfloat16", "rope_theta", -1, "rope-base"},
        {"gemma3_text", "rope_parameters", {{"rope_theta", 500.0}}, "full_attention and sliding_attention"},
        {"llama_bfloat16", "partial_rotary_factor", 0.5, "partial_rotary_factor"}};
    copy_of("gpt2", place);
    copy_of("llama_bfloat16", place);
    copy_of("gemma3_text", place);
    for (const Change& change : changes) {
        const auto file = place / change.model / "config.json";
        const nlohmann::json original = json_of(file);
        nlohmann::json changed = original;
        // Two names for one setting with different values are refused for that.
        if (std::string_view(change.member).starts_with("rope_")) changed.erase("rope_parameters");
        changed[change.member] = change.value;
        write_json(file, changed);
        const std::string message = message_of([&] { import_model((place / change.model).string()); });
        EXPECT_THAT(message, HasSubstr("config.json")) << change.member;
        EXPECT_THAT(message, HasSubstr(change.expected)) << change.member;
        write_json(file, original);
    }
}

TEST(Import, HostileIndicesAreRefused) {
    const TemporaryDirectory place;
    const auto folder = copy_of("llama_sharded", place);
    const auto index = folder / "model.safetensors.index.json";
    const nlohmann::json original = json_of(index);
    const auto message_with = [&](const auto& change) {
        nlohmann::json changed = original;
        change(changed);
        write_json(index, changed);
        return message_of([&] { import_model(folder.string()); });
    };
    EXPECT_THAT(message_with([](auto& j) { j["weight_map"]["lm_head.weight"] = "../model.safetensors"; }),
                HasSubstr("not a file in the same folder"));
    EXPECT_THAT(message_with([](auto& j) { j["weight_map"]["lm_head.weight"] = ".."; }),
                HasSubstr("not a file in the same folder"));
    EXPECT_THAT(message_with([](auto& j) { j["weight_map"]["lm_head.weight"] = 3; }),
                HasSubstr("weight_map: lm_head.weight: 3; expected a file's name"));
    EXPECT_THAT(message_with([](auto& j) { j["weight_map"]["more"] = j["weight_map"]["lm_head.weight"]; }),
                HasSubstr("'more' is not in"));
    EXPECT_THAT(message_with([](auto& j) { j["weight_map"].erase("lm_head.weight"); }), HasSubstr("lm_head"));
    EXPECT_THAT(message_with([](auto& j) { j.erase("weight_map"); }), HasSubstr("weight_map"));
    EXPECT_THAT(message_with([](auto& j) { j["weight_map"]["lm_head.weight"] = "none.safetensors"; }),
                HasSubstr("none.safetensors"));
}

TEST(Import, ATokenizerThatDoesNotFitIsRefused) {
    const TemporaryDirectory place;
    const auto folder = copy_of("gpt2", place);
    const auto tokenizer =
        std::filesystem::path(GRADTILE_SOURCE_DIR) / "tests/reference/tokenizers/gpt2.json";
    EXPECT_FALSE(import_model(folder.string()).tokenizer.has_value());
    copy_file(tokenizer, folder / "tokenizer.json");
    const std::string message = message_of([&] { import_model(folder.string()); });
    EXPECT_THAT(message, HasSubstr("ids, but the model's vocabulary is 40"));
    EXPECT_FALSE(import_model(folder.string(), {.tokenizer = "none"}).tokenizer.has_value());
    std::filesystem::resize_file(folder / "tokenizer.json", 100);
    EXPECT_THAT(message_of([&] { import_model(folder.string()); }), HasSubstr("--tokenizer none"));
}

TEST(Import, DamagedModelsOfLlmcAreRefused) {
    const TemporaryDirectory place;
    const std::string bytes = test::contents_of(reference_weights() / "llmc.bin");
    const auto message_with = [&](std::size_t word, std::int32_t value) {
        std::string changed = bytes;
        std::memcpy(changed.data() + 4 * word, &value, sizeof value);
        return message_of([&] { import_model(place.write("model.bin", changed)); });
    };
    EXPECT_THAT(message_with(0, 20240520), HasSubstr("begins with 20240520"));
    EXPECT_THAT(message_with(1, 2), HasSubstr("version 2"));
    EXPECT_THAT(message_with(1, 5), HasSubstr("bytes; a model of 2 layers"));
    EXPECT_THAT(message_with(2, -5), HasSubstr("context"));
    EXPECT_THAT(message_with(3, 0), HasSubstr("vocabulary"));
    EXPECT_THAT(message_with(4, 2'000'000'000), HasSubstr("layers"));
    EXPECT_THAT(message_with(5, 0), HasSubstr("heads"));
    EXPECT_THAT(message_with(7, 39), HasSubstr("padded vocabulary"));
    EXPECT_THAT(message_of([&] { import_model(place.write("m.bin", bytes.substr(0, bytes.size() - 1))); }),
                HasSubstr("bytes"));
    EXPECT_THAT(message_of([&] { import_model(place.write("m.bin", bytes + "x")); }), HasSubstr("bytes"));
    EXPECT_THAT(message_of([&] { import_model(place.write("m.bin", bytes.substr(0, 9))); }),
                HasSubstr("9 bytes"));
}

}  // namespace
}  // namespace gradtile
