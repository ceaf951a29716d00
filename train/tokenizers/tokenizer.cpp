#include <gradtile/train/tokenizers/tokenizer.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_writer.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/base64.h>
#include <gradtile/train/tokenizers/internal/sentencepiece_model.h>
#include <gradtile/train/tokenizers/internal/tokenizer_json_reader.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

namespace gradtile {
namespace {

constexpr std::string_view model_file_name = "tokenizer.model";

/// Calls visit(code point, byte offset) for every character. Throws Error with the position where the text is
/// not UTF-8; the text begins at `file_offset`. The message ends with `advice`.
template <class Visit>
void for_each_character(std::string_view text, std::string_view source, std::size_t file_offset,
                        Visit&& visit, const char* advice = "") {
    for (std::size_t offset = 0; offset < text.size();) {
        const auto lead = static_cast<unsigned char>(text[offset]);
        const CodePoint point = lead < 0x80 ? CodePoint{lead, 1} : decode_utf8(text, offset);
        check(point.length > 0, source, ": invalid UTF-8 at byte offset ", file_offset + offset, advice);
        visit(point.value, offset);
        offset += static_cast<std::size_t>(point.length);
    }
}

}  // namespace

Tokenizer Tokenizer::bytes() {
    return Tokenizer(Bytes{});
}

Tokenizer Tokenizer::characters(std::vector<char32_t> alphabet) {
    std::vector<std::int32_t> id_of(static_cast<std::size_t>(alphabet.back()) + 1, -1);
    for (std::size_t id = 0; id < alphabet.size(); ++id) id_of[alphabet[id]] = static_cast<std::int32_t>(id);
    return Tokenizer(Characters{std::move(alphabet), std::move(id_of)});
}

Tokenizer Tokenizer::characters_of(std::string_view text, std::string_view source, std::size_t file_offset) {
    check(!text.empty(), source, ": is empty; expected text");
    std::vector<bool> seen(0x110000);
    // Only training can choose the tokenizer. Sampling and evaluation use the checkpoint's tokenizer.
    for_each_character(
        text, source, file_offset, [&](char32_t c, std::size_t) { seen[c] = true; },
        "; the byte tokenizer (--tokenizer bytes) takes any file");
    std::vector<char32_t> alphabet;
    for (std::size_t c = 0; c < seen.size(); ++c)
        if (seen[c]) alphabet.push_back(static_cast<char32_t>(c));
    return characters(std::move(alphabet));
}

Tokenizer Tokenizer::byte_pairs(BytePairVocabulary vocabulary, std::string_view source,
                                std::shared_ptr<const TokenizerSource> file) {
    return Tokenizer(
        BytePairs{std::make_shared<const BytePairEncoding>(std::move(vocabulary), source), std::move(file)});
}

bool Tokenizer::BytePairs::operator==(const BytePairs& other) const {
    return encoding == other.encoding || encoding->vocabulary() == other.encoding->vocabulary();
}

const BytePairEncoding* Tokenizer::byte_pair_encoding() const {
    const auto* rules = std::get_if<BytePairs>(&rules_);
    return rules ? rules->encoding.get() : nullptr;
}

TokenizerKind Tokenizer::kind() const {
    if (byte_pair_encoding()) return TokenizerKind::bpe;
    return std::holds_alternative<Bytes>(rules_) ? TokenizerKind::bytes : TokenizerKind::characters;
}

bool Tokenizer::has_text(std::int32_t id) const {
    if (const BytePairEncoding* const encoding = byte_pair_encoding())
        return encoding->text_of(id).has_value();
    return id >= 0 && id < vocab_size();
}

std::int64_t Tokenizer::vocab_size() const {
    if (const BytePairEncoding* const encoding = byte_pair_encoding()) return encoding->vocab_size();
    const auto* rules = std::get_if<Characters>(&rules_);
    return rules ? std::ssize(rules->alphabet) : 256;
}

std::string Tokenizer::name() const {
    const BytePairEncoding* const encoding = byte_pair_encoding();
    const bool is_unigram = encoding && encoding->vocabulary().model == SubwordModel::unigram;
    const std::string kind_name(is_unigram ? "unigram" : name_of(kind()));
    return kind() == TokenizerKind::bytes ? kind_name : concat(kind_name, " (", vocab_size(), ")");
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, std::string_view source,
                                            const EncodeOptions& options) const {
    if (const BytePairEncoding* const encoding = byte_pair_encoding())
        return encoding->encode(text, source, options);
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    if (const auto* rules = std::get_if<Characters>(&rules_)) {
        for_each_character(text, source, options.file_offset, [&](char32_t c, std::size_t offset) {
            const std::int32_t id = c < rules->id_of.size() ? rules->id_of[c] : -1;
            if (id < 0)  // not check(), because check() would construct the name for every character
                throw Error(concat(source, ": character ", code_point_name(c), " at byte offset ",
                                   options.file_offset + offset, " is not one of the ",
                                   rules->alphabet.size(), " the tokenizer knows"));
            ids.push_back(id);
        });
    } else {
        for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    }
    return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, TextPlace place) const {
    std::string text;
    text.reserve(ids.size());
    if (const BytePairEncoding* const encoding = byte_pair_encoding()) {
        for (const std::int32_t id : ids) {
            const std::optional<std::string_view> token = encoding->text_of(id);
            check(token.has_value(), "tokenizer: token id ", id, " has no text in the vocabulary of ",
                  vocab_size());
            text += *token;
        }
        if (place == TextPlace::start && encoding->vocabulary().removes_first_blank && text.starts_with(' '))
            text.erase(0, 1);
        return text;
    }
    const auto* rules = std::get_if<Characters>(&rules_);
    for (const std::int32_t id : ids) {
        check(id >= 0 && id < vocab_size(), "tokenizer: token id ", id, " is outside the vocabulary of ",
              vocab_size());
        if (rules) {
            append_utf8(text, rules->alphabet[static_cast<std::size_t>(id)]);
        } else {
            text += static_cast<char>(id);
        }
    }
    return text;
}

std::string Tokenizer::to_json() const {
    std::string text;
    JsonWriter writer(text);
    writer.begin_object();
    writer.write("kind", name_of(kind()));
    if (const auto* rules = std::get_if<Characters>(&rules_)) {
        std::string alphabet;
        for (const char32_t c : rules->alphabet) append_utf8(alphabet, c);
        writer.write("characters", alphabet);
    }
    if (const auto* rules = std::get_if<BytePairs>(&rules_)) {
        const BytePairVocabulary& vocabulary = rules->encoding->vocabulary();
        if (rules->file && rules->file->name == model_file_name) {
            writer.write("before", vocabulary.before);
            writer.write("after", vocabulary.after);
            writer.write_name("model");
            writer.write_text(base64_of_bytes(rules->file->content));
        } else {
            writer.write("merges_by_id", vocabulary.merges_by_id);
            writer.write_name("file");
            writer.write_text(file().content);
        }
    }
    writer.end();
    writer.finish();
    return text;
}

TokenizerSource Tokenizer::file() const {
    const auto* rules = std::get_if<BytePairs>(&rules_);
    check(rules != nullptr, "tokenizer.json holds BPE tokenizers; this one is ", name());
    if (rules->file) return *rules->file;
    TokenizerSource source{.name = "tokenizer.json"};
    JsonWriter writer(source.content, 2);
    write_tokenizer_json(writer, rules->encoding->vocabulary());
    writer.finish();
    source.content += '\n';
    return source;
}

Tokenizer Tokenizer::characters_from_json(const JsonValue& value, const std::string& source) {
    const JsonValue* const found = value.find("characters");
    check(found && found->is_string(), source, ": expected a string named characters");
    check(!found->text().empty(), source, ": characters: is empty");
    std::vector<char32_t> alphabet;
    for_each_character(found->text(), source + ": characters", 0,
                       [&](char32_t c, std::size_t) { alphabet.push_back(c); });
    // Ids are positions in this list, so a list in another order would be another tokenizer without any
    // error.
    check(std::ranges::adjacent_find(alphabet, std::ranges::greater_equal{}) == alphabet.end(), source,
          ": characters: not distinct and in increasing order");
    return characters(std::move(alphabet));
}

Tokenizer Tokenizer::from_json(std::string_view text, std::string_view file) {
    const std::string source = concat(file, ": tokenizer");
    TokenizerJsonReader reader;
    JsonValue value = parse_json(text, source, reader.tokenizer_routes({"tokenizer"}));
    check(value.contains("kind") && value["kind"].is_string(), source, ": expected an object with a kind");
    switch (enum_named<TokenizerKind>(value["kind"].text(), source + ": kind")) {
        case TokenizerKind::bytes:
            return bytes();
        case TokenizerKind::characters:
            return characters_from_json(value, source);
        case TokenizerKind::bpe:
            break;
    }
    if (value.contains("model")) return model_from_json(value, source);
    const JsonValue* const by_id = value.find("merges_by_id");
    const bool has_file = value.contains("file") && value["file"].is_string();
    check((has_file || value.contains("tokenizer")) && by_id && by_id->is_boolean(), source,
          ": expected members file and merges_by_id");
    const bool merges_by_id = by_id->boolean();
    std::shared_ptr<const TokenizerSource> whole_file;
    if (has_file) {
        std::string file = value.take_text("file");
        file.shrink_to_fit();  // the parser's text may have twice its size
        whole_file = std::make_shared<const TokenizerSource>("tokenizer.json", std::move(file));
    }
    BytePairVocabulary vocabulary =
        whole_file ? vocabulary_of_tokenizer_json(whole_file->content, source)
                   : with_source(source, [&] { return reader.read_tokenizer(value["tokenizer"]); });
    vocabulary.merges_by_id = merges_by_id;
    if (merges_by_id) std::vector<BytePairMerge>().swap(vocabulary.merges);
    return byte_pairs(std::move(vocabulary), source, std::move(whole_file));
}

Tokenizer Tokenizer::model_from_json(JsonValue& value, const std::string& source) {
    check(value["model"].is_string(), source, ": model: expected a text");
    std::optional<std::string> bytes = bytes_of_base64(value["model"].text());
    check(bytes.has_value(), source, ": model: expected base64");
    BytePairVocabulary vocabulary = vocabulary_of_sentencepiece(*bytes, source);
    with_source(source, [&] {
        vocabulary.before = value["before"].get<std::vector<std::int32_t>>();
        vocabulary.after = value["after"].get<std::vector<std::int32_t>>();
    });
    return byte_pairs(
        std::move(vocabulary), source,
        std::make_shared<const TokenizerSource>(std::string(model_file_name), *std::move(bytes)));
}

void check_tokenizer(const Tokenizer& tokenizer, std::int64_t vocabulary, std::string_view source) {
    check(tokenizer.vocab_size() <= vocabulary, source, ": its tokenizer has ", tokenizer.vocab_size(),
          " ids, but the model's vocabulary is ", vocabulary);
}

}  // namespace gradtile
