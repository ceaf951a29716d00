#include <gradtile/train/tokenizers/tokenizer_files.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <gradtile/core/check.h>
#include <gradtile/core/io/data_file.h>
#include <gradtile/core/io/durable_file.h>
#include <gradtile/core/text/message.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/tokenizers/internal/base64.h>
#include <gradtile/train/tokenizers/internal/sentencepiece_model.h>
#include <gradtile/train/tokenizers/internal/tokenizer_file.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

namespace gradtile {
namespace {

namespace fs = std::filesystem;

/// The largest tokenizer files in use have 30 MB. As a string in a checkpoint, a file has up to twice its
/// bytes.
constexpr std::int64_t max_tokenizer_bytes = std::int64_t{1} << 25;

std::string tokenizer_file_text(const std::string& path) {
    const DataFile file(path);
    check(file.size() <= max_tokenizer_bytes, path, ": has ", file.size(),
          " bytes; expected a tokenizer of at most ", max_tokenizer_bytes);
    std::string text(static_cast<std::size_t>(file.size()), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
}

/// Finds out whether a text is an object without a member "model" that is an object, as a vocab.json is.
/// There "model" may be a word in the vocabulary, whose value is an id.
class ModelFinder final : public JsonHandler {
  public:
    bool is_object_without_model() const { return is_object_ && !has_model_; }

    void scalar(JsonValue) override {}
    void name(std::string name) override { is_model_ = depth_ == 1 && name == "model"; }
    void begin_array() override { begin(); }
    void begin_object() override {
        is_object_ = is_object_ || depth_ == 0;
        has_model_ = has_model_ || (is_model_ && depth_ == 1);
        begin();
    }
    void end() override { --depth_; }

  private:
    void begin() { ++depth_; }

    int depth_ = 0;
    bool is_object_ = false;
    bool is_model_ = false;  // the last name was "model", in the outermost object
    bool has_model_ = false;
};

/// Returns the first name that exists in `path`'s folder.
std::string file_beside(const std::string& path, std::initializer_list<const char*> names) {
    std::string list;
    for (const char* const name : names) {
        const fs::path file = fs::path(path).parent_path() / name;
        if (fs::exists(file)) return file.string();
        list += concat(list.empty() ? "" : " or ", name);
    }
    throw Error(concat(path, ": expected ", list, " in the same folder"));
}

struct KnownRanks {
    std::string_view name;  // a part of the file's name that selects this row
    std::string_view (*pattern)();
    std::vector<AddedToken> added;
};

KnownRanks known_ranks(const std::string& path) {
    const std::string name = fs::path(path).filename().string();
    const AddedToken gpt2_end{.id = 50256, .text = "<|endoftext|>"};
    const std::vector<KnownRanks> known = {
        {"cl100k_base",
         cl100k_pattern,
         {{.id = 100257, .text = "<|endoftext|>"},
          {.id = 100258, .text = "<|fim_prefix|>"},
          {.id = 100259, .text = "<|fim_middle|>"},
          {.id = 100260, .text = "<|fim_suffix|>"},
          {.id = 100276, .text = "<|endofprompt|>"}}},
        {"o200k_base",
         o200k_pattern,
         {{.id = 199999, .text = "<|endoftext|>"}, {.id = 200018, .text = "<|endofprompt|>"}}},
        {"r50k_base", gpt2_pattern, {gpt2_end}},
        {"p50k_base", gpt2_pattern, {gpt2_end}},
        {"cl100k", cl100k_pattern, {}},
        {"o200k", o200k_pattern, {}},
        {"llama3", llama3_pattern, {}},
        {"gpt2", gpt2_pattern, {}}};
    for (const KnownRanks& ranks : known)
        if (name.find(ranks.name) != std::string::npos) return ranks;
    throw Error(concat(path, ": the name of a rank file tells the split; expected cl100k_base, o200k_base, ",
                       "r50k_base, p50k_base, cl100k, o200k, llama3 or gpt2 in it"));
}

BytePairVocabulary vocabulary_of_tiktoken(const std::string& path) {
    const KnownRanks known = known_ranks(path);
    BytePairVocabulary vocabulary = vocabulary_of_ranks(tokenizer_file_text(path), path);
    vocabulary.patterns.push_back({std::string(known.pattern())});
    vocabulary.added = known.added;
    return vocabulary;
}

/// Llama 3's tokenizer.model is a rank file, which is text. SentencePiece's models are binary.
bool is_rank_file(std::string_view text) {
    return text.find('\0') == std::string_view::npos && is_utf8(text);
}

std::shared_ptr<const TokenizerSource> source_of(const char* name, std::string content) {
    return std::make_shared<const TokenizerSource>(name, std::move(content));
}

BytePairVocabulary vocabulary_of_llama3_model(std::string_view text, const std::string& path) {
    BytePairVocabulary vocabulary = vocabulary_of_ranks(text, path);
    vocabulary.patterns.push_back({std::string(llama3_pattern())});
    constexpr std::int32_t special_tokens = 256;
    const auto first = static_cast<std::int32_t>(vocabulary.tokens.size());
    vocabulary.added = {{.id = first, .text = "<|begin_of_text|>"},
                        {.id = first + 1, .text = "<|end_of_text|>"},
                        {.id = first + 6, .text = "<|start_header_id|>"},
                        {.id = first + 7, .text = "<|end_header_id|>"},
                        {.id = first + 9, .text = "<|eot_id|>"}};
    for (std::int32_t place = 0, reserved = 0; place < special_tokens; ++place) {
        const std::int32_t id = first + place;
        if (std::ranges::find(vocabulary.added, id, &AddedToken::id) == vocabulary.added.end())
            vocabulary.added.push_back(
                {.id = id, .text = concat("<|reserved_special_token_", reserved++, "|>")});
    }
    return vocabulary;
}

}  // namespace

BytePairVocabulary vocabulary_of_ranks(std::string_view text, std::string_view source) {
    BytePairVocabulary vocabulary{.merges_by_id = true, .whole_pieces = true};
    const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n')) + 1;
    for (std::int64_t number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.empty()) continue;
        const std::size_t space = std::min(line.find(' '), line.size());
        std::optional<std::string> bytes = bytes_of_base64(line.substr(0, space));
        std::int32_t rank = -1;
        const char* const last = line.data() + line.size();
        const auto parsed = std::from_chars(std::min(line.data() + space + 1, last), last, rank);
        check(bytes && parsed.ec == std::errc() && parsed.ptr == last && rank >= 0 &&
                  rank < max_byte_pair_vocabulary,
              source, ": line ", number, ": '", printable_name(line),
              "'; expected a token in base64, a space and its rank (0 to ", max_byte_pair_vocabulary - 1,
              ")");
        const auto index = static_cast<std::size_t>(rank);
        if (index >= vocabulary.tokens.size()) {
            with_source(source, [&] { check_missing_ids(rank, lines); });
            vocabulary.tokens.resize(index + 1);
        }
        check(vocabulary.tokens[index].empty(), source, ": line ", number, ": rank ", rank, " occurs twice");
        vocabulary.tokens[index] = std::move(*bytes);
    }
    return vocabulary;
}

TokenizerFile read_tokenizer_file(const std::string& path) {
    const std::string name = fs::path(path).filename().string();
    if (name.ends_with("merges.txt") || name.ends_with(".bpe")) {
        const std::string encoder = file_beside(path, {"encoder.json", "vocab.json"});
        return {vocabulary_of_encoder_json(tokenizer_file_text(encoder), tokenizer_file_text(path), encoder)};
    }
    if (name.ends_with(".tiktoken")) return {vocabulary_of_tiktoken(path)};
    std::string text = tokenizer_file_text(path);
    if (name.find(".model") != std::string::npos) {
        if (is_rank_file(text)) return {vocabulary_of_llama3_model(text, path)};
        BytePairVocabulary vocabulary = vocabulary_of_sentencepiece(text, path);
        return {std::move(vocabulary), source_of("tokenizer.model", std::move(text))};
    }
    ModelFinder finder;
    if (name != "tokenizer.json") read_json(text, path, finder);
    if (finder.is_object_without_model())
        return {vocabulary_of_encoder_json(
            std::move(text), tokenizer_file_text(file_beside(path, {"vocab.bpe", "merges.txt"})), path)};
    BytePairVocabulary vocabulary = vocabulary_of_tokenizer_json(text, path);
    return {std::move(vocabulary), source_of("tokenizer.json", std::move(text))};
}

Tokenizer load_tokenizer(const std::string& path) {
    // The system would end the path at the NUL byte: what is appended to it below would have no effect.
    check(path.find('\0') == std::string::npos, "tokenizer: a path with a NUL byte");
    if (fs::is_directory(path)) {
        UnknownMembers unknown{.advice = "; to use only its tokenizer.json, name that file"};
        const TokenizerFolder found = load_tokenizer_folder(path, "", unknown);
        check(found.tokenizer.has_value(), path, ": is a directory without tokenizer.json and vocab.json");
        return *found.tokenizer;
    }
    TokenizerFile read = read_tokenizer_file(path);
    return Tokenizer::byte_pairs(std::move(read.vocabulary), path, std::move(read.file));
}

std::vector<std::string> tokenizer_inputs(const std::string& path) {
    std::vector<std::string> files{path};
    const bool is_folder = fs::is_directory(path);
    const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
    for (const char* const name : {"encoder.json", "vocab.json", "vocab.bpe", "merges.txt"})
        files.push_back(folder / name);
    if (!is_folder) return files;
    files.push_back(folder / "tokenizer.json");
    for (const char* const name : tokenizer_folder_files) files.push_back(folder / name);
    return files;
}

TokenizerKind tokenizer_kind_of(const std::string& setting) {
    for (const TokenizerKind kind : {TokenizerKind::characters, TokenizerKind::bytes})
        if (setting == name_of(kind)) return kind;
    return TokenizerKind::bpe;
}

std::optional<Tokenizer> tokenizer_of_setting(const std::string& setting) {
    if (tokenizer_kind_of(setting) != TokenizerKind::bpe) return std::nullopt;
    check(fs::exists(setting), "tokenizer: '", setting,
          "': no such file; expected characters, bytes, or the file of a tokenizer");
    return load_tokenizer(setting);
}

void save_tokenizer(const std::string& path, const Tokenizer& tokenizer) {
    check(tokenizer.kind() == TokenizerKind::bpe, path, ": tokenizer.json holds BPE tokenizers; this one is ",
          tokenizer.name());
    const std::string text = tokenizer.file().content;
    WholeFile(path, {std::as_bytes(std::span(text))}).commit();
}

}  // namespace gradtile
