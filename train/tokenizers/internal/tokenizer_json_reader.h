#pragma once
/// Reads a byte-level BPE tokenizer from the JSON files of other projects.
///
/// Tokens and merges are collected in two compact lists while the text is parsed, because the order of a
/// file's members is not fixed: merges may precede the vocabulary that they refer to. Error messages do not
/// contain the file's name.
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/internal/packed_texts.h>
#include <gradtile/train/tokenizers/internal/token_index.h>

namespace gradtile {

class TokenizerJsonReader {
  public:
    TokenizerJsonReader() = default;
    TokenizerJsonReader(const TokenizerJsonReader&) = delete;  // its members refer to it
    TokenizerJsonReader& operator=(const TokenizerJsonReader&) = delete;

    /// Returns parse_json's routes for the long members of a tokenizer.json's object. `place` is the path of
    /// this object in the text.
    std::vector<JsonRoute> tokenizer_routes(const std::vector<std::string_view>& place = {});
    /// Returns the vocabulary. `value` is the object of tokenizer.json in parse_json's result.
    BytePairVocabulary read_tokenizer(const JsonValue& value);

    /// Returns the route for the text of encoder.json, which is one long object.
    std::vector<JsonRoute> encoder_routes();
    /// Returns the vocabulary. `value` is parse_json's result, `merges` the text of vocab.bpe.
    BytePairVocabulary read_encoder(const JsonValue& value, std::string_view merges);

  private:
    using Of = JsonElements::Of;

    void add_token(std::string_view name, const JsonValue& id);
    void add_encoder_token(const std::string& name, const JsonValue& id);
    void add_added_token(const JsonValue& token);
    void add_merge(const JsonValue& merge);
    void add_merge(std::string_view line);

    BytePairVocabulary take_vocabulary();
    void add_tokens();
    void add_merges(const TokenIndex& index);
    void read_pre_tokenizer(const JsonValue& value, const char* place);
    void add_pattern(std::string regex, bool must_cover = false);
    void read_byte_level(const JsonValue& value);
    void read_split(const JsonValue& value);
    void read_post_processor(const JsonValue& value);
    void read_template(const JsonValue& value);

    BytePairVocabulary vocabulary_;
    PackedTexts names_;              // the tokens as the file spells them
    std::vector<std::int32_t> ids_;  // the ids of names_
    PackedTexts added_names_;        // the names of added tokens in the vocabulary
    PackedTexts merge_parts_;        // left and right part of each merge, as the file spells them
    bool is_byte_level_ = false;

    JsonElements vocab_{Of::object,
                        [this](const std::string& name, const JsonValue& v) { add_token(name, v); }};
    JsonElements encoder_{
        Of::object, [this](const std::string& name, const JsonValue& v) { add_encoder_token(name, v); }};
    JsonElements added_{Of::array, [this](const std::string&, const JsonValue& v) { add_added_token(v); }};
    JsonElements merges_{Of::array, [this](const std::string&, const JsonValue& v) { add_merge(v); }};
};

}  // namespace gradtile
