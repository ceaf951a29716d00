#include <gradtile/train/tokenizers/tokenizer_json.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <gradtile/core/check.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/tokenizers/byte_characters.h>
#include <gradtile/train/tokenizers/internal/merges_by_id.h>
#include <gradtile/train/tokenizers/internal/tokenizer_json_reader.h>

namespace gradtile {
namespace {

JsonValue split_step(const SplitPattern& pattern) {
    return JsonValue::object({{"type", "Split"},
                              {"pattern", JsonValue::object({{"Regex", pattern.regex}})},
                              {"behavior", pattern.must_cover ? "Removed" : "Isolated"},
                              {"invert", pattern.must_cover}});
}

JsonValue byte_level_step(bool use_regex) {
    return JsonValue::object({{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", use_regex}});
}

JsonValue pre_tokenizer_of(const std::vector<SplitPattern>& patterns) {
    const bool is_gpt2 = !patterns.empty() && patterns.back() == SplitPattern{std::string(gpt2_pattern())};
    if (patterns.empty() || (is_gpt2 && patterns.size() == 1)) return byte_level_step(is_gpt2);
    JsonValue steps = JsonValue::array();
    for (std::size_t i = 0; i < patterns.size() - (is_gpt2 ? 1 : 0); ++i)
        steps.push_back(split_step(patterns[i]));
    steps.push_back(byte_level_step(is_gpt2));
    return JsonValue::object({{"type", "Sequence"}, {"pretokenizers", std::move(steps)}});
}

/// Returns a token's text as tokenizer.json spells it.
std::string text_of_id(const BytePairVocabulary& vocabulary, std::int32_t id) {
    const auto added = std::ranges::find(vocabulary.added, id, &AddedToken::id);
    return added != vocabulary.added.end()
               ? added->text
               : characters_of_bytes(vocabulary.tokens[static_cast<std::size_t>(id)]);
}

/// Returns a name for each token of the template: its text, or a longer name if another token has that text.
/// An added token and a token of bytes may have the same text.
std::map<std::int32_t, std::string> template_names(const BytePairVocabulary& vocabulary) {
    std::map<std::int32_t, std::string> names;
    std::set<std::string> used;
    for (const auto* const ids : {&vocabulary.before, &vocabulary.after})
        for (const std::int32_t id : *ids) {
            if (names.contains(id)) continue;
            std::string name = text_of_id(vocabulary, id);
            while (!used.insert(name).second) name += '_';
            names.emplace(id, std::move(name));
        }
    return names;
}

JsonValue post_processor_of(const BytePairVocabulary& vocabulary) {
    if (vocabulary.before.empty() && vocabulary.after.empty()) return {};
    const std::map<std::int32_t, std::string> names = template_names(vocabulary);
    // The pieces of a template: the tokens before the text, the text, and the tokens after it.
    const auto add_pieces = [&](JsonValue::Array& pieces, const char* text, int type) {
        const auto add = [&](const char* kind, const std::string& id) {
            pieces.push_back(JsonValue::object({{kind, JsonValue::object({{"id", id}, {"type_id", type}})}}));
        };
        for (const std::int32_t id : vocabulary.before) add("SpecialToken", names.at(id));
        add("Sequence", text);
        for (const std::int32_t id : vocabulary.after) add("SpecialToken", names.at(id));
    };
    JsonValue::Array single;
    add_pieces(single, "A", 0);
    JsonValue::Array pair = single;
    add_pieces(pair, "B", 1);
    JsonValue tokens = JsonValue::object();
    for (const auto& [id, name] : names)
        tokens.set(name, JsonValue::object({{"id", name},
                                            {"ids", JsonValue::Array{id}},
                                            {"tokens", JsonValue::Array{text_of_id(vocabulary, id)}}}));
    return JsonValue::object({{"type", "TemplateProcessing"},
                              {"single", std::move(single)},
                              {"pair", std::move(pair)},
                              {"special_tokens", std::move(tokens)}});
}

void write_added_tokens(JsonWriter& writer, const std::vector<AddedToken>& tokens) {
    writer.begin_array();
    for (const AddedToken& token : tokens)
        writer.write(JsonValue::object({{"id", token.id},
                                        {"content", token.text},
                                        {"single_word", token.single_word},
                                        {"lstrip", token.lstrip},
                                        {"rstrip", token.rstrip},
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
        return for_each_merge_by_id(vocabulary, TokenIndex(vocabulary.tokens), visit_merge);
    for (const BytePairMerge& merge : vocabulary.merges) visit_merge(merge);
}

/// A checkpoint's text, the file's text and the parser's two copies of the longest string are in memory
/// together. The longest string of known files, a table of a normalizer, has 320 KB.
constexpr std::size_t max_string_bytes = std::size_t{1} << 19;

BytePairVocabulary vocabulary_of_tokenizer_json(std::string_view text, std::string_view source) {
    TokenizerJsonReader reader;
    const JsonValue value = parse_json(text, source, reader.tokenizer_routes(), max_string_bytes);
    return with_source(source, [&] { return reader.read_tokenizer(value); });
}

BytePairVocabulary vocabulary_of_encoder_json(std::string encoder, std::string_view merges,
                                              std::string_view source) {
    TokenizerJsonReader reader;
    const JsonValue value = parse_json(encoder, source, reader.encoder_routes());
    std::string().swap(encoder);  // makes room for the vocabulary; an assignment would keep the memory
    return with_source(source, [&] { return reader.read_encoder(value, merges); });
}

void write_tokenizer_json(JsonWriter& writer, const BytePairVocabulary& vocabulary) {
    check(vocabulary.model == SubwordModel::byte_pairs && vocabulary.normalizer.empty(),
          "tokenizer.json: only byte-level BPE without a normalizer is written; another tokenizer is kept as "
          "the file that it was read from");
    writer.begin_object();
    writer.write("version", "1.0");
    writer.write("truncation", nullptr);
    writer.write("padding", nullptr);
    writer.write_name("added_tokens");
    write_added_tokens(writer, vocabulary.added);
    writer.write("normalizer", nullptr);
    writer.write("pre_tokenizer", pre_tokenizer_of(vocabulary.patterns));
    writer.write("post_processor", post_processor_of(vocabulary));
    writer.write("decoder", byte_level_step(true));
    writer.write_name("model");
    write_model(writer, vocabulary);
    writer.end();
}

}  // namespace gradtile
