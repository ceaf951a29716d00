#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <gradtile/core/check.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/tokenizers/byte_characters.h>
#include <gradtile/train/tokenizers/internal/tokenizer_json_reader.h>

namespace gradtile {
namespace {

template <class Value>
[[noreturn]] void refuse(std::string_view member, const Value& value, std::string_view expected) {
    throw Error(concat(member, ": ", json_excerpt(value), "; expected ", expected));
}

const JsonValue& member(const JsonValue& value, const char* name) {
    const JsonValue* const found = value.find(name);
    check(found != nullptr, "has no ", name);
    return *found;
}
const JsonValue& object(const JsonValue& value, const char* name) {
    const JsonValue& found = member(value, name);
    if (!found.is_object()) refuse(name, found, "an object");
    return found;
}
const JsonValue& array(const JsonValue& value, const char* name) {
    const JsonValue& found = member(value, name);
    if (!found.is_array()) refuse(name, found, "a list");
    return found;
}
const std::string& text(const JsonValue& value, const char* name) {
    const JsonValue& found = member(value, name);
    if (!found.is_string()) refuse(name, found, "a text");
    return found.text();
}
bool flag(const JsonValue& value, const char* name, bool otherwise = false) {
    const JsonValue* const found = value.find_value(name);
    if (!found) return otherwise;
    if (!found->is_boolean()) refuse(name, *found, "true or false");
    return found->boolean();
}
void require_absent(const JsonValue& value, const char* name) {
    const JsonValue* const found = value.find_value(name);
    if (found && *found != "") refuse(name, *found, "null (it is not supported)");
}

std::int32_t id_of(const JsonValue& id, std::string_view token) {
    if (!id.fits<std::int32_t>() || id.get<std::int32_t>() < 0 ||
        id.get<std::int32_t>() >= max_byte_pair_vocabulary)
        refuse(concat("id of ", json_excerpt(token)), id,
               concat("an integer from 0 to ", max_byte_pair_vocabulary - 1));
    return id.get<std::int32_t>();
}

/// Reads the id in a member that is written ["<s>", 0].
std::int32_t named_id(const JsonValue& value, const char* name) {
    const JsonValue& pair = array(value, name);
    if (pair.size() != 2 || !pair[0].is_string())
        refuse(concat("post_processor.", name), pair, "a token and its id");
    return id_of(pair[1], pair[0].text());
}

/// Added tokens' texts by id.
class AddedTexts {
  public:
    explicit AddedTexts(const std::vector<AddedToken>& tokens) {
        for (const AddedToken& token : tokens) by_id_.emplace_back(token.id, token.text);
        std::ranges::sort(by_id_);
    }
    bool contains(std::int32_t id, std::string_view text) const {
        return std::ranges::binary_search(by_id_, std::pair(id, text));
    }

  private:
    std::vector<std::pair<std::int32_t, std::string_view>> by_id_;
};

}  // namespace

std::vector<JsonRoute> TokenizerJsonReader::tokenizer_routes(const std::vector<std::string_view>& place) {
    const auto below = [&](std::initializer_list<std::string_view> names) {
        std::vector<std::string_view> path = place;
        path.insert(path.end(), names);
        return path;
    };
    return {{below({"added_tokens"}), added_},
            {below({"model", "vocab"}), vocab_},
            {below({"model", "merges"}), merges_}};
}

std::vector<JsonRoute> TokenizerJsonReader::encoder_routes() {
    return {{{}, encoder_}};
}

BytePairVocabulary TokenizerJsonReader::read_tokenizer(const JsonValue& value) {
    check(value.is_object(), "expected an object, as tokenizer.json has");
    const JsonValue& model = object(value, "model");
    const auto present = [&](const char* name) {
        const JsonValue* const found = value.find(name);
        return found && !found->is_null() ? found : nullptr;
    };
    if (present("added_tokens")) array(value, "added_tokens");
    if (const JsonValue* const normalizer = present("normalizer")) read_normalizer(*normalizer);
    if (const JsonValue* const pre_tokenizer = present("pre_tokenizer"))
        read_pre_tokenizer(*pre_tokenizer, "pre_tokenizer");
    if (const JsonValue* const post_processor = present("post_processor"))
        read_post_processor(*post_processor);
    read_model(model);
    if (const JsonValue* const decoder = present("decoder"); decoder && !is_byte_level_)
        read_decoder(*decoder);
    return take_vocabulary();
}

void TokenizerJsonReader::read_model(const JsonValue& model) {
    // Old files have no member "type".
    const JsonValue* const type = model.find("type");
    if (type && *type != "BPE" && *type != "Unigram") refuse("model.type", *type, "\"BPE\" or \"Unigram\"");
    if (type && *type == "Unigram") {
        check(!is_byte_level_, "pre_tokenizer: has ByteLevel, which is not supported with Unigram");
        vocabulary_.model = SubwordModel::unigram;
        vocabulary_.fuses_unknown = true;
        array(model, "vocab");
    } else {
        vocabulary_.model = is_byte_level_ ? SubwordModel::byte_pairs : SubwordModel::character_pairs;
        require_absent(model, "continuing_subword_prefix");
        require_absent(model, "end_of_word_suffix");
        if (const JsonValue* const dropout = model.find("dropout");
            dropout && !dropout->is_null() && *dropout != 0)
            refuse("model.dropout", *dropout, "null");
        vocabulary_.whole_pieces = flag(model, "ignore_merges");
        vocabulary_.fuses_unknown = flag(model, "fuse_unk") && !is_byte_level_;
        object(model, "vocab");
        array(model, "merges");
    }
    vocabulary_.byte_fallback = flag(model, "byte_fallback");
    if (is_byte_level_ && vocabulary_.byte_fallback)
        refuse("model.byte_fallback", true, "false with ByteLevel");
    if (!is_byte_level_) read_unknown(model);
}

/// Reads the token for characters without a token: BPE has its text, Unigram its id.
void TokenizerJsonReader::read_unknown(const JsonValue& model) {
    const bool is_unigram = vocabulary_.model == SubwordModel::unigram;
    const JsonValue* const unknown = model.find_value(is_unigram ? "unk_id" : "unk_token");
    if (!unknown) return;
    if (is_unigram) {
        vocabulary_.unknown = id_of(*unknown, "unk_id");
        return;
    }
    if (!unknown->is_string()) refuse("model.unk_token", *unknown, "a text");
    JoinedTexts::Reader names(names_);
    for (const std::int32_t id : ids_)
        if (names.next() == unknown->text()) vocabulary_.unknown = id;
    if (vocabulary_.unknown < 0) refuse("model.unk_token", *unknown, "a token of the vocabulary");
}

BytePairVocabulary TokenizerJsonReader::read_encoder(const JsonValue& value, std::string_view merges) {
    check(value.is_object(), "expected an object of tokens and their ids");
    if (merges.starts_with(utf8_byte_order_mark)) merges.remove_prefix(utf8_byte_order_mark.size());
    for (bool is_first = true; !merges.empty(); is_first = false) {
        const std::size_t end = std::min(merges.find('\n'), merges.size());
        std::string_view line = merges.substr(0, end);
        merges.remove_prefix(std::min(end + 1, merges.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (!line.empty() && !(is_first && line.starts_with("#version"))) add_merge(line);
    }
    vocabulary_.patterns.push_back({std::string(gpt2_pattern())});
    is_byte_level_ = true;
    return take_vocabulary();
}

// ---- While the text is parsed ----

void TokenizerJsonReader::add_token(std::string_view name, const JsonValue& id) {
    ids_.push_back(id_of(id, name));
    names_.add(name);
}

void TokenizerJsonReader::add_scored_token(const JsonValue& pair) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number())
        refuse("vocab", pair, "a token and its score");
    const std::string& name = pair[0].text();
    check(std::ssize(ids_) < max_byte_pair_vocabulary, "vocab: more than ", max_byte_pair_vocabulary,
          " tokens");
    check(!name.empty(), "vocab: token ", ids_.size(), " is empty");
    ids_.push_back(static_cast<std::int32_t>(ids_.size()));
    names_.add(name);
    vocabulary_.scores.push_back(pair[1].get<double>());
}

void TokenizerJsonReader::add_encoder_token(const std::string& name, const JsonValue& id) {
    add_token(name, id);
    // "<|endoftext|>" is an added token, not a byte sequence.
    if (!name.starts_with("<|") || !name.ends_with("|>")) return;
    check(vocabulary_.added.size() < max_added_tokens, "vocab: more than ", max_added_tokens,
          " tokens between <| and |>");
    vocabulary_.added.push_back({.id = ids_.back(), .text = name});
}

void TokenizerJsonReader::add_added_token(const JsonValue& token) {
    if (!token.is_object()) refuse("added_tokens", token, "objects");
    check(vocabulary_.added.size() < max_added_tokens, "added_tokens: more than ", max_added_tokens,
          " tokens");
    AddedToken added{.text = text(token, "content"),
                     .special = flag(token, "special"),
                     .normalized = flag(token, "normalized", true),
                     .lstrip = flag(token, "lstrip"),
                     .rstrip = flag(token, "rstrip"),
                     .single_word = flag(token, "single_word")};
    added.id = id_of(member(token, "id"), added.text);
    vocabulary_.added.push_back(std::move(added));
}

void TokenizerJsonReader::add_merge(const JsonValue& merge) {
    if (merge.is_string()) return add_merge(std::string_view(merge.text()));
    if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string())
        refuse("merges", merge, "\"a b\" or [\"a\", \"b\"]");
    merge_parts_.add(merge[0].text());
    merge_parts_.add(merge[1].text());
}

void TokenizerJsonReader::add_merge(std::string_view line) {
    const std::size_t space = line.find(' ');
    check(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos,
          "merges: ", merge_parts_.size() / 2, ": ", json_excerpt(line),
          "; expected two tokens with a space between them");
    merge_parts_.add(line.substr(0, space));
    merge_parts_.add(line.substr(space + 1));
}

// ---- After the text is parsed ----

BytePairVocabulary TokenizerJsonReader::take_vocabulary() {
    add_tokens();
    const TokenIndex index(vocabulary_.tokens);
    JoinedTexts::Reader names(added_names_);
    for (std::size_t i = 0; i < added_names_.size(); ++i) {
        const std::string_view name = names.next();
        const std::optional<std::string> bytes = bytes_of_characters(name);
        check(!bytes || index.find(*bytes) < 0, "vocab: ", json_excerpt(name), " occurs twice");
    }
    add_merges(index);
    return std::move(vocabulary_);
}

void TokenizerJsonReader::add_tokens() {
    const std::int32_t largest = ids_.empty() ? -1 : std::ranges::max(ids_);
    check_missing_ids(largest, names_.size() + vocabulary_.added.size());
    std::vector<std::string>& tokens = vocabulary_.tokens;
    tokens.resize(static_cast<std::size_t>(largest + 1));
    std::vector<bool> seen(tokens.size());
    const AddedTexts added(vocabulary_.added);
    JoinedTexts::Reader names(names_);
    for (const std::int32_t id : ids_) {
        const std::string_view name = names.next();
        const auto index = static_cast<std::size_t>(id);
        check(!seen[index], "vocab: id ", id, " occurs twice");
        seen[index] = true;
        if (is_byte_level_) {
            add_byte_token(id, name, added.contains(id, name));
        } else {
            check(!name.empty(), "vocab: token ", id, " is empty");
            tokens[index] = name;
        }
    }
    names_.release();
    std::vector<std::int32_t>().swap(ids_);
    if (vocabulary_.model != SubwordModel::unigram) return;
    // In the tokenizers library, text becomes special tokens even if they are not asked for. Here it never
    // does.
    vocabulary_.is_piece.assign(tokens.size(), true);
    if (vocabulary_.unknown >= 0 && vocabulary_.unknown < std::ssize(tokens))
        vocabulary_.is_piece[static_cast<std::size_t>(vocabulary_.unknown)] = false;
    for (const AddedToken& token : vocabulary_.added)
        if (token.special && token.id < std::ssize(tokens))
            vocabulary_.is_piece[static_cast<std::size_t>(token.id)] = false;
}

void TokenizerJsonReader::add_byte_token(std::int32_t id, std::string_view name, bool is_added) {
    std::optional<std::string> bytes = bytes_of_characters(name);
    // An added token's text is plain text. It is not written in the characters that represent bytes.
    if (bytes != name && is_added) {
        added_names_.add(name);
        return;
    }
    check(bytes.has_value() && !bytes->empty(), "vocab: token ", id, ", ", json_excerpt(name),
          ", is not written in the characters that stand for bytes");
    vocabulary_.tokens[static_cast<std::size_t>(id)] = std::move(*bytes);
}

/// Returns a token's bytes; empty if its name represents none.
std::string TokenizerJsonReader::bytes_of(std::string_view name) const {
    return is_byte_level_ ? bytes_of_characters(name).value_or("") : std::string(name);
}

void TokenizerJsonReader::add_merges(const TokenIndex& index) {
    std::string bytes;
    const auto id_of_bytes = [&](std::string_view first, std::string_view second = "") {
        const std::int32_t id = index.find(bytes);
        if (id < 0)
            throw Error(concat("merges: ", vocabulary_.merges.size(), ": ",
                               json_excerpt(concat(first, second)), " is not in the vocabulary"));
        return id;
    };
    vocabulary_.merges.reserve(merge_parts_.size() / 2);
    JoinedTexts::Reader parts(merge_parts_);
    for (std::size_t i = 0; i < merge_parts_.size(); i += 2) {
        const std::string_view left = parts.next(), right = parts.next();
        BytePairMerge merge;
        bytes = bytes_of(right);
        merge.right = id_of_bytes(right);
        bytes = bytes_of(left);
        merge.left = id_of_bytes(left);
        bytes += vocabulary_.tokens[static_cast<std::size_t>(merge.right)];
        merge.result = id_of_bytes(left, right);
        vocabulary_.merges.push_back(merge);
    }
    merge_parts_.release();
}

void TokenizerJsonReader::read_normalizer(const JsonValue& value) {
    if (!value.is_object()) refuse("normalizer", value, "an object");
    constexpr std::array forms = {std::pair{"NFC", UnicodeForm::nfc}, std::pair{"NFD", UnicodeForm::nfd},
                                  std::pair{"NFKC", UnicodeForm::nfkc}, std::pair{"NFKD", UnicodeForm::nfkd}};
    const std::string& type = text(value, "type");
    std::vector<NormalizerStep>& steps = vocabulary_.normalizer;
    if (const auto form =
            std::ranges::find(forms, type, [](const auto& pair) { return std::string(pair.first); });
        form != forms.end()) {
        steps.push_back(form->second);
    } else if (type == "Sequence") {
        for (const JsonValue& step : array(value, "normalizers").elements()) read_normalizer(step);
    } else if (type == "Lowercase") {
        steps.push_back(LowercaseStep{});
    } else if (type == "Prepend") {
        steps.push_back(PrependStep{text(value, "prepend")});
    } else if (type == "Replace") {
        const JsonValue& pattern = object(value, "pattern");
        if (!pattern.contains("String")) refuse("normalizer.pattern", pattern, "a String");
        steps.push_back(ReplaceStep{text(pattern, "String"), text(value, "content")});
    } else {
        refuse("normalizer.type", type, "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Prepend or Replace");
    }
}

void TokenizerJsonReader::read_pre_tokenizer(const JsonValue& value, const char* place) {
    if (!value.is_object()) refuse(place, value, "an object");
    const std::string& type = text(value, "type");
    if (type == "Sequence") {
        for (const JsonValue& step : array(value, "pretokenizers").elements())
            read_pre_tokenizer(step, "pretokenizers");
    } else if (type == "ByteLevel") {
        read_byte_level(value);
    } else if (type == "Split") {
        read_split(value);
    } else if (type == "Digits") {
        add_pattern(flag(value, "individual_digits") ? "\\p{N}" : "\\p{N}+");
    } else if (type == "Metaspace") {
        read_metaspace(value);
    } else {
        refuse(concat(place, ".type"), type, "Sequence, ByteLevel, Metaspace, Split or Digits");
    }
    check(!vocabulary_.metaspace || (!is_byte_level_ && vocabulary_.patterns.empty()),
          "pre_tokenizer: has Metaspace and another step, which is not supported");
}

void TokenizerJsonReader::add_pattern(std::string regex, bool must_cover) {
    check(!is_byte_level_, "pre_tokenizer: ByteLevel is not the last step");
    vocabulary_.patterns.push_back({std::move(regex), must_cover});
}

void TokenizerJsonReader::read_byte_level(const JsonValue& value) {
    // With this option, an encoded and decoded text would begin with a space that the original text does not
    // have.
    if (flag(value, "add_prefix_space", true))
        refuse("pre_tokenizer.add_prefix_space", true, "false (it is not supported)");
    check(!is_byte_level_, "pre_tokenizer: has ByteLevel twice");
    if (flag(value, "use_regex", true)) add_pattern(std::string(gpt2_pattern()));
    is_byte_level_ = true;
}

void TokenizerJsonReader::read_metaspace(const JsonValue& value) {
    if (text(value, "replacement") != blank_symbol)
        refuse("pre_tokenizer.replacement", text(value, "replacement"), "U+2581");
    check(!vocabulary_.metaspace, "pre_tokenizer: has Metaspace twice");
    Metaspace& metaspace = vocabulary_.metaspace.emplace();
    metaspace.splits = flag(value, "split", true);
    // Older files have add_prefix_space in place of prepend_scheme.
    const JsonValue* const scheme = value.find_value("prepend_scheme");
    if (!scheme) {
        metaspace.prepend =
            flag(value, "add_prefix_space", true) ? Metaspace::Prepend::always : Metaspace::Prepend::never;
    } else if (*scheme == "first") {
        metaspace.prepend = Metaspace::Prepend::first;
    } else if (*scheme == "never") {
        metaspace.prepend = Metaspace::Prepend::never;
    } else if (*scheme != "always") {
        refuse("pre_tokenizer.prepend_scheme", *scheme, "always, first or never");
    }
}

/// Whether the normalizer replaces each `text`, so that no Split at it finds one.
bool TokenizerJsonReader::is_replaced(const std::string& text) const {
    if (vocabulary_.normalizer.empty()) return false;
    const auto* const last = std::get_if<ReplaceStep>(&vocabulary_.normalizer.back());
    return last && last->from == text && last->to.find(text.front()) == std::string::npos;
}

void TokenizerJsonReader::read_split(const JsonValue& value) {
    const JsonValue& pattern = object(value, "pattern");
    const bool invert = flag(value, "invert");
    const std::string& behavior = text(value, "behavior");
    // Inverted "Removed" removes the text between matches.
    const bool must_cover = behavior == "Removed" && invert;
    // Gemma's files cut at blanks, of which the normalizer leaves none.
    if (pattern.contains("String") && text(pattern, "String").size() == 1 &&
        is_replaced(text(pattern, "String")))
        return;
    if (behavior != "Isolated" && !must_cover) refuse("pre_tokenizer.behavior", behavior, "\"Isolated\"");
    if (pattern.contains("Regex")) return add_pattern(text(pattern, "Regex"), must_cover);
    std::string literal;
    for (const char c : text(pattern, "String")) {
        if (std::string_view("\\^$.[|()?*+{}#-").find(c) != std::string_view::npos) literal += '\\';
        literal += c;
    }
    check(!literal.empty(), "pre_tokenizer: an empty pattern");
    add_pattern(std::move(literal), must_cover);
}

/// The decoder of a model of characters. A byte-level model has only one.
void TokenizerJsonReader::read_decoder(const JsonValue& value) {
    if (!value.is_object()) refuse("decoder", value, "an object");
    const std::string& type = text(value, "type");
    if (type == "Sequence") {
        for (const JsonValue& step : array(value, "decoders").elements()) read_decoder(step);
    } else if (type == "Metaspace") {
        vocabulary_.decodes_blanks = true;
        const JsonValue* const scheme = value.find("prepend_scheme");
        vocabulary_.removes_first_blank = scheme ? *scheme != "never" : flag(value, "add_prefix_space", true);
    } else if (type == "Replace") {
        const JsonValue& pattern = object(value, "pattern");
        if (!pattern.contains("String") || text(pattern, "String") != blank_symbol ||
            text(value, "content") != " ")
            refuse("decoder", value, "a blank for U+2581");
        vocabulary_.decodes_blanks = true;
    } else if (type == "Strip") {
        if (text(value, "content") != " " || member(value, "start") != 1 || member(value, "stop") != 0)
            refuse("decoder", value, "one blank at the start");
        vocabulary_.removes_first_blank = true;
    } else if (type == "ByteLevel") {
        refuse("decoder.type", type, "another one, because the pre_tokenizer has no ByteLevel");
    } else if (type != "ByteFallback" && type != "Fuse") {
        refuse("decoder.type", type, "Sequence, Metaspace, Replace, ByteFallback, Fuse or Strip");
    }
}

void TokenizerJsonReader::read_post_processor(const JsonValue& value) {
    if (!value.is_object()) refuse("post_processor", value, "an object");
    const std::string& type = text(value, "type");
    if (type == "Sequence") {
        for (const JsonValue& step : array(value, "processors").elements())
            if (!step.is_null()) read_post_processor(step);
    } else if (type == "TemplateProcessing") {
        read_template(value);
    } else if (type == "RobertaProcessing") {
        vocabulary_.before.push_back(named_id(value, "cls"));
        vocabulary_.after.push_back(named_id(value, "sep"));
    } else if (type != "ByteLevel") {  // ByteLevel changes only token offsets
        refuse("post_processor.type", type, "Sequence, TemplateProcessing, RobertaProcessing or ByteLevel");
    }
}

/// Reads the template for a single text: special tokens before and after the text A.
void TokenizerJsonReader::read_template(const JsonValue& value) {
    check(vocabulary_.before.empty() && vocabulary_.after.empty(),
          "post_processor: adds tokens in two steps; expected one");
    bool has_text = false;
    for (const JsonValue& piece : array(value, "single").elements()) {
        if (piece.contains("Sequence")) {
            if (has_text || text(object(piece, "Sequence"), "id") != "A")
                refuse("post_processor.single", piece, "the text A once");
            has_text = true;
            continue;
        }
        if (!piece.is_object()) refuse("post_processor.single", piece, "objects");
        const std::string& token = text(object(piece, "SpecialToken"), "id");
        const JsonValue* const found = object(value, "special_tokens").find(token);
        check(found && found->is_object(), "post_processor: special_tokens has no ", json_excerpt(token));
        for (const JsonValue& id : array(*found, "ids").elements())
            (has_text ? vocabulary_.after : vocabulary_.before).push_back(id_of(id, token));
    }
    check(has_text, "post_processor.single: has no text A");
}

}  // namespace gradtile
