#include <gradtile/tools/formats/gguf_metadata.h>

#include <gradtile/core/check.h>
#include <gradtile/train/tokenizers/byte_characters.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/tokenizer_json.h>

namespace gradtile {
namespace {

/// llama.cpp's numbers for file types (enum llama_ftype) and token types (enum llama_token_type).
constexpr std::uint32_t ftype_f32 = 0, ftype_f16 = 1, ftype_bf16 = 32;
constexpr std::int32_t normal_token = 1, control_token = 3, user_token = 4, unused_token = 5;

std::uint32_t u32(std::int64_t value) {
    return static_cast<std::uint32_t>(value);  // the settings' limits are below 2^32
}

std::uint32_t file_type(DType dtype) {
    return dtype == DType::f16 ? ftype_f16 : dtype == DType::bf16 ? ftype_bf16 : ftype_f32;
}

/// Returns llama.cpp's name for a tokenizer's pattern.
std::string split_name(const BytePairVocabulary& vocabulary, const std::string& source) {
    const std::string pattern = vocabulary.patterns.size() == 1 ? vocabulary.patterns.front().regex : "";
    if (pattern == gpt2_pattern()) return "gpt-2";
    if (pattern == llama3_pattern()) return "llama-bpe";
    if (pattern == o200k_pattern()) return "gpt-4o";
    throw Error(concat(source, ": the tokenizer's split has no name in GGUF; expected GPT-2's, Llama 3's or ",
                       "o200k's"));
}

/// tokenizer.json spells the tokens in GPT-2's characters for bytes (byte_characters.h). GGUF uses the same
/// spelling.
GgufMetadata byte_pair_metadata(const BytePairVocabulary& vocabulary, std::int64_t size,
                                const std::string& source) {
    check(vocabulary.model == SubwordModel::byte_pairs, source,
          ": GGUF: the tokenizer is a model of SentencePiece; expected byte-level BPE");
    check(vocabulary.normalizer.empty(), source,
          ": GGUF has no key for the tokenizer's normalizer; expected a tokenizer without one");
    std::vector<std::string> tokens(static_cast<std::size_t>(size)), merges;
    std::vector<std::int32_t> types(tokens.size(), unused_token);
    for (std::size_t id = 0; id < tokens.size(); ++id) tokens[id] = concat("[PAD", id, "]");
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
        if (vocabulary.tokens[id].empty()) continue;
        tokens.at(id) = characters_of_bytes(vocabulary.tokens[id]);
        types.at(id) = normal_token;
    }
    for (const AddedToken& token : vocabulary.added) {
        tokens[static_cast<std::size_t>(token.id)] = token.text;
        types[static_cast<std::size_t>(token.id)] = token.special ? control_token : user_token;
    }
    for_each_merge_text(vocabulary, [&](const std::string& text) { merges.push_back(text); });
    return {{"tokenizer.ggml.model", std::string("gpt2")},
            {"tokenizer.ggml.pre", split_name(vocabulary, source)},
            {"tokenizer.ggml.tokens", std::move(tokens)},
            {"tokenizer.ggml.token_type", std::move(types)},
            {"tokenizer.ggml.merges", std::move(merges)}};
}

/// llama.cpp ends a text at the tokens that eos, eot and eom name, and at tokens that it knows by their
/// texts.
void add_end_tokens(GgufMetadata& metadata, const BytePairEncoding& encoding, const GgufText& text,
                    const std::string& source) {
    std::vector<std::int32_t> rest = text.tokens.end;
    const auto add = [&](const char* key, std::int32_t id) {
        metadata.emplace_back(key, u32(id));
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

GgufMetadata gguf_model_metadata(const ModelConfig& config, DType dtype, const std::string& source) {
    const bool llama = rotates_heads(config.positions);
    const std::string name = llama ? "llama" : "gpt2", prefix = name + ".";
    check(llama || config.activation == Activation::gelu_tanh, source, ": activation ",
          name_of(config.activation), " cannot be stored in GGUF's gpt2; it has gelu-tanh");
    check(!llama || !config.bias, source, ": bias true cannot be stored in GGUF's llama; it has none");
    GgufMetadata metadata{
        {"general.architecture", name},
        {"general.file_type", file_type(dtype)},
        {prefix + "vocab_size", u32(config.vocabulary)},
        {prefix + "context_length", u32(config.context)},
        {prefix + "embedding_length", u32(config.width)},
        {prefix + "block_count", u32(config.layers)},
        {prefix + "feed_forward_length", u32(config.hidden_width())},
        {prefix + "attention.head_count", u32(config.heads)},
        {prefix + (llama ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
         static_cast<float>(config.norm_epsilon)}};
    if (!llama) return metadata;
    metadata.emplace_back(prefix + "attention.head_count_kv", u32(config.key_value_heads()));
    metadata.emplace_back(prefix + "rope.dimension_count", u32(config.head_dim()));
    metadata.emplace_back(prefix + "rope.freq_base", static_cast<float>(config.rope_base));
    return metadata;
}

GgufMetadata gguf_tokenizer_metadata(const Tokenizer* tokenizer, std::int64_t vocabulary,
                                     const GgufText& text, const std::string& source) {
    const BytePairEncoding* const encoding = tokenizer ? tokenizer->byte_pair_encoding() : nullptr;
    if (!encoding) return {{"tokenizer.ggml.model", std::string("none")}};
    check_tokenizer(*tokenizer, vocabulary, source);
    GgufMetadata metadata = byte_pair_metadata(encoding->vocabulary(), vocabulary, source);
    const std::vector<std::int32_t>&before = encoding->vocabulary().before,
          &after = encoding->vocabulary().after;
    if (text.tokens.begin) metadata.emplace_back("tokenizer.ggml.bos_token_id", u32(*text.tokens.begin));
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
