// The transformers files that say how a text begins and ends: import reads them, runs keep them, export
// writes them.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/tools/formats/gguf_metadata.h>
#include <gradtile/tools/generation/chat_session.h>
#include <gradtile/train/data/chat_jinja.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>
#include <gradtile/train/trainer.h>

#include <support/error_message.h>
#include <tools/formats/published_folder.h>

namespace gradtile {
namespace {

using namespace test::published;
using nlohmann::json;
using test::contents_of;
using test::json_of;
using test::message_of;
using test::TemporaryDirectory;
using test::write_json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

TEST(ChatJinja, IsRecognisedForEachTemplate) {
    for (const ChatTemplate known : {ChatTemplate::plain, ChatTemplate::chatml, ChatTemplate::llama3}) {
        EXPECT_EQ(template_of_jinja(jinja_of(known)), known);
        EXPECT_EQ(template_of_jinja("\n" + jinja_of(known) + "\n"), known);
        EXPECT_EQ(template_of_jinja(jinja_of(known) + "x"), std::nullopt);
    }
    EXPECT_THROW(jinja_of(ChatTemplate::automatic), Error);
}

TEST(Import, AStoredHeadThatDiffersFromTheEmbeddingIsUsed) {
    const TemporaryDirectory place;
    for (const ModelConfig& small : {test::small_gpt2(), test::small_llama()}) {
        ModelConfig config = small;
        config.tied_head = false;
        const std::string out = place / (config.bias ? "gpt2" : "llama");
        const ImportedModel model = test::random_model(config);
        export_model(checkpoint_of(model, "x"), "run", {.out = out});
        json file = json_of(fs::path(out) / "config.json");
        file["tie_word_embeddings"] = true;
        write_json(fs::path(out) / "config.json", file);
        const ImportedModel again = import_model(out);
        EXPECT_FALSE(again.config.tied_head);
        EXPECT_THAT(again.notes, ElementsAre(HasSubstr("lm_head.weight differs from the token embedding")));
        test::expect_equal_bits(again.parameters, model.parameters);
    }
    // A stored copy of the embedding is no separate head.
    const fs::path weights = place / "gpt2/model.safetensors";
    const SafetensorsFile file(weights.string());
    std::vector<NamedTensor> tensors;
    for (const SafetensorsEntry& entry : file.header().entries)
        tensors.emplace_back(
            entry.name,
            file.read(entry.name == "lm_head.weight" ? *file.find("transformer.wte.weight") : entry));
    write_safetensors(weights.string(), tensors);
    const ImportedModel tied = import_model((place / "gpt2").string());
    EXPECT_TRUE(tied.config.tied_head);
    EXPECT_TRUE(tied.notes.empty());
}

TEST(Import, AdaptersAreRefused) {
    const TemporaryDirectory place;
    const fs::path folder = test::copy_of("gpt2", place);
    write_json(folder / "adapter_config.json", {{"peft_type", "LORA"}});
    const auto expect_refused = [&](const fs::path& weights) {
        EXPECT_THAT(message_of([&] { import_model(weights.string()); }),
                    HasSubstr("adapter_config.json: adapters are not supported"));
    };
    expect_refused(folder);
    expect_refused(folder / "model.safetensors");
    // A folder of adapters alone, as the library PEFT writes it.
    fs::remove(folder / "config.json");
    fs::rename(folder / "model.safetensors", folder / "adapter_model.safetensors");
    expect_refused(folder);
    expect_refused(folder / "adapter_model.safetensors");
}

TEST(Import, NamesOfOneSettingMustAgree) {
    const TemporaryDirectory place;
    test::copy_of("gpt2", place);
    test::copy_of("llama_bfloat16", place);
    const auto message_with = [&](const char* model, const json& members) {
        const fs::path file = place / model / "config.json";
        const json original = json_of(file);
        json changed = original;
        changed.update(members);
        write_json(file, changed);
        std::string message = message_of([&] { import_model((place / model).string()); });
        write_json(file, original);
        return message;
    };
    EXPECT_EQ(message_with("gpt2", {{"num_attention_heads", 2}, {"hidden_size", 8}}), "no error");
    EXPECT_THAT(message_with("gpt2", {{"num_attention_heads", 4}}),
                HasSubstr("n_head: 2, but num_attention_heads: 4; expected one of these members"));
    EXPECT_EQ(message_with("gpt2", {{"n_head", nullptr}, {"num_attention_heads", 2}}), "no error");
    EXPECT_THAT(message_with("llama_bfloat16", {{"rope_theta", 7.0}}),
                HasSubstr("rope_theta: 500, but rope_theta beside rope_parameters: 7"));
    EXPECT_EQ(message_with("llama_bfloat16", {{"rope_theta", 500}}), "no error");
    EXPECT_THAT(message_with("llama_bfloat16", {{"rope_scaling", {{"rope_theta", 500.0}}}}),
                HasSubstr("rope_scaling and rope_parameters differ"));
}

#if GRADTILE_HAVE_PCRE2

TEST(Export, AnExportOfAnImportHasTheBytesOfEveryFile) {
    const TemporaryDirectory place;
    const fs::path folder = published_folder(place);
    write_imported_run(import_model(folder.string()), place / "run");
    export_model(load_checkpoint(place / "run"), "run", {.out = place / "out"});
    const auto before = files_in(folder), after = files_in(place / "out");
    EXPECT_EQ(before.size(), 8u);
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, text] : before) EXPECT_EQ(after.at(name), text) << name;
    // A file that transformers 5 wrote.
    write_imported_run(import_model((test::reference_weights() / "llama_bfloat16").string()), place / "run2");
    export_model(load_checkpoint(place / "run2"), "run", {.out = place / "out2"});
    EXPECT_EQ(files_in(place / "out2"), files_in(test::reference_weights() / "llama_bfloat16"));
}

TEST(Export, OfAnotherDTypeChangesOnlyItsNameInTheConfig) {
    const TemporaryDirectory place;
    write_imported_run(import_model((test::reference_weights() / "llama_bfloat16").string()), place / "run");
    export_model(load_checkpoint(place / "run"), "run", {.out = place / "out", .dtype = ExportDType::f32});
    json expected = json_of(test::reference_weights() / "llama_bfloat16/config.json");
    expected["dtype"] = "float32";
    EXPECT_EQ(json_of(place / "out/config.json"), expected);
}

TEST(ImportedText, OfAHostileCheckpointIsRefusedByName) {
    const TemporaryDirectory place;
    Checkpoint checkpoint = checkpoint_of(import_model(published_folder(place).string()), "x");
    const auto refusal = [&](const char* member, const json& value) {
        Checkpoint changed = checkpoint;
        json data = json_of(changed.data);
        data["imported_text"][member] = value;
        changed.data = test::json_value(data);
        const std::string message =
            message_of([&] { export_model(changed, "run", {.out = place / "out/folder"}); });
        EXPECT_FALSE(exists(place / "out"));
        return message;
    };
    EXPECT_THAT(refusal("files", {{"../outside.json", "{}"}}),
                HasSubstr("run: imported_text: file '../outside.json'"));
    EXPECT_THAT(refusal("files", {{"config.json", 3}}), HasSubstr("run: imported_text"));
    EXPECT_THAT(refusal("files", {{"config.json", "{"}}), HasSubstr("run: config.json: "));
    EXPECT_THAT(refusal("files", {{"config.json", "[]"}}),
                HasSubstr("run: config.json: [...]; expected an object"));
    EXPECT_THAT(refusal("end_tokens", {256, 1000000}), HasSubstr("end token 1000000"));
    EXPECT_THAT(refusal("end_tokens", "x"), HasSubstr("run: imported_text"));
    EXPECT_THAT(refusal("has_unknown_template", nullptr), HasSubstr("run: imported_text"));
}

TEST(Import, TextBeginsAndEndsAsTheFilesSay) {
    const TemporaryDirectory place;
    const fs::path folder = published_folder(place);
    const ImportedModel imported = import_model(folder.string());
    EXPECT_THAT(imported.text.end_tokens, ElementsAre(257, 260));
    EXPECT_EQ(imported.chat_template, ChatTemplate::llama3);
    write_imported_run(imported, place / "run");
    const auto model = load_model(place / "run");
    EXPECT_THAT(prompt_tokens(*model, "a"), ElementsAre(256, 'a'));
    EXPECT_THAT(prompt_tokens(*model, ""), ElementsAre(256));
    EXPECT_THAT(model->tokenizer->encode("a", "t"), ElementsAre('a'));
    EXPECT_THAT(end_tokens_of(*model), ElementsAre(257, 260));
    // config.json counts without generation_config.json. Ids outside the vocabulary are never drawn.
    fs::remove(folder / "generation_config.json");
    json config = json_of(folder / "config.json");
    config["eos_token_id"] = {260, 50256, -1};
    write_json(folder / "config.json", config);
    EXPECT_THAT(import_model(folder.string()).text.end_tokens, ElementsAre(260));
}

TEST(Import, SaysWhichEndTokensTheVocabularyDoesNotHave) {
    const TemporaryDirectory place;
    const fs::path folder = published_folder(place);
    for (const char* const name : {"generation_config.json", "config.json"}) {
        const json original = json_of(folder / name);
        const auto notes_with = [&](const json& ids) {
            json changed = original;
            changed["eos_token_id"] = ids;
            write_json(folder / name, changed);
            return import_model(folder.string()).notes;
        };
        const std::string start = concat((folder / name).string(), ": eos_token_id: "),
                          end = "; the model's ids are 0 to 260, so no text ends there";
        EXPECT_THAT(notes_with(261), ElementsAre(concat(start, "261", end)));
        EXPECT_THAT(notes_with(-1), ElementsAre(concat(start, "-1", end)));
        EXPECT_THAT(notes_with({0, 5000, 260, -1, 261}), ElementsAre(concat(start, "5000 and 2 more", end)));
        for (const json& ids : {json(260), json({0, 260}), json::array(), json()})
            EXPECT_THAT(notes_with(ids), testing::IsEmpty()) << ids;
        EXPECT_THAT(message_of([&] { notes_with(-2); }), HasSubstr("eos_token_id: -2; expected a token id"));
        write_json(folder / name, original);
    }
}

TEST(Import, AnUnknownChatTemplateIsNotReplacedByAnother) {
    const TemporaryDirectory place;
    const fs::path folder = published_folder(place);
    write_text(folder / "chat_template.jinja", "{{ messages }}");
    const ImportedModel imported = import_model(folder.string());
    EXPECT_THAT(imported.notes, ElementsAre(HasSubstr("`chat` needs --chat-template")));
    write_imported_run(imported, place / "run");
    const auto model = load_model(place / "run");
    EXPECT_THAT(message_of([&] { ChatSession(*model, {}); }), HasSubstr("expected --chat-template"));
    ChatSession(*model, {.chat_template = ChatTemplate::llama3});
}

/// The pattern and the normalizer are those of Qwen2.5's tokenizer.json; the pattern is copied from there.
BytePairVocabulary qwen2_vocabulary() {
    BytePairVocabulary vocabulary = byte_vocabulary({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
    vocabulary.patterns = {
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}};
    vocabulary.normalizer = {UnicodeForm::nfc};
    return vocabulary;
}

/// transformers 5 computes Qwen2's pattern and NFC for this class, whatever tokenizer.json says.
TEST(Import, SaysWhereQwensClassHasAnotherPatternOrNormalizer) {
    if (!GRADTILE_HAVE_UTF8PROC) GTEST_SKIP() << "NFC needs utf8proc";
    const TemporaryDirectory place;
    int number = 0;
    const auto notes_with = [&](const BytePairVocabulary& vocabulary) {
        const fs::path folder = place / std::to_string(number++);
        export_model(checkpoint_of(model_with(test::small_llama(), byte_vocabulary({"<|endoftext|>"})), "x"),
                     "run", {.out = folder.string()});
        json tokenizer = json_of(folder / "tokenizer.json");
        if (!vocabulary.normalizer.empty()) tokenizer["normalizer"] = {{"type", "NFC"}};
        tokenizer["pre_tokenizer"] = {
            {"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", vocabulary.patterns.front().regex}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
        write_json(folder / "tokenizer.json", tokenizer);
        write_text(folder / "tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})");
        return import_model(folder.string()).notes;
    };
    BytePairVocabulary vocabulary = qwen2_vocabulary();
    EXPECT_THAT(notes_with(vocabulary), testing::IsEmpty());
    vocabulary.normalizer = {};
    const auto note = HasSubstr("'Qwen2Tokenizer' cuts text otherwise than tokenizer.json, which is used");
    EXPECT_THAT(notes_with(vocabulary), ElementsAre(note));
    vocabulary = qwen2_vocabulary();
    vocabulary.patterns = {{std::string(llama3_pattern())}};
    EXPECT_THAT(notes_with(vocabulary), ElementsAre(note));
}

TEST(Import, FilesOfTheTokenizerMustAgree) {
    const TemporaryDirectory place;
    int number = 0;
    const auto message_with = [&](const char* file, const json& changes) {
        const fs::path folder = published_folder(place, concat(number++));
        json value = json_of(folder / file);
        value.merge_patch(changes);
        write_json(folder / file, value);
        return message_of([&] { import_model(folder.string()); });
    };
    constexpr const char* config = "tokenizer_config.json";
    EXPECT_EQ(message_with(config, {{"add_bos_token", true}, {"add_eos_token", false}}), "no error");
    EXPECT_THAT(message_with(config, {{"add_bos_token", false}}),
                HasSubstr("add_bos_token: false, but tokenizer.json's post_processor adds one"));
    EXPECT_THAT(message_with(config, {{"add_eos_token", true}}),
                HasSubstr("add_eos_token: true, but tokenizer.json's post_processor adds no token"));
    EXPECT_THAT(message_with(config, {{"added_tokens_decoder", {{"259", {{"content", "<|eot_id|>"}}}}}}),
                HasSubstr("\"<|eot_id|>\" has id 259; expected its id 260"));
    for (const char* const flag : {"lstrip", "rstrip", "single_word", "special"})
        EXPECT_THAT(
            message_with(config, {{"added_tokens_decoder", {{"260", {{flag, "yes"}}}}}}),
            HasSubstr(concat("added_tokens_decoder: 260: ", flag, ": \"yes\"; expected true or false")));
    for (const json& value : {json(5), json(true), json::array()})
        for (const char* const file : {config, "special_tokens_map.json"})
            for (const char* const name : {"eos_token", "pad_token"})
                EXPECT_THAT(message_with(file, {{name, value}}),
                            AllOf(HasSubstr(concat(file, ": ", name, ": ")), HasSubstr("; expected a token")))
                    << value;
    EXPECT_THAT(message_with("added_tokens.json", {{"<|new|>", 261}}),
                HasSubstr("added_tokens.json: \"<|new|>\" has id 261; expected a token of added_tokens"));
    EXPECT_THAT(message_with("special_tokens_map.json", {{"pad_token", "<|pad|>"}}),
                HasSubstr("special_tokens_map.json: pad_token: \"<|pad|>\" is not one of added_tokens"));
    EXPECT_THAT(message_with(config, {{"image_token", "<|pad|>"}}), HasSubstr("image_token: \"<|pad|>\""));
    EXPECT_THAT(message_with(config, {{"tokenizer_class", "GPT2Tokenizer"}}),
                HasSubstr("unk_token: \"<|endoftext|>\" is not one of added_tokens"));
    EXPECT_EQ(message_with(config, {{"tokenizer_class", "GPT2TokenizerFast"}, {"unk_token", "<|eot_id|>"}}),
              "no error");
    EXPECT_THAT(message_with("tokenizer.json", {{"post_processor", {{"type", "BertProcessing"}}}}),
                HasSubstr("post_processor.type: \"BertProcessing\""));
}

TEST(Import, TokenizerJsonCountsWhereTheClassHasAnotherPattern) {
    const TemporaryDirectory place;
    BytePairVocabulary vocabulary = byte_vocabulary({"<|endoftext|>"});
    vocabulary.patterns = {{std::string(llama3_pattern())}};
    export_model(checkpoint_of(model_with(test::small_gpt2(), vocabulary), "x"), "run",
                 {.out = place / "out"});
    const fs::path file = place / "out/tokenizer_config.json";
    EXPECT_EQ(json_of(file)["tokenizer_class"], "PreTrainedTokenizerFast");
    json config = json_of(file);
    config["tokenizer_class"] = "GPT2Tokenizer";
    write_json(file, config);
    const std::string path = place / "out/tokenizer.json";
    EXPECT_EQ(import_model(place / "out").tokenizer, load_tokenizer(path));
    EXPECT_THAT(import_model(place / "out").notes,
                ElementsAre(HasSubstr("'GPT2Tokenizer' cuts text otherwise")));
    EXPECT_EQ(import_model(place / "out", {.tokenizer = path}).tokenizer, load_tokenizer(path));
    EXPECT_EQ(load_tokenizer(place / "out"), load_tokenizer(path));
}

/// The exported parts that say where texts end.
struct Ends {
    json generation, tokenizer;
    std::optional<std::string> chat_template = {};
};

Ends exported_ends(const ModelConfig& small, const BytePairVocabulary& vocabulary, ChatTemplate chat) {
    const TemporaryDirectory place;
    ImportedModel model = model_with(small, vocabulary);
    model.chat_template = chat;
    export_model(checkpoint_of(model, "x"), "run", {.out = place / "out"});
    Ends ends{.generation = json_of(place / "out/generation_config.json"),
              .tokenizer = json_of(place / "out/tokenizer_config.json")};
    if (exists(place / "out/chat_template.jinja"))
        ends.chat_template = contents_of(place / "out/chat_template.jinja");
    // The files say the same to an import.
    const ImportedModel again = import_model((place / "out").string());
    EXPECT_EQ(again.text.end_tokens, end_tokens_of(*model.tokenizer, chat));
    EXPECT_EQ(again.chat_template, chat);
    EXPECT_EQ(json_of(place / "out/config.json")["eos_token_id"], again.text.end_tokens.front());
    return ends;
}

TEST(Export, ARunSaysWhereItsTextsEnd) {
    const BytePairVocabulary chatml = byte_vocabulary({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
    Ends ends = exported_ends(test::small_gpt2(), chatml, ChatTemplate::automatic);
    EXPECT_EQ(ends.generation, json({{"bos_token_id", 256}, {"eos_token_id", {256, 258}}}));
    EXPECT_EQ(ends.chat_template, std::nullopt);
    EXPECT_EQ(ends.tokenizer["eos_token"], "<|endoftext|>");

    ends = exported_ends(test::small_gpt2(), chatml, ChatTemplate::chatml);
    EXPECT_EQ(ends.generation, json({{"bos_token_id", 256}, {"eos_token_id", {258, 256}}}));
    EXPECT_EQ(ends.chat_template, jinja_of(ChatTemplate::chatml));
    EXPECT_EQ(ends.tokenizer["eos_token"], "<|im_end|>");

    ends = exported_ends(test::small_llama(), byte_vocabulary(llama3_tokens), ChatTemplate::llama3);
    EXPECT_EQ(ends.generation, json({{"bos_token_id", 256}, {"eos_token_id", {260, 257}}}));
    EXPECT_EQ(ends.chat_template, jinja_of(ChatTemplate::llama3));

    ends = exported_ends(test::small_gpt2(), byte_vocabulary({"<|endoftext|>"}), ChatTemplate::plain);
    EXPECT_EQ(ends.generation["stop_strings"], json({"\nSystem:", "\nUser:", "\nAssistant:", "\nTool:"}));
    EXPECT_EQ(ends.chat_template, jinja_of(ChatTemplate::plain));
}

std::map<std::string, GgufValue> gguf_of(const BytePairVocabulary& vocabulary, const GgufText& text) {
    const Tokenizer tokenizer = Tokenizer::byte_pairs(vocabulary, "test");
    const GgufMetadata metadata = gguf_tokenizer_metadata(&tokenizer, tokenizer.vocab_size(), text, "run");
    return {metadata.begin(), metadata.end()};
}

TEST(Export, GgufSaysWhereTextsBeginAndEnd) {
    const auto id = [](std::uint32_t value) { return GgufValue(value); };
    BytePairVocabulary vocabulary = byte_vocabulary({"<|endoftext|>", "<|im_end|>", "<a>", "<b>", "<c>"});
    auto values = gguf_of(
        vocabulary, {.tokens = {.begin = 256, .end = {257, 256}}, .turn_end = 257, .chat_template = "jinja"});
    EXPECT_EQ(values.at("tokenizer.ggml.eos_token_id"), id(257));
    EXPECT_EQ(values.at("tokenizer.ggml.eot_token_id"), id(257));
    EXPECT_FALSE(values.contains("tokenizer.ggml.eom_token_id"));  // llama.cpp knows <|endoftext|>
    EXPECT_EQ(values.at("tokenizer.ggml.add_bos_token"), GgufValue(false));
    EXPECT_EQ(values.at("tokenizer.ggml.add_eos_token"), GgufValue(false));
    EXPECT_EQ(values.at("tokenizer.chat_template"), GgufValue(std::string("jinja")));

    values = gguf_of(vocabulary, {.tokens = {.end = {258, 259, 260}}});
    EXPECT_EQ(values.at("tokenizer.ggml.eos_token_id"), id(258));
    EXPECT_EQ(values.at("tokenizer.ggml.eot_token_id"), id(259));
    EXPECT_EQ(values.at("tokenizer.ggml.eom_token_id"), id(260));
    EXPECT_FALSE(values.contains("tokenizer.chat_template"));
    EXPECT_THAT(message_of([&] {
                    gguf_of(vocabulary, {.tokens = {.end = {258, 259, 260, 'x'}}});
                }),
                HasSubstr("4 tokens end a text; GGUF has no key for token 120"));

    vocabulary.before = {258};
    vocabulary.after = {259};
    values = gguf_of(vocabulary, {.tokens = {.begin = 258, .end = {259}}});
    EXPECT_EQ(values.at("tokenizer.ggml.bos_token_id"), id(258));
    EXPECT_EQ(values.at("tokenizer.ggml.add_bos_token"), GgufValue(true));
    EXPECT_EQ(values.at("tokenizer.ggml.add_eos_token"), GgufValue(true));
    vocabulary.before = {258, 259};
    EXPECT_THAT(message_of([&] { gguf_of(vocabulary, {.tokens = {.begin = 258, .end = {259}}}); }),
                HasSubstr("puts 2 tokens before a text"));
}

TEST(Export, GgufHoldsQwensTokenizerAndNoOtherNormalizer) {
    if (!GRADTILE_HAVE_UTF8PROC) GTEST_SKIP() << "NFC needs utf8proc";
    BytePairVocabulary vocabulary = qwen2_vocabulary();
    EXPECT_EQ(gguf_of(vocabulary, {}).at("tokenizer.ggml.pre"), GgufValue(std::string("qwen2")));
    for (const std::vector<NormalizerStep>& steps : {std::vector<NormalizerStep>{UnicodeForm::nfkc},
                                                     {LowercaseStep{}},
                                                     {UnicodeForm::nfc, LowercaseStep{}}}) {
        vocabulary.normalizer = steps;
        EXPECT_THAT(message_of([&] { gguf_of(vocabulary, {}); }),
                    HasSubstr("run: GGUF has no key for the tokenizer's normalizer; expected NFC"));
    }
}

TEST(ImportedRun, FineTuningKeepsTheFilesUntilTheTemplateChanges) {
    const TemporaryDirectory place;
    const fs::path folder = published_folder(place);
    const auto exported_after = [&](const std::string& name, const std::string& data) {
        const std::string run = place / (name + "_run"), base = place / (name + "_base");
        write_imported_run(import_model(folder.string()), base);
        TrainConfig config;
        adopt_model(config, base);
        config.init_from = base;
        config.data = place.write(name, data);
        config.out = run;
        config.steps = 1;
        config.warmup = 0;
        config.batch = 2;
        config.val_fraction = 0;
        config.threads = 1;
        config.device = DeviceChoice::cpu;
        Trainer(config, [](const std::string&) {}).run();
        // Also after the run was resumed.
        Trainer resumed(run, ResumeOptions{.changes = JsonValue::object({{"steps", 2}})},
                        [](const std::string&) {});
        resumed.run();
        export_model(load_checkpoint(run), "run", {.out = place / (name + "_out")});
        return files_in(place / (name + "_out"));
    };
    const auto original = files_in(folder);
    auto files = exported_after("text.txt", test::some_letters(600));
    for (const auto& [name, text] : original) {
        if (name != "model.safetensors") {
            EXPECT_EQ(files.at(name), text) << name;
        }
    }

    // A base model's folder has no chat template, so the conversations' template is new.
    fs::remove(folder / "chat_template.jinja");
    std::string talk;
    for (int i = 0; i < 9; ++i)
        talk += R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
                "\n";
    files = exported_after("talk.jsonl", talk);
    EXPECT_EQ(files.at("chat_template.jinja"), jinja_of(ChatTemplate::llama3));
    EXPECT_EQ(json::parse(files.at("generation_config.json"))["eos_token_id"], json({260, 257}));
    EXPECT_EQ(files.at("tokenizer.json"), original.at("tokenizer.json"));
}

TEST(SampleText, EndsAtATokenThatEndsATextUnlessToldOtherwise) {
    BytePairVocabulary vocabulary = byte_vocabulary({"<|endoftext|>"});
    const ImportedModel source = model_with(test::small_gpt2(), vocabulary);
    LanguageModel model(Context(Device::cpu(), 1), source.config, DType::f32, source.tokenizer);
    copy_parameters(model.ctx, model.parameters, Checkpoint{.params = source.parameters}, "test");
    const SampleOptions options{.prompt = "a", .tokens = 2000, .ignore_eos = true};
    const SampledText all = sample_text(model, options);
    EXPECT_EQ(all.tokens.size(), 2000u);
    EXPECT_FALSE(all.stopped);
    const auto end = std::ranges::find(all.tokens, 256);
    ASSERT_NE(end, all.tokens.end());
    EXPECT_THAT(all.text, HasSubstr("<|endoftext|>"));

    SampleOptions stopping = options;
    stopping.ignore_eos = false;
    const SampledText ended = sample_text(model, stopping);
    EXPECT_EQ(ended.tokens, std::vector<std::int32_t>(all.tokens.begin(), end + 1));
    EXPECT_EQ(ended.text, all.text.substr(0, all.text.find("<|endoftext|>")));
    EXPECT_TRUE(ended.stopped);
}

TEST(ChatSession, AnAnswerEndsAtATokenThatEndsAText) {
    const ImportedModel source = model_with(test::small_gpt2(), byte_vocabulary({"</s>"}));
    LanguageModel model(Context(Device::cpu(), 1), source.config, DType::f32, source.tokenizer);
    copy_parameters(model.ctx, model.parameters, Checkpoint{.params = source.parameters}, "test");
    const auto answer = [&] { return ChatSession(model, {}).answer("a"); };
    const std::string full_text = answer().text;
    ASSERT_GT(full_text.size(), 20u);
    const char end = full_text[20];
    model.imported_text = {.end_tokens = {static_cast<unsigned char>(end)}};
    const ChatAnswer ended = answer();
    EXPECT_EQ(ended.end, ChatAnswer::End::turn);
    EXPECT_EQ(ended.text, full_text.substr(0, full_text.find(end)));
}

#endif

}  // namespace
}  // namespace gradtile
