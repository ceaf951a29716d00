#pragma once
/// A transformers folder as a publisher writes it, and its files.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gradtile/train/data/chat_jinja.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>

#include <tools/formats/weights_fixture.h>

namespace gradtile::test::published {

namespace fs = std::filesystem;

inline void write_text(const fs::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
}

inline std::map<std::string, std::string> files_in(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder))
        files[entry.path().filename().string()] = contents_of(entry.path());
    return files;
}

/// A byte tokenizer, with special tokens from id 256 on.
inline BytePairVocabulary byte_vocabulary(const std::vector<std::string>& special) {
    BytePairVocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    std::int32_t id = 256;
    for (const std::string& text : special) vocabulary.added.push_back({.id = id++, .text = text});
    vocabulary.patterns.push_back({std::string(gpt2_pattern())});
    return vocabulary;
}

inline ImportedModel model_with(const ModelConfig& small, BytePairVocabulary vocabulary) {
    ModelConfig config = small;
    const Tokenizer tokenizer = Tokenizer::byte_pairs(std::move(vocabulary), "test");
    config.vocabulary = tokenizer.vocab_size();
    config.context = 64;
    ImportedModel model = test::random_model(config);
    model.tokenizer = tokenizer;
    return model;
}

inline const std::vector<std::string> llama3_tokens{"<|begin_of_text|>", "<|end_of_text|>",
                                                    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};

/// A folder as a publisher writes it: its own member order, its own spacing, files that transformers reads
/// and this program does not write.
inline fs::path published_folder(const TemporaryDirectory& place, const std::string& name = "published") {
    BytePairVocabulary vocabulary = byte_vocabulary(llama3_tokens);
    vocabulary.before = {256};
    const fs::path folder = place / name;
    export_model(checkpoint_of(model_with(test::small_llama(), vocabulary), "x"), "run",
                 {.out = folder.string()});
    nlohmann::json config = json_of(folder / "config.json");
    config["eos_token_id"] = {257, 260};
    config["unsloth_version"] = "2025.1.1";
    write_text(folder / "config.json", "{ \"use_cache\":true,\n" + config.dump(1).substr(1));
    write_text(folder / "generation_config.json",
               "{\"temperature\": 0.6,\"eos_token_id\": [257, 260], \"do_sample\":true}");
    write_text(folder / "tokenizer_config.json",
               "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"bos_token\": \"<|begin_of_text|>\",\n"
               "\"added_tokens_decoder\": {\"260\": {\"content\": \"<|eot_id|>\", \"special\": true}}}\n");
    write_text(folder / "special_tokens_map.json", "{\"eos_token\": {\"content\":\"<|eot_id|>\"} }");
    write_text(folder / "added_tokens.json", "{\"<|eot_id|>\": 260}");
    write_text(folder / "chat_template.jinja", jinja_of(ChatTemplate::llama3) + "\n");
    nlohmann::json tokenizer = json_of(folder / "tokenizer.json");
    tokenizer["truncation"] = {{"max_length", 9}};
    write_text(folder / "tokenizer.json", tokenizer.dump());
    return folder;
}

}  // namespace gradtile::test::published
