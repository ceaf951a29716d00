// The keys of GGUF that describe a tokenizer.
#include <gradtile/tools/formats/gguf_metadata.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/tokenizers/byte_characters.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/internal/token_index.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

namespace gradtile {
namespace {

/// llama.cpp's numbers for token types (enum llama_token_type).
constexpr std::int32_t normal_token = 1, unknown_token = 2, control_token = 3, user_token = 4,
                       unused_token = 5, byte_token = 6;

std::uint32_t id_value(std::int64_t id) {
    return static_cast<std::uint32_t>(id);
}

/// Returns llama.cpp's name for a tokenizer's patterns. llama-bpe also keeps pieces that are tokens whole.
std::string split_name(const BytePairVocabulary& vocabulary, const std::string& source) {
    const std::string whole = vocabulary.whole_pieces ? " with whole pieces" : "";
    const struct {
        std::string_view name;
        std::vector<std::string_view> patterns;
        bool whole_pieces = false;
    } splits[] = {{"gpt-2", {gpt2_pattern()}},
                  {"smollm", {"\\p{N}", gpt2_pattern()}},
                  {"llama-bpe", {llama3_pattern()}, true},
                  {"dbrx", {llama3_pattern()}},
                  {"gpt-4o", {o200k_pattern()}},
                  {"qwen2", {qwen2_pattern()}}};
    for (const auto& split : splits)
        if (split.whole_pieces == vocabulary.whole_pieces &&
            std::ranges::equal(split.patterns, vocabulary.patterns, {}, {}, &SplitPattern::regex))
            return std::string(split.name);
    throw Error(concat(source, ": the tokenizer's split", whole, " has no name in GGUF; expected GPT-2's, ",
                       "SmolLM's, Llama 3's, Qwen2's or o200k's"));
}

/// The tokens of a file, by id.
struct TokenTable {
    std::vector<std::string> texts;
    std::vector<std::int32_t> types;

    explicit TokenTable(std::int64_t size)
        : texts(static_cast<std::size_t>(size)), types(texts.size(), unused_token) {
        for (std::size_t id = 0; id < texts.size(); ++id) texts[id] = concat("[PAD", id, "]");
    }
    void set(std::size_t id, std::string text, std::int32_t type) {
        texts.at(id) = std::move(text);
        types.at(id) = type;
    }
};

/// tokenizer.json spells the tokens in GPT-2's characters for bytes (byte_characters.h). GGUF uses the same
/// spelling.
GgufMetadata byte_pair_metadata(const BytePairVocabulary& vocabulary, std::int64_t size,
                                const std::string& source) {
    // Some tokenizers have NFC, which llama.cpp leaves out; export says so.
    check(vocabulary.normalizer.empty() ||
              vocabulary.normalizer == std::vector<NormalizerStep>{UnicodeForm::nfc},
          source,
          ": GGUF has no key for the tokenizer's normalizer; expected NFC, or a tokenizer without one");
    TokenTable table(size);
    std::vector<std::string> merges;
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id)
        if (!vocabulary.tokens[id].empty())
            table.set(id, characters_of_bytes(vocabulary.tokens[id]), normal_token);
    for (const AddedToken& token : vocabulary.added)
        table.set(static_cast<std::size_t>(token.id), token.text, token.special ? control_token : user_token);
    for_each_merge_text(vocabulary, [&](const std::string& text) { merges.push_back(text); });
    return {{"tokenizer.ggml.model", std::string("gpt2")},
            {"tokenizer.ggml.pre", split_name(vocabulary, source)},
            {"tokenizer.ggml.tokens", std::move(table.texts)},
            {"tokenizer.ggml.token_type", std::move(table.types)},
            {"tokenizer.ggml.merges", std::move(merges)}};
}

std::string with_blanks(std::string text, std::string_view from, std::string_view to) {
    for (std::size_t place = 0; (place = text.find(from, place)) != std::string::npos; place += to.size())
        text.replace(place, from.size(), to);
    return text;
}

/// A model of SentencePiece. llama.cpp computes merges of characters (its model "llama") and Unigram ("t5").
class SentencePieceMetadata {
  public:
    SentencePieceMetadata(const BytePairVocabulary& vocabulary, std::int64_t size, const std::string& source)
        : vocabulary_(vocabulary), source_(source), table_(size) {}

    GgufMetadata metadata() {
        const bool is_unigram = vocabulary_.model == SubwordModel::unigram;
        check(vocabulary_.byte_fallback != is_unigram, source_, ": GGUF: the tokenizer is a model of ",
              is_unigram ? "Unigram with" : "character merges without", " byte fallback; llama.cpp has ",
              is_unigram ? "Unigram without it" : "merges with it");
        read_rules();
        fill_tokens();
        std::vector<float> scores(table_.texts.size());
        if (!vocabulary_.scores.empty())
            round_scores(scores);
        else
            score_merges(scores);
        GgufMetadata metadata{{"tokenizer.ggml.model", std::string(is_unigram ? "t5" : "llama")},
                              {"tokenizer.ggml.pre", std::string("default")},
                              {"tokenizer.ggml.tokens", std::move(table_.texts)},
                              {"tokenizer.ggml.scores", std::move(scores)},
                              {"tokenizer.ggml.token_type", std::move(table_.types)},
                              {"tokenizer.ggml.add_space_prefix", rules_.adds_blank}};
        if (vocabulary_.unknown >= 0)
            metadata.emplace_back("tokenizer.ggml.unknown_token_id", id_value(vocabulary_.unknown));
        if (!is_unigram) return metadata;
        metadata.emplace_back("tokenizer.ggml.remove_extra_whitespaces", rules_.removes_extra_blanks);
        if (!rules_.character_map.empty())
            metadata.emplace_back(
                "tokenizer.ggml.precompiled_charsmap",
                std::vector<std::uint8_t>(rules_.character_map.begin(), rules_.character_map.end()));
        return metadata;
    }

  private:
    /// Reads what happens to blanks, which models and the tokenizers library's files say in different ways.
    void read_rules() {
        const std::vector<NormalizerStep>& steps = vocabulary_.normalizer;
        const NormalizerStep prepends = PrependStep{std::string(blank_symbol)},
                             replaces = ReplaceStep{" ", std::string(blank_symbol)};
        const auto& metaspace = vocabulary_.metaspace;
        const auto* const model =
            steps.size() == 1 ? std::get_if<SentencePieceStep>(&steps.front()) : nullptr;
        bool is_known = vocabulary_.patterns.empty();
        rules_ = {.adds_blank = false, .removes_extra_blanks = false};
        if (model) {
            rules_ = *model;
            is_known = is_known && !metaspace;
        } else if (metaspace) {
            is_known = is_known && steps.empty() && !metaspace->splits;
            rules_.adds_blank = metaspace->prepend != Metaspace::Prepend::never;
        } else {
            rules_.adds_blank = steps == std::vector{prepends, replaces};
            is_known = is_known && (rules_.adds_blank || steps == std::vector{replaces});
        }
        const bool is_unigram = vocabulary_.model == SubwordModel::unigram;
        check(is_known && rules_.escapes_blanks && !rules_.blank_at_end &&
                  (is_unigram || (rules_.character_map.empty() && !rules_.removes_extra_blanks)),
              source_, ": GGUF has no keys for the tokenizer's normalizer and pre-tokenizer; expected ",
              "those of Llama 2, Mistral or Gemma");
    }

    void fill_tokens() {
        for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id)
            if (!vocabulary_.tokens[id].empty())
                table_.set(id, vocabulary_.tokens[id],
                           is_byte(vocabulary_.tokens[id]) ? byte_token : normal_token);
        for (const AddedToken& token : vocabulary_.added)
            // llama.cpp looks for these texts before it writes U+2581 for blanks.
            table_.set(static_cast<std::size_t>(token.id),
                       token.normalized ? with_blanks(token.text, blank_symbol, " ") : token.text,
                       token.special ? control_token : user_token);
        if (vocabulary_.unknown >= 0)
            table_.types.at(static_cast<std::size_t>(vocabulary_.unknown)) = unknown_token;
    }
    bool is_byte(std::string_view text) const {
        return vocabulary_.byte_fallback && text.size() == 6 && text.starts_with("<0x") &&
               text.ends_with('>');
    }

    void round_scores(std::vector<float>& scores) const {
        for (std::size_t id = 0; id < vocabulary_.scores.size(); ++id) {
            const double score = vocabulary_.scores[id];
            check(std::abs(score) <= std::numeric_limits<float>::max(), source_, ": GGUF: token ", id,
                  " has the score ", score, ", which is beyond float32");
            scores[id] = static_cast<float>(score);
        }
    }

    /// llama.cpp merges the pair whose result has the highest score, so a merge's place in the list becomes
    /// its result's score. Throws Error if the list says anything that scores cannot.
    void score_merges(std::vector<float>& scores) const {
        const auto refuse = [&](std::int32_t id, const char* reason) {
            throw Error(
                concat(source_, ": GGUF has scores in place of merges, and token ", id, ", '",
                       printable(vocabulary_.tokens[static_cast<std::size_t>(id)], {.max_characters = 40}),
                       "', ", reason));
        };
        std::vector<std::size_t> merges(vocabulary_.tokens.size());  // that result in each id
        std::int32_t last = -1;
        float score = 0.0f;
        for (const BytePairMerge& merge : vocabulary_.merges) {
            std::size_t& count = merges[static_cast<std::size_t>(merge.result)];
            if (merge.result != last && count > 0) refuse(merge.result, "has merges in several places");
            if (count++ == 0) scores[static_cast<std::size_t>(merge.result)] = -score++;
            last = merge.result;
        }
        for (std::size_t id = 0; id < scores.size(); ++id)
            if (id >= merges.size() || merges[id] == 0) scores[id] = -score;
        const TokenIndex index(vocabulary_.tokens);
        for (std::size_t id = 0; id < merges.size(); ++id) {
            if (table_.types[id] != normal_token) continue;
            const std::string_view text = vocabulary_.tokens[id];
            std::size_t pairs = 0;
            for (std::size_t cut = 1; cut < text.size(); ++cut)
                pairs += index.find(text.substr(0, cut)) >= 0 && index.find(text.substr(cut)) >= 0;
            if (pairs != merges[id]) refuse(static_cast<std::int32_t>(id), "lacks the merge of two tokens");
        }
    }

    const BytePairVocabulary& vocabulary_;
    const std::string& source_;
    TokenTable table_;
    SentencePieceStep rules_;
};

/// llama.cpp ends a text at the tokens that eos, eot and eom name, and at tokens that it knows by their
/// texts.
void add_end_tokens(GgufMetadata& metadata, const BytePairEncoding& encoding, const GgufText& text,
                    const std::string& source) {
    std::vector<std::int32_t> rest = text.tokens.end;
    const auto add = [&](const char* key, std::int32_t id) {
        metadata.emplace_back(key, id_value(id));
        std::erase(rest, id);
    };
    if (!rest.empty()) add("tokenizer.ggml.eos_token_id", rest.front());
    if (text.turn_end) add("tokenizer.ggml.eot_token_id", *text.turn_end);
    for (const char* const known :
         {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"})
        if (const auto id = encoding.added_token(known)) std::erase(rest, *id);
    if (!rest.empty() && !text.turn_end) add("tokenizer.ggml.eot_token_id", rest.front());
    if (!rest.empty()) add("tokenizer.ggml.eom_token_id", rest.front());
    check(rest.empty(), source, ": ", text.tokens.end.size(),
          " tokens end a text; GGUF has no key for token ", rest.empty() ? -1 : rest.front());
}

}  // namespace

GgufMetadata gguf_tokenizer_metadata(const Tokenizer* tokenizer, std::int64_t vocabulary,
                                     const GgufText& text, const std::string& source) {
    const BytePairEncoding* const encoding = tokenizer ? tokenizer->byte_pair_encoding() : nullptr;
    if (!encoding) return {{"tokenizer.ggml.model", std::string("none")}};
    check_tokenizer(*tokenizer, vocabulary, source);
    GgufMetadata metadata =
        encoding->vocabulary().model == SubwordModel::byte_pairs
            ? byte_pair_metadata(encoding->vocabulary(), vocabulary, source)
            : SentencePieceMetadata(encoding->vocabulary(), vocabulary, source).metadata();
    const std::vector<std::int32_t>&before = encoding->vocabulary().before,
          &after = encoding->vocabulary().after;
    if (text.tokens.begin) metadata.emplace_back("tokenizer.ggml.bos_token_id", id_value(*text.tokens.begin));
    add_end_tokens(metadata, *encoding, text, source);
    check(before.empty() || before == std::vector{text.tokens.begin.value_or(-1)}, source,
          ": the tokenizer puts ", before.size(),
          " tokens before a text; GGUF has a key for one, the bos token");
    check(after.empty() || (!text.tokens.end.empty() && after == std::vector{text.tokens.end.front()}),
          source, ": the tokenizer puts ", after.size(),
          " tokens after a text; GGUF has a key for one, the eos token");
    metadata.emplace_back("tokenizer.ggml.add_bos_token", !before.empty());
    metadata.emplace_back("tokenizer.ggml.add_eos_token", !after.empty());
    if (text.chat_template) metadata.emplace_back("tokenizer.chat_template", *text.chat_template);
    return metadata;
}

}  // namespace gradtile
