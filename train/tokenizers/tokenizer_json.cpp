#include <gradtile/train/tokenizers/tokenizer_json.h>

#include <algorithm>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/train/tokenizers/byte_characters.h>

namespace gradtile {
namespace {

using nlohmann::json;

/// The ids of tokens. The keys are the tokens as the file spells them.
using TokenIds = std::unordered_map<std::string_view, std::int32_t>;

class TokenizerJsonReader {
  public:
    explicit TokenizerJsonReader(std::string_view source) : source_(source) {}

    BytePairVocabulary read(const json& value) {
        check(value.is_object(), source_, ": expected an object, as tokenizer.json has");
        const json& model = object(value, "model");
        // Old files have no member "type".
        if (const json type = model.value("type", json("BPE")); type != "BPE")
            refuse("model.type", type, "\"BPE\"");
        require_absent(value, "normalizer");
        require_absent(model, "continuing_subword_prefix");
        require_absent(model, "end_of_word_suffix");
        if (const json dropout = model.value("dropout", json()); !dropout.is_null() && dropout != 0)
            refuse("model.dropout", dropout, "null");
        if (flag(model, "byte_fallback")) refuse("model.byte_fallback", true, "false");
        vocabulary_.whole_pieces = flag(model, "ignore_merges");
        read_added_tokens(value);
        read_vocabulary(object(model, "vocab"));
        read_merges(array(model, "merges"));
        read_pre_tokenizer(value.value("pre_tokenizer", json()), "pre_tokenizer");
        check(is_byte_level_, source_, ": pre_tokenizer: has no ByteLevel; only byte-level BPE is supported");
        read_post_processor(value.value("post_processor", json()));
        return std::move(vocabulary_);
    }

    BytePairVocabulary read_encoder(const json& encoder, std::string_view merges) {
        check(encoder.is_object(), source_, ": expected an object of tokens and their ids");
        // "<|endoftext|>" is not a sequence of bytes but an added token
        for (const auto& [token, id] : encoder.items())
            if (token.starts_with("<|") && token.ends_with("|>")) {
                added_ids_[token] = id_of(id, token);
                vocabulary_.added.push_back({.id = id_of(id, token), .text = token});
            }
        read_vocabulary(encoder);
        read_merge_lines(merges);
        vocabulary_.patterns.push_back({std::string(gpt2_pattern())});
        return std::move(vocabulary_);
    }

  private:
    template <class Value>
    [[noreturn]] void refuse(std::string_view member, const Value& value, std::string_view expected) const {
        throw Error(concat(source_, ": ", member, ": ", json_excerpt(value), "; expected ", expected));
    }

    const json& member(const json& value, const char* name) const {
        const auto found = value.find(name);
        check(found != value.end(), source_, ": has no ", name);
        return *found;
    }
    const json& object(const json& value, const char* name) const {
        const json& found = member(value, name);
        if (!found.is_object()) refuse(name, found, "an object");
        return found;
    }
    const json& array(const json& value, const char* name) const {
        const json& found = member(value, name);
        if (!found.is_array()) refuse(name, found, "a list");
        return found;
    }
    std::string text(const json& value, const char* name) const {
        const json& found = member(value, name);
        if (!found.is_string()) refuse(name, found, "a text");
        return found.get<std::string>();
    }
    bool flag(const json& value, const char* name, bool otherwise = false) const {
        const auto found = value.find(name);
        if (found == value.end() || found->is_null()) return otherwise;
        if (!found->is_boolean()) refuse(name, *found, "true or false");
        return found->get<bool>();
    }
    void require_absent(const json& value, const char* name) const {
        const auto found = value.find(name);
        if (found != value.end() && !found->is_null() && *found != "")
            refuse(name, *found, "null (it is not supported)");
    }

    std::int32_t id_of(const json& id, std::string_view token) const {
        if (!id.is_number_integer() || id < 0 || id >= max_byte_pair_vocabulary)
            refuse(concat("id of ", json_excerpt(json(token))), id,
                   concat("an integer from 0 to ", max_byte_pair_vocabulary - 1));
        return id.get<std::int32_t>();
    }

    void read_added_tokens(const json& value) {
        const auto list = value.find("added_tokens");
        if (list == value.end() || list->is_null()) return;
        if (!list->is_array()) refuse("added_tokens", *list, "a list");
        for (const json& token : *list) {
            if (!token.is_object()) refuse("added_tokens", token, "objects");
            AddedToken added{.text = text(token, "content"),
                             .special = flag(token, "special"),
                             .normalized = flag(token, "normalized", true)};
            added.id = id_of(member(token, "id"), added.text);
            for (const char* name : {"lstrip", "rstrip", "single_word"})
                if (flag(token, name)) refuse(concat("added_tokens: ", name), true, "false");
            added_ids_[added.text] = added.id;
            vocabulary_.added.push_back(std::move(added));
        }
    }

    void read_vocabulary(const json& vocab) {
        std::int32_t largest = -1;
        for (const auto& [token, value] : vocab.items()) largest = std::max(largest, id_of(value, token));
        vocabulary_.tokens.resize(static_cast<std::size_t>(largest + 1));
        std::vector<bool> seen(vocabulary_.tokens.size());
        for (auto entry = vocab.begin(); entry != vocab.end(); ++entry) {
            const std::string& token = entry.key();
            const std::int32_t id = id_of(entry.value(), token);
            const auto index = static_cast<std::size_t>(id);
            check(!seen[index], source_, ": vocab: id ", id, " occurs twice");
            seen[index] = true;
            ids_[token] = id;
            std::optional<std::string> bytes = bytes_of_characters(token);
            const auto added = added_ids_.find(token);
            // The text of an added token is plain text. It is not written in the characters that represent
            // bytes.
            if (added != added_ids_.end() && added->second == id) {
                if (bytes != token) continue;
            }
            check(bytes.has_value() && !bytes->empty(), source_, ": vocab: token ", id, ", ",
                  json_excerpt(json(token)), ", is not written in the characters that stand for bytes");
            vocabulary_.tokens[index] = std::move(*bytes);
        }
    }

    std::int32_t merge_part(std::string_view token) const {
        const auto found = ids_.find(token);
        check(found != ids_.end(), source_, ": merges: ", vocabulary_.merges.size(), ": ",
              json_excerpt(json(token)), " is not in the vocabulary");
        return found->second;
    }

    void add_merge(std::string_view left, std::string_view right) {
        joined_.assign(left).append(right);
        vocabulary_.merges.push_back({merge_part(left), merge_part(right), merge_part(joined_)});
    }

    void add_merge(std::string_view line) {
        const std::size_t space = line.find(' ');
        check(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos, source_,
              ": merges: ", vocabulary_.merges.size(), ": ", json_excerpt(json(line)),
              "; expected two tokens with a space between them");
        add_merge(line.substr(0, space), line.substr(space + 1));
    }

    void read_merges(const json& merges) {
        vocabulary_.merges.reserve(merges.size());
        for (const json& merge : merges) {
            if (merge.is_string()) {
                add_merge(merge.get_ref<const std::string&>());
            } else {
                if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string())
                    refuse("merges", merge, "\"a b\" or [\"a\", \"b\"]");
                add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
            }
        }
    }

    void read_merge_lines(std::string_view merges) {
        for (bool is_first = true; !merges.empty(); is_first = false) {
            const std::size_t end = std::min(merges.find('\n'), merges.size());
            std::string_view line = merges.substr(0, end);
            merges.remove_prefix(std::min(end + 1, merges.size()));
            if (line.ends_with('\r')) line.remove_suffix(1);
            if (!line.empty() && !(is_first && line.starts_with("#version"))) add_merge(line);
        }
    }

    void read_pre_tokenizer(const json& value, const char* place) {
        if (!value.is_object()) refuse(place, value, "an object");
        const std::string type = text(value, "type");
        if (type == "Sequence") {
            for (const json& step : array(value, "pretokenizers")) read_pre_tokenizer(step, "pretokenizers");
        } else if (type == "ByteLevel") {
            read_byte_level(value);
        } else if (type == "Split") {
            read_split(value);
        } else if (type == "Digits") {
            add_pattern(flag(value, "individual_digits") ? "\\p{N}" : "\\p{N}+");
        } else {
            refuse(concat(place, ".type"), json(type), "Sequence, ByteLevel, Split or Digits");
        }
    }

    void add_pattern(std::string regex, bool must_cover = false) {
        check(!is_byte_level_, source_, ": pre_tokenizer: ByteLevel is not the last step");
        vocabulary_.patterns.push_back({std::move(regex), must_cover});
    }

    void read_byte_level(const json& value) {
        // With this option, an encoded and decoded text would begin with a space that the original text does
        // not have.
        if (flag(value, "add_prefix_space", true))
            refuse("pre_tokenizer.add_prefix_space", true, "false (it is not supported)");
        check(!is_byte_level_, source_, ": pre_tokenizer: has ByteLevel twice");
        if (flag(value, "use_regex", true)) add_pattern(std::string(gpt2_pattern()));
        is_byte_level_ = true;
    }

    void read_split(const json& value) {
        const json& pattern = object(value, "pattern");
        const bool invert = flag(value, "invert");
        const std::string behavior = text(value, "behavior");
        // Inverted "Removed" removes the text between matches.
        const bool must_cover = behavior == "Removed" && invert;
        if (behavior != "Isolated" && !must_cover)
            refuse("pre_tokenizer.behavior", json(behavior), "\"Isolated\"");
        if (pattern.contains("Regex")) return add_pattern(text(pattern, "Regex"), must_cover);
        std::string literal;
        for (const char c : text(pattern, "String")) {
            if (std::string_view("\\^$.[|()?*+{}#-").find(c) != std::string_view::npos) literal += '\\';
            literal += c;
        }
        check(!literal.empty(), source_, ": pre_tokenizer: an empty pattern");
        add_pattern(std::move(literal), must_cover);
    }

    void read_post_processor(const json& value) {
        if (value.is_null()) return;
        if (!value.is_object()) refuse("post_processor", value, "an object");
        const std::string type = text(value, "type");
        if (type == "Sequence") {
            for (const json& step : array(value, "processors")) read_post_processor(step);
        } else if (type == "TemplateProcessing") {
            read_template(value);
        } else if (type == "RobertaProcessing") {
            vocabulary_.before.push_back(named_id(value, "cls"));
            vocabulary_.after.push_back(named_id(value, "sep"));
        } else if (type != "ByteLevel") {  // ByteLevel changes only the offsets of tokens
            refuse("post_processor.type", json(type),
                   "Sequence, TemplateProcessing, RobertaProcessing or ByteLevel");
        }
    }

    /// Reads the id of a member that is written ["<s>", 0].
    std::int32_t named_id(const json& value, const char* name) const {
        const json& pair = array(value, name);
        if (pair.size() != 2 || !pair[0].is_string())
            refuse(concat("post_processor.", name), pair, "a token and its id");
        return id_of(pair[1], pair[0].get_ref<const std::string&>());
    }

    /// Reads the template of a single text: special tokens before and after the text A.
    void read_template(const json& value) {
        check(vocabulary_.before.empty() && vocabulary_.after.empty(), source_,
              ": post_processor: adds tokens in two steps; expected one");
        bool has_text = false;
        for (const json& piece : array(value, "single")) {
            if (piece.is_object() && piece.contains("Sequence")) {
                if (has_text || text(object(piece, "Sequence"), "id") != "A")
                    refuse("post_processor.single", piece, "the text A once");
                has_text = true;
                continue;
            }
            if (!piece.is_object()) refuse("post_processor.single", piece, "objects");
            const std::string token = text(object(piece, "SpecialToken"), "id");
            const json& tokens = object(value, "special_tokens");
            check(tokens.contains(token) && tokens[token].is_object(), source_,
                  ": post_processor: special_tokens has no ", json_excerpt(json(token)));
            for (const json& id : array(tokens[token], "ids"))
                (has_text ? vocabulary_.after : vocabulary_.before).push_back(id_of(id, token));
        }
        check(has_text, source_, ": post_processor.single: has no text A");
    }

    std::string_view source_;
    BytePairVocabulary vocabulary_;
    std::unordered_map<std::string, std::int32_t> added_ids_;
    TokenIds ids_;
    std::string joined_;
    bool is_byte_level_ = false;
};

/// Returns merges that give the same ids as tiktoken's rule. They are ordered by result, then by their parts.
std::vector<BytePairMerge> merges_by_id(const BytePairVocabulary& vocabulary) {
    std::unordered_map<std::string_view, std::int32_t> ids;
    for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i)
        if (!vocabulary.tokens[i].empty()) ids[vocabulary.tokens[i]] = static_cast<std::int32_t>(i);
    std::vector<BytePairMerge> merges;
    for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
        const std::string_view text = vocabulary.tokens[i];
        const std::size_t first = merges.size();
        for (std::size_t cut = 1; cut < text.size(); ++cut) {
            const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
            if (left != ids.end() && right != ids.end())
                merges.push_back({left->second, right->second, static_cast<std::int32_t>(i)});
        }
        std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(),
                  [](const BytePairMerge& a, const BytePairMerge& b) {
                      return std::pair(a.left, a.right) < std::pair(b.left, b.right);
                  });
    }
    return merges;
}

json split_step(const SplitPattern& pattern) {
    return {{"type", "Split"},
            {"pattern", {{"Regex", pattern.regex}}},
            {"behavior", pattern.must_cover ? "Removed" : "Isolated"},
            {"invert", pattern.must_cover}};
}

json byte_level_step(bool use_regex) {
    return {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json pre_tokenizer_of(const std::vector<SplitPattern>& patterns) {
    const bool is_gpt2 = !patterns.empty() && patterns.back() == SplitPattern{std::string(gpt2_pattern())};
    if (patterns.empty() || (is_gpt2 && patterns.size() == 1)) return byte_level_step(is_gpt2);
    json steps = json::array();
    for (std::size_t i = 0; i < patterns.size() - (is_gpt2 ? 1 : 0); ++i)
        steps.push_back(split_step(patterns[i]));
    steps.push_back(byte_level_step(is_gpt2));
    return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

/// Returns the text of a token as tokenizer.json spells it.
std::string text_of_id(const BytePairVocabulary& vocabulary, std::int32_t id) {
    const auto added = std::ranges::find(vocabulary.added, id, &AddedToken::id);
    return added != vocabulary.added.end()
               ? added->text
               : characters_of_bytes(vocabulary.tokens[static_cast<std::size_t>(id)]);
}

json post_processor_of(const BytePairVocabulary& vocabulary) {
    if (vocabulary.before.empty() && vocabulary.after.empty()) return nullptr;
    json tokens = json::object();
    const auto pieces = [&](const std::vector<std::int32_t>& before, const std::vector<std::int32_t>& after,
                            const char* text, int type) {
        json list = json::array();
        const auto add = [&](const std::vector<std::int32_t>& ids) {
            for (const std::int32_t id : ids) {
                const std::string name = text_of_id(vocabulary, id);
                tokens[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
                list.push_back({{"SpecialToken", {{"id", name}, {"type_id", type}}}});
            }
        };
        add(before);
        list.push_back({{"Sequence", {{"id", text}, {"type_id", type}}}});
        add(after);
        return list;
    };
    const json single = pieces(vocabulary.before, vocabulary.after, "A", 0);
    json pair = single;
    for (json& piece : pieces(vocabulary.before, vocabulary.after, "B", 1)) pair.push_back(std::move(piece));
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", std::move(pair)},
            {"special_tokens", std::move(tokens)}};
}

}  // namespace

BytePairVocabulary vocabulary_of_tokenizer_json(const json& value, std::string_view source) {
    return TokenizerJsonReader(source).read(value);
}

BytePairVocabulary vocabulary_of_encoder_json(const json& encoder, std::string_view merges,
                                              std::string_view source) {
    return TokenizerJsonReader(source).read_encoder(encoder, merges);
}

json tokenizer_json_of(const BytePairVocabulary& vocabulary) {
    json vocab = json::object();
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
        if (!vocabulary.tokens[id].empty()) vocab[characters_of_bytes(vocabulary.tokens[id])] = id;
    json merges = json::array();
    const auto characters = [&](std::int32_t id) {
        return characters_of_bytes(vocabulary.tokens[static_cast<std::size_t>(id)]);
    };
    for (const BytePairMerge& merge : vocabulary.merges_by_id ? merges_by_id(vocabulary) : vocabulary.merges)
        merges.push_back(concat(characters(merge.left), ' ', characters(merge.right)));
    json added = json::array();
    for (const AddedToken& token : vocabulary.added)
        added.push_back({{"id", token.id},
                         {"content", token.text},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", token.normalized},
                         {"special", token.special}});
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", std::move(added)},
            {"normalizer", nullptr},
            {"pre_tokenizer", pre_tokenizer_of(vocabulary.patterns)},
            {"post_processor", post_processor_of(vocabulary)},
            {"decoder", byte_level_step(true)},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", nullptr},
              {"continuing_subword_prefix", nullptr},
              {"end_of_word_suffix", nullptr},
              {"fuse_unk", false},
              {"byte_fallback", false},
              {"ignore_merges", vocabulary.whole_pieces},
              {"vocab", std::move(vocab)},
              {"merges", std::move(merges)}}}};
}

}  // namespace gradtile
