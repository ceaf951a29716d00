// Hostile numbers in checkpoints whose checksums are right: ids, counts, positions and shapes that would
// address memory outside tensors and tables. docs/reliability.md lists the numbers in all files, and their
// tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/tools/formats/gguf_metadata.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

#include <support/error_message.h>
#include <tools/formats/weights_fixture.h>
#include <train/tiny_run.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::message_of;
using test::random_model;
using test::small_gpt2;
using test::TemporaryDirectory;
using test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;

/// A change to a checkpoint, and a part of the error that refuses it.
struct HostileFile {
    const char* number;
    std::function<void(Checkpoint&)> change;
    const char* expected;
};

/// Readers for a checkpoint file that belongs to no run.
struct Reader {
    const char* name;
    std::function<void(const std::string& checkpoint)> read;
};

std::vector<Reader> readers(const TemporaryDirectory& place) {
    const auto exported = [&](ExportFormat format) {
        return [&place, format](const std::string& path) {
            export_model(load_checkpoint(path), path, {.format = format, .out = (place / "out").string()});
        };
    };
    return {{"tokenizer_of", [](const std::string& path) { tokenizer_of(load_checkpoint(path), path); }},
            {"load_model", [](const std::string& path) { load_model(path); }},
            {"safetensors", exported(ExportFormat::safetensors)},
            {"gguf", exported(ExportFormat::gguf)},
            {"init_from", [&](const std::string& path) {
                 TrainConfig config;
                 adopt_model(config, path);
                 config.data = place.write("tokens.bin", std::string(200, '\1'));
                 config.out = "";
                 config.batch = 1;
                 config.device = DeviceChoice::cpu;
                 config.init_from = path;
                 Trainer(config, [](const std::string&) {});
             }}};
}

/// Tokenizers with more ids than small_gpt2()'s 30-token vocabulary. None needs PCRE2.
std::vector<Tokenizer> large_tokenizers() {
    const auto byte_pairs = [](BytePairVocabulary vocabulary) {
        return Tokenizer::byte_pairs(std::move(vocabulary), "test");
    };
    std::vector<std::string> tokens(40);
    tokens[0] = "a";
    tokens[39] = "b";
    std::string letters;
    for (char c = 'A'; c < 'A' + 31; ++c) letters += c;
    return {Tokenizer::bytes(),
            Tokenizer::characters_of(letters, "test"),
            byte_pairs({.tokens = tokens}),
            byte_pairs({.tokens = {"a"}, .added = {{.id = 30, .text = "<|endoftext|>"}}}),
            byte_pairs({.tokens = {"a"}, .added = {{.id = max_missing_ids, .text = "<last>"}}}),
            byte_pairs({.tokens = tokens, .merges_by_id = true})};
}

TEST(HostileNumbers, EveryReaderRefusesATokenizerWithIdsBeyondTheVocabulary) {
    const TemporaryDirectory place;
    const std::string path = (place / "hostile.h5").string();
    for (const Tokenizer& tokenizer : large_tokenizers()) {
        ImportedModel model = random_model(small_gpt2());
        model.tokenizer = tokenizer;
        write_checkpoint(path, checkpoint_of(model, "x"));
        for (const Reader& reader : readers(place)) {
            EXPECT_EQ(message_of([&] { reader.read(path); }),
                      concat(path, ": its tokenizer has ", tokenizer.vocab_size(),
                             " ids, but the model's vocabulary is 30"))
                << reader.name;
            EXPECT_FALSE(exists(place / "out")) << reader.name;
        }
    }
}

TEST(HostileNumbers, ATokenizerMayHaveEveryIdOfTheVocabulary) {
    const TemporaryDirectory place;
    ModelConfig config = small_gpt2();
    config.vocabulary = 256;
    ImportedModel model = random_model(config);
    model.tokenizer = Tokenizer::bytes();
    const std::string path = (place / "sound.h5").string();
    write_checkpoint(path, checkpoint_of(model, "x"));
    EXPECT_EQ(load_model(path)->tokenizer, model.tokenizer);
}

TEST(HostileNumbers, ALanguageModelAndGgufRefuseSuchATokenizerThemselves) {
    for (const Tokenizer& tokenizer : large_tokenizers()) {
        EXPECT_THAT(message_of([&] {
                        LanguageModel(Context(Device::cpu(), 1), small_gpt2(), DType::f32, tokenizer);
                    }),
                    HasSubstr("ids, but the model's vocabulary is 30"));
        if (tokenizer.kind() != TokenizerKind::bpe) continue;
        EXPECT_THAT(message_of([&] { gguf_tokenizer_metadata(&tokenizer, 30, {}, "run"); }),
                    AllOf(HasSubstr("run: "), HasSubstr("ids, but the model's vocabulary is 30")));
    }
}

TEST(HostileNumbers, GgufRefusesScoresBeyondFloat32) {
    const Tokenizer tokenizer = Tokenizer::byte_pairs({.model = SubwordModel::unigram,
                                                       .tokens = {"<unk>", std::string(blank_symbol), "a"},
                                                       .scores = {0.0, -1.0, -1e39},
                                                       .unknown = 0,
                                                       .normalizer = {SentencePieceStep{}}},
                                                      "test");
    EXPECT_EQ(message_of([&] { gguf_tokenizer_metadata(&tokenizer, 30, {}, "run"); }),
              "run: GGUF: token 2 has the score -1e+39, which is beyond float32");
}

/// Settings that do not describe small_gpt2()'s tensors. The largest settings must be refused before anything
/// that large is allocated.
TEST(HostileNumbers, ModelsThatTheTensorsDoNotHaveAreRefusedByTensor) {
    const std::vector<std::pair<json, const char*>> changes = {
        {{{"vocabulary", 1 << 27}}, "'wte.weight' is [30, 16]; this model's is [134217728, 16]"},
        {{{"vocabulary", 29}}, "'wte.weight' is [30, 16]; this model's is [29, 16]"},
        {{{"vocabulary", 0}}, "its config: vocabulary: 0; expected at least 1"},
        {{{"vocabulary", -1}}, "vocabulary"},
        {{{"vocabulary", 4294967326}}, "vocabulary"},
        {{{"context", 1 << 24}}, "'wpe.weight'"},
        {{{"layers", 3}}, "has no parameter 'h.2.ln_1.weight'"},
        {{{"layers", 1}}, "'h.1.attn.proj.bias' is not one of this model's"},
        {{{"width", 32}}, "this model's is [30, 32]"},
        {{{"hidden", 1 << 20}}, "'h.0.mlp.fc.weight'"},
        {{{"heads", 3}}, "heads: 3 does not divide width 16"},
        {{{"heads", 0}}, "heads"},
        {{{"kv-heads", 1}}, "'h.0.attn.qkv.weight'"},
        {{{"lora-rank", 4}}, "lora_a"},
        {{{"positions", "rope"}}, "'wpe.weight' is not one of this model's"},
    };
    const TemporaryDirectory place;
    const std::string path = (place / "hostile.h5").string();
    ImportedModel model = random_model(small_gpt2());
    model.tokenizer = Tokenizer::byte_pairs({.tokens = {"a"}}, "test");
    const Checkpoint sound = checkpoint_of(model, "x");
    for (const auto& [change, expected] : changes) {
        Checkpoint hostile = sound;
        json config = test::json_of(sound.config);
        config.update(change);
        hostile.config = test::json_value(config);
        write_checkpoint(path, hostile);
        for (const Reader& reader : readers(place)) {
            const std::string name = reader.name;
            if (name == "tokenizer_of" || name == "init_from") continue;  // init_from compares below
            EXPECT_THAT(message_of([&] { reader.read(path); }), AllOf(HasSubstr(path), HasSubstr(expected)))
                << reader.name << change;
            EXPECT_FALSE(exists(place / "out")) << reader.name;
        }
    }
}

std::vector<HostileFile> hostile_counts() {
    constexpr std::int64_t huge = std::int64_t{1} << 62;
    const auto meta = [](const char* pointer, const json& value) {
        return [=](Checkpoint& c) {
            json changed = test::json_of(c.meta);
            changed[json::json_pointer(pointer)] = value;
            c.meta = test::json_value(changed);
        };
    };
    const auto loader = [](const char* key, const json& value) {
        return [=](Checkpoint& c) {
            json changed = test::json_of(c.data);
            changed["loader"][key] = value;
            c.data = test::json_value(changed);
        };
    };
    return {{"last step", meta("/schedule/last_step", huge), "last_step: 4611686018427387904; expected 0 to"},
            {"last step", meta("/schedule/last_step", -1), "last_step: -1"},
            {"bad steps", meta("/bad_steps", huge), "bad_steps: 4611686018427387904"},
            {"bad steps", meta("/bad_steps_in_a_row", -3), "bad_steps_in_a_row: -3"},
            {"position", loader("position", -1), "data position: window -1 of "},
            {"position", loader("position", huge), "data position: window 4611686018427387904 of "},
            {"position", loader("position", 18446744073709551615u),
             "data position: expected a whole number named position"},
            {"epoch", loader("epoch", -1), "data position: epoch -1"},
            {"epoch", loader("epoch", INT64_MAX), "data position: epoch 9223372036854775807"},
            {"tokens", loader("tokens", 1), "tokens to train on, but the run was made with 1"},
            {"context", loader("context", 17), "data position: belongs to context 17, not 16"}};
}

std::vector<HostileFile> hostile_tensors() {
    const auto zeros_of = [](const Shape& shape, DType dtype = DType::f32) {
        return zeros(Context(Device::cpu(), 1), shape, dtype);
    };
    const auto config = [](const char* key, const json& value) {
        return [=](Checkpoint& c) { c.config.set(key, test::json_value(value)); };
    };
    return {
        {"weight",
         [=](Checkpoint& c) {
             c.params.at("wte.weight") = zeros_of({1, 32});
         },
         "parameter 'wte.weight' is [1, 32]; this model's is ["},
        {"weight", [=](Checkpoint& c) { c.params.at("ln_f.weight") = zeros_of({0}); },
         "parameter 'ln_f.weight' is [0]; this model's is [32]"},
        {"master", [=](Checkpoint& c) { c.master["ln_f.weight"] = zeros_of({32}); },
         "has masters of its float32 weights"},
        {"moment", [=](Checkpoint& c) { c.optimizer.begin()->second = zeros_of({1}); }, "optimizer state '"},
        {"moment", [](Checkpoint& c) { c.optimizer.clear(); }, "has no optimizer state '"},
        {"vocabulary", config("vocabulary", 14), "has 15 ids, but the model's vocabulary is 14"},
        {"vocabulary", config("vocabulary", 60), "'wte.weight'"},
        {"context", config("context", 32), "'wpe.weight'"},
        {"layers", config("layers", 3), "'h.2."},
    };
}

/// A run is resumed from a checkpoint whose checksums are right and whose numbers are not.
TEST(HostileNumbers, ResumedStatesAreRefusedByNumber) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(/*stop_after=*/5); }
    const std::filesystem::path checkpoints = std::filesystem::path(run.config.out) / "checkpoints";
    const std::filesystem::path path = checkpoints / "step_00000005.h5";
    const Checkpoint sound = read_checkpoint(path);
    std::vector<HostileFile> all = hostile_counts();
    for (HostileFile& hostile : hostile_tensors()) all.push_back(std::move(hostile));
    for (const HostileFile& hostile : all) {
        Checkpoint changed = sound;
        hostile.change(changed);
        write_checkpoint(path, changed);
        EXPECT_THAT(message_of([&] { Trainer(run.config.out, ResumeOptions{}, run.on_message); }),
                    HasSubstr(hostile.expected))
            << hostile.number;
    }
    write_checkpoint(path, sound);
    EXPECT_EQ(Trainer(run.config.out, ResumeOptions{}, run.on_message).step(), 5);

    Checkpoint late = sound;
    late.step = std::int64_t{1} << 62;
    write_checkpoint(CheckpointDirectory(checkpoints).path_of(late.step), late);
    EXPECT_THAT(message_of([&] { Trainer(run.config.out, ResumeOptions{}, run.on_message); }),
                HasSubstr("step: 4611686018427387904; expected 0 to"));
}

}  // namespace
}  // namespace gradtile
