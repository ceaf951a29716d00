#include <gradtile/train/tokenizers/tokenizer_folder.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <unordered_map>

#include <gradtile/core/check.h>
#include <gradtile/core/io/file_system.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/tokenizers/internal/token_index.h>
#include <gradtile/train/tokenizers/internal/tokenizer_file.h>

namespace gradtile {
namespace {

namespace fs = std::filesystem;
using enum MemberMeaning;

/// The largest known files have 1.2 MB. A checkpoint holds all of them in one text with the tokenizer.
constexpr std::uint64_t max_file_bytes = std::uint64_t{1} << 22;
constexpr std::string_view end_of_text = "<|endoftext|>";
/// This member may have more values than a JsonValue may hold: nine per token, for thousands of tokens.
constexpr std::string_view decoder_name = "added_tokens_decoder";

constexpr auto config_members = std::to_array<KnownMember>({
    {"tokenizer_class"},
    {"add_bos_token"},
    {"add_eos_token"},
    {"added_tokens_decoder"},
    {"bos_token"},
    {"eos_token"},
    {"unk_token"},
    {"sep_token"},
    {"pad_token"},
    {"cls_token"},
    {"mask_token"},
    {"additional_special_tokens"},
    {"extra_special_tokens"},
    {"model_specific_special_tokens"},
    {"chat_template"},
    // Decoding options, which do not change how text is encoded.
    {"clean_up_tokenization_spaces", harmless},
    {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", harmless},
    {"errors", harmless},
    {"spaces_between_special_tokens", harmless},
    // Only for calls that ask for it.
    {"max_len", harmless},
    {"max_length", harmless},
    {"model_max_length", harmless},
    {"pad_to_multiple_of", harmless},
    {"pad_token_type_id", harmless},
    {"padding", harmless},
    {"padding_side", harmless},
    {"stride", harmless},
    {"truncation", harmless},
    {"truncation_side", harmless},
    {"truncation_strategy", harmless},
    {"model_input_names", harmless},
    {"chat_control_tokens", harmless},
    {"response_schema", harmless},
    {"response_template", harmless},
    // SentencePiece only.
    {"legacy", harmless},
    {"sp_model_kwargs", harmless},
    {"use_default_system_prompt", harmless},
    // Names and records. The folder's files take precedence over file names.
    {"_commit_hash", harmless},
    {"backend", harmless},
    {"device_map", harmless},
    {"files_loaded", harmless},
    {"from_slow", harmless},
    {"full_tokenizer_file", harmless},
    {"is_local", harmless},
    {"local_files_only", harmless},
    {"merges_file", harmless},
    {"name_or_path", harmless},
    {"processor_class", harmless},
    {"slow_tokenizer_class", harmless},
    {"fast", harmless},
    {"special_tokens_map_file", harmless},
    {"tokenizer_file", harmless},
    {"transformers_version", harmless},
    {"trust_remote_code", harmless},
    {"use_fast", harmless},
    {"verbose", harmless},
    {"vocab_file", harmless},
    {"vocab_size", harmless},
    {"add_prefix_space"},
    {"auto_map", refused},
    {"do_lower_case", refused, "[false]"},
    {"fix_mistral_regex", refused, "[false]"},
    {"init_inputs", refused, "[[]]"},
    {"split_special_tokens", refused, "[false]"},
});

constexpr std::array<std::string_view, 7> named_tokens{"bos_token", "eos_token", "unk_token", "sep_token",
                                                       "pad_token", "cls_token", "mask_token"};

constexpr auto token_members = std::to_array<KnownMember>({
    {"content"},
    {"__type", harmless},
    {"normalized", harmless},
    {"special", harmless},
    {"lstrip"},
    {"rstrip"},
    {"single_word"},
});

/// A class of transformers, without "Fast" at its end.
struct TokenizerClass {
    std::string_view name;
    /// How the class cuts text where no tokenizer.json says it, and in transformers 5 often in place of
    /// tokenizer.json; empty: as the tokenizer's file says.
    std::string_view (*pattern)() = nullptr;
    std::vector<NormalizerStep> normalizer = {};
    /// Members that have a default, and the token that is their default.
    std::vector<std::pair<std::string_view, std::string_view>> default_tokens = {};
};

const std::vector<TokenizerClass>& known_classes() {
    static const std::vector<TokenizerClass> classes{
        {.name = ""},
        {.name = "PreTrainedTokenizer"},
        {.name = "TokenizersBackend"},
        {.name = "LlamaTokenizer"},
        {.name = "GemmaTokenizer"},
        {.name = "GPT2Tokenizer",
         .pattern = gpt2_pattern,
         .default_tokens = {{"bos_token", end_of_text},
                            {"eos_token", end_of_text},
                            {"unk_token", end_of_text}}},
        {.name = "GPTNeoXTokenizer",
         .pattern = gpt2_pattern,
         .normalizer = {UnicodeForm::nfc},
         .default_tokens = {{"bos_token", end_of_text},
                            {"eos_token", end_of_text},
                            {"unk_token", end_of_text},
                            {"pad_token", "<|padding|>"}}},
        {.name = "Qwen2Tokenizer",
         .pattern = qwen2_pattern,
         .normalizer = {UnicodeForm::nfc},
         .default_tokens = {
             {"eos_token", end_of_text}, {"pad_token", end_of_text}, {"unk_token", end_of_text}}}};
    return classes;
}

JsonValue object_of(const std::string& text, const std::string& source,
                    const std::vector<JsonRoute>& routes = {}) {
    JsonValue value = parse_json(text, source, routes);
    check(value.is_object(), source, ": expected an object");
    return value;
}

class FolderReader {
  public:
    FolderReader(const std::string& folder, UnknownMembers& unknown) : folder_(folder), unknown_(unknown) {}

    TokenizerFolder read(const std::string& tokenizer_class) {
        if (!choose_file()) return {};
        TokenizerFile read = read_tokenizer_file(path_of(file_name_));
        vocabulary_ = std::move(read.vocabulary);
        if (!has_added_tokens_) vocab_index_.emplace(vocabulary_.tokens);
        for (std::size_t i = 0; i < vocabulary_.added.size(); ++i)
            added_places_.emplace(vocabulary_.added[i].text, i);
        for (const char* const name : tokenizer_folder_files)
            if (fs::exists(path_of(name)))
                result_.files[name] = read_text_file(path_of(name), max_file_bytes);
        JsonElements decoder(JsonElements::Of::object, [&](const std::string& id, const JsonValue& token) {
            check(decoder_.size() < max_added_tokens, decoder_name, ": more than ", max_added_tokens,
                  " tokens");
            decoder_.push_back({id, token});
        });
        const JsonValue config = object_in("tokenizer_config.json", {{{decoder_name}, decoder}}),
                        named = object_in("special_tokens_map.json");
        check_members(config, tokenizer_members_of(config), path_of("tokenizer_config.json"), unknown_);
        check_members(named, tokenizer_members_of(named), path_of("special_tokens_map.json"), unknown_);
        read_class(text_or(config, "tokenizer_class", tokenizer_class));
        check_prefix(config);
        read_added_tokens(config);
        read_named_tokens(config, path_of("tokenizer_config.json"));
        read_named_tokens(named, path_of("special_tokens_map.json"));
        add_default_tokens(config, named);
        read_text_template(config, named);
        read_chat_template();
        result_.tokenizer = Tokenizer::byte_pairs(std::move(vocabulary_), folder_, std::move(read.file));
        return std::move(result_);
    }

  private:
    /// Chooses the file as transformers does. Returns false if there is none.
    bool choose_file() {
        for (const char* const name : {"tokenizer.json", "vocab.json", "tokenizer.model"}) {
            if (!fs::exists(path_of(name))) continue;
            file_name_ = name;
            has_tokenizer_json_ = file_name_ == std::string_view("tokenizer.json");
            has_added_tokens_ = file_name_ != std::string_view("vocab.json");
            return true;
        }
        return false;
    }

    std::string path_of(const char* name) const { return (fs::path(folder_) / name).string(); }

    JsonValue object_in(const char* name, const std::vector<JsonRoute>& routes = {}) const {
        const auto file = result_.files.find(name);
        return file == result_.files.end() ? JsonValue::object()
                                           : object_of(file->second, path_of(name), routes);
    }

    /// transformers takes every member "..._token" with a text as a token's name.
    static std::vector<KnownMember> tokenizer_members_of(const JsonValue& config) {
        std::vector<KnownMember> members = tokenizer_members();
        for (const auto& [name, value] : config.items())
            if (name.ends_with("_token") && is_token(value) &&
                std::ranges::find(config_members, name, &KnownMember::name) == config_members.end())
                members.push_back({name});
        return members;
    }
    static bool is_token(const JsonValue& value) { return value.is_string() || value.is_object(); }
    static bool is_named_token(std::string_view name) {
        return std::ranges::find(named_tokens, name) != named_tokens.end();
    }

    std::string text_or(const JsonValue& value, const char* name, const std::string& otherwise) const {
        const JsonValue* const found = value.find_value(name);
        if (!found) return otherwise;
        check(found->is_string(), path_of("tokenizer_config.json"), ": ", name, ": ", json_excerpt(*found),
              "; expected a text");
        return found->text();
    }
    /// Returns nullopt for null and for a member that is absent.
    static std::optional<bool> flag(const JsonValue& value, const char* name, const std::string& place) {
        const JsonValue* const found = value.find_value(name);
        if (!found) return std::nullopt;
        check(found->is_boolean(), place, ": ", name, ": ", json_excerpt(*found), "; expected true or false");
        return found->boolean();
    }
    std::optional<bool> flag(const JsonValue& config, const char* name) const {
        return flag(config, name, path_of("tokenizer_config.json"));
    }

    void read_class(std::string_view name) {
        const std::string place = path_of("tokenizer_config.json");
        std::string_view base = name;
        if (base.ends_with("Fast")) base.remove_suffix(4);
        const auto found = std::ranges::find(known_classes(), base, &TokenizerClass::name);
        check(found != known_classes().end(), place, ": tokenizer_class: '",
              printable_name(std::string(name)), "' is not supported; expected ", known_names(),
              ", or --tokenizer with the file of the tokenizer");
        class_ = &*found;
        if (!class_->pattern) return;
        const std::vector<SplitPattern> patterns{{std::string(class_->pattern())}};
        if (!has_added_tokens_) {
            vocabulary_.patterns = patterns;
            vocabulary_.normalizer = class_->normalizer;
        }
        if (vocabulary_.patterns != patterns || vocabulary_.normalizer != class_->normalizer ||
            vocabulary_.whole_pieces)
            result_.notes.push_back(concat(place, ": tokenizer_class: '", name,
                                           "' cuts text otherwise than tokenizer.json, which is used, as in ",
                                           "transformers 4; transformers 5 may use the class"));
    }
    static std::string known_names() {
        std::string text;
        for (const std::string_view name : tokenizer_classes())
            if (!name.empty()) text += concat(text.empty() ? "" : ", ", name);
        return text;
    }

    /// transformers makes another tokenizer if add_prefix_space differs from tokenizer.json.
    void check_prefix(const JsonValue& config) const {
        const std::optional<bool> wanted = flag(config, "add_prefix_space");
        const auto prepends = [](const NormalizerStep& step) {
            const auto* const model = std::get_if<SentencePieceStep>(&step);
            return std::holds_alternative<PrependStep>(step) || (model && model->adds_blank);
        };
        const auto& metaspace = vocabulary_.metaspace;
        const bool has_prefix = (metaspace && metaspace->prepend != Metaspace::Prepend::never) ||
                                std::ranges::any_of(vocabulary_.normalizer, prepends);
        check(!wanted || *wanted == has_prefix, path_of("tokenizer_config.json"),
              ": add_prefix_space: ", wanted.value_or(false) ? "true" : "false", ", but ", file_name_,
              " puts ", has_prefix ? "a blank" : "no blank", " before a text");
    }

    /// Returns a token's text; the token is written as a text or as an object.
    std::string token_text(const JsonValue& token, const std::string& place) {
        if (token.is_string()) return token.get<std::string>();
        check(token.is_object() && token.contains("content") && token["content"].is_string(), place, ": ",
              json_excerpt(token), "; expected a token: a text, or an object with its content");
        check_members(token, token_members, place, unknown_);
        return token["content"].get<std::string>();
    }

    AddedToken* added(const std::string& text) {
        const auto found = added_places_.find(text);
        return found == added_places_.end() ? nullptr : &vocabulary_.added[found->second];
    }
    void append(AddedToken token, const std::string& place) {
        check(vocabulary_.added.size() < max_added_tokens, place, ": more than ", max_added_tokens,
              " added tokens");
        added_places_.emplace(token.text, vocabulary_.added.size());
        vocabulary_.added.push_back(std::move(token));
    }

    void read_added_tokens(const JsonValue& config) {
        if (const JsonValue* const decoder = config.find_value(decoder_name)) {
            const std::string place = concat(path_of("tokenizer_config.json"), ": ", decoder_name);
            check(decoder->is_object(), place, ": expected an object");
            for (const auto& [id, token] : decoder_) {
                std::int32_t number = -1;
                const auto parsed = std::from_chars(id.data(), id.data() + id.size(), number);
                check(parsed.ec == std::errc() && parsed.ptr == id.data() + id.size() && number >= 0, place,
                      ": '", printable_name(id), "'; expected a token id");
                const auto is_set = [&, &token = token](const char* name) {
                    return flag(token, name, concat(place, ": ", number)).value_or(false);
                };
                add_token({.id = number,
                           .text = token_text(token, place),
                           .special = is_set("special"),
                           .lstrip = is_set("lstrip"),
                           .rstrip = is_set("rstrip"),
                           .single_word = is_set("single_word")},
                          place);
            }
        }
        const JsonValue tokens = object_in("added_tokens.json");
        for (const auto& [text, id] : tokens.items()) {
            const std::string place = path_of("added_tokens.json");
            check(id.fits<std::int32_t>() && id.get<std::int32_t>() >= 0 &&
                      id.get<std::int32_t>() < max_byte_pair_vocabulary,
                  place, ": ", json_excerpt(text), ": ", json_excerpt(id), "; expected a token id");
            add_token({.id = id.get<std::int32_t>(), .text = text, .special = false}, place);
        }
    }

    /// Adds a token to vocab.json's vocabulary. Another file must have it already.
    void add_token(const AddedToken& token, const std::string& place) {
        const AddedToken* const known = added(token.text);
        check(known ? known->id == token.id : !has_added_tokens_, place, ": ", json_excerpt(token.text),
              " has id ", token.id, "; expected ",
              known ? concat("its id ", known->id) : concat("a token of added_tokens in ", file_name_));
        if (!known) return append(token, place);
        check(!has_tokenizer_json_ || (known->lstrip == token.lstrip && known->rstrip == token.rstrip &&
                                       known->single_word == token.single_word),
              place, ": ", json_excerpt(token.text),
              " has another lstrip, rstrip or single_word than in tokenizer.json");
    }

    /// A named token becomes an added token: its text has its id wherever it occurs.
    void add_named_token(const JsonValue& token, const std::string& place) {
        if (token.is_null()) return;
        const std::string text = token_text(token, place);
        if (AddedToken* const known = added(text)) {
            if (!has_added_tokens_) known->special = true;
            return;
        }
        const std::int32_t id = vocab_index_ ? vocab_index_->find(text) : -1;
        check(
            id >= 0, place, ": ", json_excerpt(text), " is not ",
            has_added_tokens_ ? concat("one of added_tokens in ", file_name_) : std::string("in vocab.json"));
        append({.id = id, .text = text}, place);
    }

    void read_named_tokens(const JsonValue& value, const std::string& file) {
        for (const auto& [name, token] : value.items()) {
            const std::string place = concat(file, ": ", printable_name(name));
            if ((name.ends_with("_token") && is_token(token)) || is_named_token(name))
                add_named_token(token, place);
            const bool is_list = name == "additional_special_tokens" || name == "extra_special_tokens" ||
                                 name == "model_specific_special_tokens";
            if (!is_list || token.is_null()) continue;
            check(token.is_array() || token.is_object(), place, ": expected a list of tokens");
            if (token.is_array())
                for (const JsonValue& one : token.elements()) add_named_token(one, place);
            else
                for (const auto& [key, one] : token.items()) add_named_token(one, place);
        }
    }

    /// The class names tokens where the files do not.
    void add_default_tokens(const JsonValue& config, const JsonValue& named) {
        for (const auto& [name, token] : class_->default_tokens)
            if (!config.contains(name) && !named.contains(name))
                add_named_token(std::string(token), concat(path_of("tokenizer_config.json"), ": ", name));
    }

    /// Returns the id for bos_token or eos_token.
    std::int32_t id_of_named(const JsonValue& config, const JsonValue& named, const char* name,
                             const std::string& default_text) {
        const std::string place = concat(path_of("tokenizer_config.json"), ": ", name);
        const JsonValue& holder = config.contains(name) ? config : named;
        const std::string text =
            holder.contains(name) && !holder[name].is_null() ? token_text(holder[name], place) : default_text;
        const AddedToken* const token = added(text);
        check(token != nullptr, place, ": ", json_excerpt(text), " is not a token of the vocabulary");
        return token->id;
    }

    void read_text_template(const JsonValue& config, const JsonValue& named) {
        const struct {
            const char *member, *token, *text_in_model;
            bool in_model;  // whether transformers adds it to SentencePiece's models unless a file says
                            // otherwise
            std::vector<std::int32_t>& ids;
        } sides[] = {{"add_bos_token", "bos_token", "<s>", true, vocabulary_.before},
                     {"add_eos_token", "eos_token", "</s>", false, vocabulary_.after}};
        const bool is_model = has_added_tokens_ && !has_tokenizer_json_;
        for (const auto& side : sides) {
            std::optional<bool> adds = flag(config, side.member);
            if (!adds && is_model) adds = side.in_model;
            // Whether the member or the post-processor counts depends on the transformers version.
            check(!adds || !has_tokenizer_json_ || *adds == !side.ids.empty(),
                  path_of("tokenizer_config.json"), ": ", side.member, ": ",
                  adds.value_or(false) ? "true" : "false", ", but tokenizer.json's post_processor adds ",
                  side.ids.empty() ? "no token" : "one",
                  "; --tokenizer with the path of tokenizer.json uses that file alone");
            if (adds.value_or(false) && !has_tokenizer_json_)
                side.ids.push_back(id_of_named(config, named, side.token,
                                               is_model ? side.text_in_model : std::string(end_of_text)));
        }
    }

    void read_chat_template() {
        constexpr const char* config = "tokenizer_config.json";
        if (const auto file = result_.files.find("chat_template.jinja"); file != result_.files.end()) {
            result_.chat_template = file->second;
        } else if (result_.files.contains(config)) {
            result_.chat_template = template_of_tokenizer_config(result_.files[config], path_of(config));
        }
    }

    std::string folder_;
    UnknownMembers& unknown_;
    const char* file_name_ = "";
    bool has_tokenizer_json_ = false;
    const TokenizerClass* class_ = nullptr;
    bool has_added_tokens_ = false;  // the file has all added tokens, as each file but vocab.json
    BytePairVocabulary vocabulary_;
    std::unordered_map<std::string, std::size_t> added_places_;  // of vocabulary_.added, by text
    std::optional<TokenIndex> vocab_index_;                      // of vocab.json
    JsonValue::Object decoder_;  // added_tokens_decoder in tokenizer_config.json
    TokenizerFolder result_;
};

}  // namespace

std::vector<KnownMember> tokenizer_members() {
    return {config_members.begin(), config_members.end()};
}

std::vector<std::string_view> tokenizer_classes() {
    std::vector<std::string_view> names;
    for (const TokenizerClass& known : known_classes()) names.push_back(known.name);
    return names;
}

std::optional<std::string> template_of_tokenizer_config(const std::string& text, const std::string& source) {
    SkippedJson decoder;
    const JsonValue config = object_of(text, source, {{{decoder_name}, decoder}});
    const JsonValue* const given = config.find_value("chat_template");
    if (!given) return std::nullopt;
    const JsonValue& value = *given;
    if (value.is_string()) return value.get<std::string>();
    const std::string place = concat(source, ": chat_template");
    check(value.is_array(), place, ": ", json_excerpt(value), "; expected a text or a list");
    std::optional<std::string> found;
    for (const JsonValue& one : value.elements()) {
        check(one.contains("name") && one["name"].is_string() && one.contains("template") &&
                  one["template"].is_string(),
              place, ": ", json_excerpt(one), "; expected a name and a template");
        if (one["name"] == "default") found = one["template"].get<std::string>();
    }
    return found;
}

TokenizerFolder load_tokenizer_folder(const std::string& folder, const std::string& tokenizer_class,
                                      UnknownMembers& unknown) {
    return FolderReader(folder, unknown).read(tokenizer_class);
}

}  // namespace gradtile
