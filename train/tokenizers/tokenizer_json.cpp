#include <gradtile/train/tokenizers/tokenizer_json.h>

#include <utility>

#include <gradtile/core/check.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/tokenizers/byte_characters.h>
#include <gradtile/train/tokenizers/internal/merges_by_id.h>
#include <gradtile/train/tokenizers/internal/tokenizer_json_reader.h>

namespace gradtile {
namespace {

JsonValue split_step(const std::string& pattern) {
    return JsonValue::object({{"type", "Split"},
                              {"pattern", JsonValue::object({{"Regex", pattern}})},
                              {"behavior", "Isolated"},
                              {"invert", false}});
}

JsonValue byte_level_step(bool use_regex) {
    return JsonValue::object({{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", use_regex}});
}

JsonValue pre_tokenizer_of(const std::vector<std::string>& patterns) {
    const bool is_gpt2 = !patterns.empty() && patterns.back() == gpt2_pattern();
    if (patterns.empty() || (is_gpt2 && patterns.size() == 1)) return byte_level_step(is_gpt2);
    JsonValue steps = JsonValue::array();
    for (std::size_t i = 0; i < patterns.size() - (is_gpt2 ? 1 : 0); ++i)
        steps.push_back(split_step(patterns[i]));
    steps.push_back(byte_level_step(is_gpt2));
    return JsonValue::object({{"type", "Sequence"}, {"pretokenizers", std::move(steps)}});
}

void write_added_tokens(JsonWriter& writer, const std::vector<AddedToken>& tokens) {
    writer.begin_array();
    for (const AddedToken& token : tokens)
        writer.write(JsonValue::object({{"id", token.id},
                                        {"content", token.text},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", token.normalized},
                                        {"special", token.special}}));
    writer.end();
}

void write_model(JsonWriter& writer, const BytePairVocabulary& vocabulary) {
    const std::vector<std::string>& tokens = vocabulary.tokens;
    writer.begin_object();
    writer.write("type", "BPE");
    for (const char* const name : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
        writer.write(name, nullptr);
    writer.write("fuse_unk", false);
    writer.write("byte_fallback", false);
    writer.write("ignore_merges", vocabulary.whole_pieces);
    writer.write_name("vocab");
    writer.begin_object();
    for (std::size_t id = 0; id < tokens.size(); ++id)
        if (!tokens[id].empty()) writer.write(characters_of_bytes(tokens[id]), id);
    writer.end();
    writer.write_name("merges");
    writer.begin_array();
    for_each_merge_text(vocabulary, [&](const std::string& text) { writer.write_text(text); });
    writer.end();
    writer.end();
}

}  // namespace

void for_each_merge_text(const BytePairVocabulary& vocabulary,
                         const std::function<void(const std::string& text)>& visit) {
    const auto characters = [&](std::int32_t id) {
        return characters_of_bytes(vocabulary.tokens[static_cast<std::size_t>(id)]);
    };
    const auto visit_merge = [&](const BytePairMerge& merge) {
        visit(characters(merge.left) + ' ' + characters(merge.right));
    };
    if (vocabulary.merges_by_id)
        return for_each_merge_by_id(vocabulary.tokens, TokenIndex(vocabulary.tokens), visit_merge);
    for (const BytePairMerge& merge : vocabulary.merges) visit_merge(merge);
}

BytePairVocabulary vocabulary_of_tokenizer_json(std::string text, std::string_view source) {
    TokenizerJsonReader reader;
    const JsonValue value = parse_json(text, source, reader.tokenizer_routes());
    std::string().swap(text);  // makes room for the vocabulary; an assignment would keep the memory
    return with_source(source, [&] { return reader.read_tokenizer(value); });
}

BytePairVocabulary vocabulary_of_encoder_json(std::string encoder, std::string_view merges,
                                              std::string_view source) {
    TokenizerJsonReader reader;
    const JsonValue value = parse_json(encoder, source, reader.encoder_routes());
    std::string().swap(encoder);
    return with_source(source, [&] { return reader.read_encoder(value, merges); });
}

void write_tokenizer_json(JsonWriter& writer, const BytePairVocabulary& vocabulary) {
    writer.begin_object();
    writer.write("version", "1.0");
    writer.write("truncation", nullptr);
    writer.write("padding", nullptr);
    writer.write_name("added_tokens");
    write_added_tokens(writer, vocabulary.added);
    writer.write("normalizer", nullptr);
    writer.write("pre_tokenizer", pre_tokenizer_of(vocabulary.patterns));
    writer.write("post_processor", nullptr);
    writer.write("decoder", byte_level_step(true));
    writer.write_name("model");
    write_model(writer, vocabulary);
    writer.end();
}

}  // namespace gradtile
