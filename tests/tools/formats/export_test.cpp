#include <gradtile/tools/formats/export.h>

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>

#include <support/error_message.h>
#include <tools/formats/weights_fixture.h>

namespace gradtile {
namespace {

using test::expect_equal_bits;
using test::message_of;
using test::random_model;
using test::reference_weights;
using test::small_gpt2;
using test::small_llama;
using test::TemporaryDirectory;
using testing::HasSubstr;

std::string refusal(const ModelConfig& config, ExportFormat format = ExportFormat::safetensors) {
    const TemporaryDirectory place;
    const Checkpoint checkpoint = checkpoint_of(random_model(config), "x");
    const std::string message = message_of(
        [&] { export_model(checkpoint, "run", {.format = format, .out = (place / "out").string()}); });
    EXPECT_FALSE(exists(place / "out"));
    return message;
}

TEST(Export, AnImportOfTheExportHasEqualBits) {
    ModelConfig own_head = small_gpt2();
    own_head.tied_head = false;
    own_head.activation = Activation::gelu;
    own_head.norm_epsilon = 3e-7;
    ModelConfig tied_llama = small_llama();
    tied_llama.tied_head = true;
    tied_llama.rope_base = 12345.678;
    ModelConfig llama_with_biases = small_llama();
    llama_with_biases.bias = true;
    llama_with_biases.hidden = 40;
    for (const ModelConfig& config : {small_gpt2(), own_head, small_llama(), tied_llama, llama_with_biases})
        for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16}) {
            const TemporaryDirectory place;
            const ImportedModel model = random_model(config, dtype);
            export_model(checkpoint_of(model, "x"), "run", {.out = (place / "out").string()});
            const ImportedModel again = import_model((place / "out").string());
            EXPECT_EQ(again.dtype, dtype);
            expect_equal_bits(again.parameters, model.parameters);
            EXPECT_EQ(again.config.norm_epsilon, config.norm_epsilon);
            EXPECT_EQ(again.config.activation, config.activation);
            EXPECT_EQ(again.config.rope_base, config.rope_base);
        }
}

/// The config.json in a folder.
nlohmann::json config_in(const std::filesystem::path& folder) {
    return test::json_of(folder / "config.json");
}

TEST(Export, EveryFamilyHasItsOwnLayout) {
    for (const auto& [name, config] : test::models_of_families()) {
        const TemporaryDirectory place;
        const ImportedModel model = random_model(config);
        export_model(checkpoint_of(model, "x"), "run", {.out = (place / "out").string()});
        const ImportedModel again = import_model((place / "out").string());
        EXPECT_EQ(config_in(place / "out")["model_type"], name);
        EXPECT_EQ(again.description, concat("Hugging Face ", name, ", float32"));
        expect_equal_bits(again.parameters, model.parameters);
        // What the config.json says is the whole model: a second export is equal.
        export_model(checkpoint_of(again, "x"), "run", {.out = (place / "second").string()});
        EXPECT_EQ(config_in(place / "second"), config_in(place / "out")) << name;
    }
}

TEST(Export, AnImportKeepsItsFamilyWhereAnotherOneHasTheSameSettings) {
    // Without longrope, a Phi-3 is a Llama whose matrices are packed, and a Mistral without a window is one.
    for (const char* const family : {"phi3", "mistral"}) {
        const TemporaryDirectory place;
        ImportedModel model = random_model(small_llama());
        model.text.files["config.json"] = test::config_text(family, small_llama());
        export_model(checkpoint_of(model, "x"), "run", {.out = (place / "out").string()});
        EXPECT_EQ(config_in(place / "out")["model_type"], family);
        // Training with another context changes the config, but not the family.
        model.config.context = 16;
        export_model(checkpoint_of(model, "x"), "run", {.out = (place / "longer").string()});
        EXPECT_EQ(config_in(place / "longer")["model_type"], family);
        EXPECT_EQ(config_in(place / "longer")["max_position_embeddings"], 16);
        expect_equal_bits(import_model((place / "longer").string()).parameters, model.parameters);
    }
}

TEST(Export, AModelWithQkNormIsAQwen3) {
    const TemporaryDirectory place;
    ModelConfig config = small_llama();
    config.qk_norm = true;
    export_model(checkpoint_of(random_model(config), "x"), "run", {.out = (place / "out").string()});
    EXPECT_EQ(config_in(place / "out")["model_type"], "qwen3");
    EXPECT_EQ(import_model((place / "out").string()).config.qk_norm, true);
}

void expect_original_tensors(const char* name) {
    const TemporaryDirectory place;
    const auto original = reference_weights() / name;
    export_model(checkpoint_of(import_model(original.string()), "x"), "run",
                 {.out = (place / "out").string()});
    const SafetensorsFile before((original / "model.safetensors").string()),
        after((place / "out/model.safetensors").string());
    ASSERT_EQ(before.header().entries.size(), after.header().entries.size()) << name;
    for (const SafetensorsEntry& entry : before.header().entries) {
        ASSERT_NE(after.find(entry.name), nullptr) << entry.name;
        EXPECT_EQ(after.find(entry.name)->dtype, entry.dtype);
        EXPECT_EQ(test::bytes_of(after.read(*after.find(entry.name))), test::bytes_of(before.read(entry)))
            << name << ": " << entry.name;
    }
}

TEST(Export, AnExportOfTheImportHasTheTensorsOfTheOriginalFile) {
    expect_original_tensors("llama_bfloat16");
    for (const char* const name : test::reference_families) expect_original_tensors(name);
}

TEST(Export, Float32OfABfloat16RunAreItsMasters) {
    const TemporaryDirectory place;
    Checkpoint checkpoint = checkpoint_of(random_model(small_gpt2(), TrainDType::bf16), "x");
    const Context ctx(Device::cpu(), 1);
    for (const auto& [name, x] : checkpoint.params) checkpoint.master[name] = cast(ctx, x, DType::f32);
    checkpoint.master.at("wte.weight").data<float>()[0] = 0.123456789f;
    export_model(checkpoint, "run", {.out = (place / "out").string(), .dtype = ExportDType::f32});
    expect_equal_bits(import_model((place / "out").string()).parameters, checkpoint.master);
}

TEST(Export, SettingsThatATargetCannotHoldAreNamed) {
    const auto with = [](ModelConfig config, const auto& change) {
        change(config);
        return config;
    };
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.embedding_norm = true; })),
                HasSubstr("embedding-norm true cannot be stored in a model of type llama"));
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.x0_lambdas = true; })),
                HasSubstr("x0-lambdas true cannot be stored in a model of type"));
    EXPECT_THAT(refusal(with(small_gpt2(), [](auto& c) { c.x0_lambdas = true; }), ExportFormat::gguf),
                HasSubstr("x0-lambdas true cannot be stored in a model of type"));
    EXPECT_THAT(refusal(with(small_gpt2(), [](auto& c) { c.attention_gate = true; })),
                HasSubstr("attention-gate true cannot be stored in a model of type"));
    for (const ExportFormat format : {ExportFormat::safetensors, ExportFormat::gguf})
        EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.prefix = true; }), format),
                    HasSubstr("prefix true cannot be stored in a model of type llama"));
    EXPECT_THAT(refusal(with(small_llama(),
                             [](auto& c) {
                                 c.key_offset = true;
                                 c.rotary_width = 4;
                             })),
                HasSubstr("key-offset true cannot be stored in a model of type"));
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.value_embeddings = true; }), ExportFormat::gguf),
                HasSubstr("value-embeddings true cannot be stored in a model of type"));
    EXPECT_THAT(refusal(with(small_llama(),
                             [](auto& c) {
                                 c.qk_norm = true;
                                 c.qk_norm_kind = QkNorm::head_without_gain;
                             })),
                HasSubstr("qk-norm"));
    EXPECT_THAT(refusal(with(small_gpt2(), [](auto& c) { c.bias = false; })),
                HasSubstr("bias false cannot be stored in a model of type gpt2"));
    EXPECT_THAT(refusal(with(small_gpt2(), [](auto& c) { c.kv_heads = 1; })), HasSubstr("kv-heads 1"));
    EXPECT_THAT(refusal(with(small_gpt2(), [](auto& c) { c.norm = Norm::rms; })), HasSubstr("norm \"rms\""));
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.norm = Norm::layer; })),
                HasSubstr("norm \"layer\""));
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.activation = Activation::relu2; })),
                HasSubstr("activation \"relu2\""));
    EXPECT_THAT(refusal(with(small_gpt2(), [](auto& c) { c.window = 8; })), HasSubstr("window 8"));
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.softcap = 30; })), HasSubstr("softcap 30"));
    EXPECT_THAT(refusal(with(small_gpt2(), [](auto& c) { c.sinks = true; }), ExportFormat::gguf),
                HasSubstr("sinks true"));
    EXPECT_THAT(refusal(with(small_gpt2(), [](auto& c) { c.positions = Positions::alibi; })),
                HasSubstr("positions \"alibi\""));
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.window = 3; }), ExportFormat::gguf),
                HasSubstr("window 3 cannot be stored in GGUF's llama"));
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.rope_pattern = 2; }), ExportFormat::gguf),
                HasSubstr("rope-pattern 2 cannot be stored in GGUF's smollm3"));
    EXPECT_THAT(
        refusal(with(small_gpt2(), [](auto& c) { c.activation = Activation::gelu; }), ExportFormat::gguf),
        HasSubstr("activation gelu cannot be stored in GGUF's gpt2"));
    EXPECT_THAT(refusal(with(small_llama(), [](auto& c) { c.bias = true; }), ExportFormat::gguf),
                HasSubstr("bias true cannot be stored in GGUF's llama"));
}

TEST(Export, DropoutsDoNotPreventAnExport) {
    const TemporaryDirectory place;
    ModelConfig config = small_gpt2();
    config.window_pattern = 2;  // without a window the pattern has no effect
    Checkpoint checkpoint = checkpoint_of(random_model(config), "x");
    checkpoint.config.set("dropout", 0.2);
    checkpoint.config.set("attention-dropout", 0.3);
    export_model(checkpoint, "run", {.out = (place / "out").string()});
    expect_equal_bits(import_model((place / "out").string()).parameters, checkpoint.params);
    const std::string written = (place / "out/config.json").string();
    const JsonValue exported = parse_json(read_text_file(written, 1 << 20), written);
    EXPECT_EQ(exported["resid_pdrop"], 0.2);
    EXPECT_EQ(exported["embd_pdrop"], 0.2);
    EXPECT_EQ(exported["attn_pdrop"], 0.3);
}

TEST(Export, ValuesThatFloat16CannotHoldAreRefusedByTensor) {
    const TemporaryDirectory place;
    ImportedModel model = random_model(small_gpt2());
    model.parameters.at("h.1.mlp.fc.weight").data<float>()[5] = 1e6f;
    const std::string message = message_of([&] {
        export_model(checkpoint_of(model, "x"), "run",
                     {.out = (place / "out").string(), .dtype = ExportDType::f16});
    });
    EXPECT_EQ(message,
              "run: tensor 'transformer.h.1.mlp.c_fc.weight' holds 1e+06, which is beyond float16; "
              "expected --dtype f32 or bf16");
    EXPECT_FALSE(exists(place / "out"));
}

TEST(Export, NoFileIsReplaced) {
    const TemporaryDirectory place;
    const Checkpoint checkpoint = checkpoint_of(random_model(small_gpt2()), "x");
    const ExportOptions folder{.out = (place / "out").string()};
    const ExportOptions file{.format = ExportFormat::gguf, .out = (place / "model.gguf").string()};
    export_model(checkpoint, "run", folder);
    export_model(checkpoint, "run", file);
    EXPECT_THAT(message_of([&] { export_model(checkpoint, "run", folder); }), HasSubstr("exists"));
    EXPECT_THAT(message_of([&] { export_model(checkpoint, "run", file); }), HasSubstr("exists"));
}

#if GRADTILE_HAVE_PCRE2
TEST(Export, TheTokenizerGoesWithTheWeightsAndComesBack) {
    const TemporaryDirectory place;
    for (const char* const name : {"gpt2.json", "llama3.json"}) {
        ModelConfig config = small_gpt2();
        const Tokenizer tokenizer = load_tokenizer(
            (std::filesystem::path(GRADTILE_SOURCE_DIR) / "tests/reference/tokenizers" / name).string());
        config.vocabulary = tokenizer.vocab_size() + 7;
        ImportedModel model = random_model(config);
        model.tokenizer = tokenizer;
        const std::string out = place / name;
        export_model(checkpoint_of(model, "x"), "run", {.out = out});
        EXPECT_EQ(import_model(out).tokenizer, tokenizer);
    }
}
#endif

/// Reads a GGUF file: its metadata keys and its tensors.
class GgufReader {
  public:
    explicit GgufReader(const std::filesystem::path& path) : bytes_(test::contents_of(path)) {
        EXPECT_EQ(bytes_.substr(0, 4), "GGUF");
        at_ = 4;
        EXPECT_EQ(take<std::uint32_t>(), 3u);
        const auto tensors = take<std::uint64_t>(), pairs = take<std::uint64_t>();
        for (std::uint64_t i = 0; i < pairs; ++i) skip_pair();
        struct Place {
            std::string name;
            std::vector<std::int64_t> shape;
            std::uint32_t type;
            std::uint64_t offset;
        };
        std::vector<Place> places;
        for (std::uint64_t i = 0; i < tensors; ++i) {
            Place place{text(), {}, 0, 0};
            for (auto axes = take<std::uint32_t>(); axes > 0; --axes)
                place.shape.insert(place.shape.begin(), static_cast<std::int64_t>(take<std::uint64_t>()));
            place.type = take<std::uint32_t>();
            place.offset = take<std::uint64_t>();
            places.push_back(place);
        }
        const std::size_t data = (at_ + 31) / 32 * 32;
        for (const Place& place : places) {
            EXPECT_EQ(place.offset % 32, 0u);
            const Tensor x = empty_on_host(Shape(std::span<const std::int64_t>(place.shape)),
                                           place.type == 0 ? DType::f32 : DType::bf16);
            EXPECT_LE(data + place.offset + x.bytes(), bytes_.size());
            std::memcpy(x.raw_data(), bytes_.data() + data + place.offset, x.bytes());
            tensors_[place.name] = x;
        }
    }
    const NamedTensors& tensors() const { return tensors_; }
    const std::set<std::string>& keys() const { return keys_; }

  private:
    template <class T>
    T take() {
        const T value = get_little_endian<T>(reinterpret_cast<const std::byte*>(bytes_.data()) + at_);
        at_ += sizeof(T);
        return value;
    }
    std::string text() {
        const auto length = take<std::uint64_t>();
        at_ += length;
        return bytes_.substr(at_ - length, length);
    }
    void skip_value(std::uint32_t type) {
        if (type == 8) {
            text();
        } else {
            at_ += type == 7 ? 1 : 4;
        }
    }
    void skip_pair() {
        keys_.insert(text());
        const auto type = take<std::uint32_t>();
        if (type != 9) return skip_value(type);
        const auto of = take<std::uint32_t>();
        for (auto length = take<std::uint64_t>(); length > 0; --length) skip_value(of);
    }

    std::string bytes_;
    std::size_t at_ = 0;
    NamedTensors tensors_;
    std::set<std::string> keys_;
};

TEST(Export, GgufHasRotatedPairsAsNeighboursAndVectorsInFloat32) {
    const TemporaryDirectory place;
    const ImportedModel model = random_model(small_llama(), TrainDType::bf16);
    export_model(checkpoint_of(model, "x"), "run",
                 {.format = ExportFormat::gguf, .out = (place / "model.gguf").string()});
    const GgufReader file(place / "model.gguf");
    for (const char* const key : {"general.architecture", "llama.rope.freq_base",
                                  "llama.attention.head_count_kv", "tokenizer.ggml.model"})
        EXPECT_TRUE(file.keys().contains(key)) << key;
    EXPECT_EQ(file.tensors().at("blk.0.attn_norm.weight").dtype(), DType::f32);
    const Context ctx(Device::cpu(), 1);
    const auto q = to_host(ctx, file.tensors().at("blk.1.attn_q.weight"));
    const auto packed = to_host(ctx, model.parameters.at("h.1.attn.qkv.weight"));
    const std::int64_t width = 32, dim = 8;
    ASSERT_EQ(std::ssize(q), 4 * dim * width);
    for (std::int64_t head = 0; head < 4; ++head)
        for (std::int64_t i = 0; i < dim / 2; ++i)
            for (std::int64_t half = 0; half < 2; ++half)
                for (std::int64_t c = 0; c < width; ++c) {
                    const std::int64_t to = head * dim + 2 * i + half, from = head * dim + half * dim / 2 + i;
                    ASSERT_EQ(q[static_cast<std::size_t>(to * width + c)],
                              packed[static_cast<std::size_t>(from * width + c)]);
                }
    // Values are not rotated, so the packed matrix's rows 48 to 63 must be unchanged.
    const auto v = to_host(ctx, file.tensors().at("blk.1.attn_v.weight"));
    EXPECT_TRUE(std::equal(v.begin(), v.end(), packed.begin() + 48 * width));
}

TEST(Export, GgufHasGemmasNormsWithoutTheOffsetAndNeoxsHeadsApart) {
    const TemporaryDirectory place;
    const Context ctx(Device::cpu(), 1);
    for (const auto& [name, config] : test::models_of_families()) {
        ModelConfig plain = config;
        // What llama.cpp's architectures do not compute.
        if (name == std::string_view("mistral")) plain.window = 0;
        if (name == std::string_view("smollm3")) plain.rope_pattern = plain.layers = 4;
        if (config.query_scalar != 0) plain.query_scalar = 0;
        const ImportedModel model = random_model(plain, TrainDType::bf16);
        const auto path = place / concat(name, ".gguf");
        export_model(checkpoint_of(model, "x"), "run", {.format = ExportFormat::gguf, .out = path.string()});
        const GgufReader file(path);
        SCOPED_TRACE(name);
        const auto equals = [&](const char* tensor, const char* parameter, double added) {
            const auto found = to_host(ctx, file.tensors().at(tensor));
            const auto own = to_host(ctx, model.parameters.at(parameter));
            ASSERT_EQ(found.size(), own.size());
            for (std::size_t i = 0; i < own.size(); ++i)
                ASSERT_EQ(found[i], static_cast<double>(static_cast<float>(own[i] + added)));
        };
        if (config.block == BlockKind::sandwich_norm) {
            equals("blk.1.post_attention_norm.weight", "h.1.norm_post_1.weight", 1.0);
            equals("blk.1.ffn_norm.weight", "h.1.norm_2.weight", 1.0);
            equals("output_norm.weight", "norm_f.weight", 1.0);
        }
        if (config.block == BlockKind::output_norm)
            equals("blk.0.post_ffw_norm.weight", "h.0.norm_post_2.weight", 0.0);
        // In the parameter q, k and v are apart, as in GGUF; a config.json of GPT-NeoX has them by head.
        if (config.block == BlockKind::parallel) equals("blk.0.attn_qkv.weight", "h.0.attn.qkv.weight", 0.0);
        if (config.rope_scaling.kind == RopeKind::longrope) {
            EXPECT_EQ(to_host(ctx, file.tensors().at("rope_factors_long.weight")),
                      config.rope_scaling.long_factors);
            equals("blk.0.ffn_up.weight", "h.0.mlp.gate_up.weight", 0.0);
        }
    }
}

TEST(Export, GgufOfGpt2HoldsEveryParameter) {
    const TemporaryDirectory place;
    const ImportedModel model = random_model(small_gpt2());
    export_model(checkpoint_of(model, "x"), "run",
                 {.format = ExportFormat::gguf, .out = (place / "model.gguf").string()});
    const GgufReader file(place / "model.gguf");
    EXPECT_EQ(file.tensors().size(), model.parameters.size());
    EXPECT_EQ(test::bytes_of(file.tensors().at("blk.1.ffn_down.weight")),
              test::bytes_of(model.parameters.at("h.1.mlp.proj.weight")));
    EXPECT_EQ(test::bytes_of(file.tensors().at("position_embd.weight")),
              test::bytes_of(model.parameters.at("wpe.weight")));
}

}  // namespace
}  // namespace gradtile
