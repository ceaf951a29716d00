#pragma once
/// Reads a subword tokenizer from other projects' JSON files.
///
/// Tokens and merges are collected in two compact lists while the text is parsed, because a file's members
/// have no fixed order: merges may precede the vocabulary that they refer to. Error messages do not contain
/// the file's name.
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/internal/joined_texts.h>
#include <gradtile/train/tokenizers/internal/token_index.h>

namespace gradtile {

class TokenizerJsonReader {
  public:
    TokenizerJsonReader() = default;
    TokenizerJsonReader(const TokenizerJsonReader&) = delete;  // members hold references to this object
    TokenizerJsonReader& operator=(const TokenizerJsonReader&) = delete;

    /// Returns parse_json's routes for the long members in a tokenizer.json's object. `place` is this
    /// object's path in the text.
    std::vector<JsonRoute> tokenizer_routes(const std::vector<std::string_view>& place = {});
    /// Returns the vocabulary. `value` is tokenizer.json's object in parse_json's result.
    BytePairVocabulary read_tokenizer(const JsonValue& value);

    /// Returns the route for encoder.json's text, which is one long object.
    std::vector<JsonRoute> encoder_routes();
    /// Returns the vocabulary. `value` is parse_json's result, `merges` is vocab.bpe's text.
    BytePairVocabulary read_encoder(const JsonValue& value, std::string_view merges);

  private:
    using Of = JsonElements::Of;

    void add_token(std::string_view name, const JsonValue& id);
    void add_scored_token(const JsonValue& pair);
    void add_encoder_token(const std::string& name, const JsonValue& id);
    void add_added_token(const JsonValue& token);
    void add_merge(const JsonValue& merge);
    void add_merge(std::string_view line);

    BytePairVocabulary take_vocabulary();
    void read_model(const JsonValue& model);
    void read_unknown(const JsonValue& model);
    void add_tokens();
    void add_byte_token(std::int32_t id, std::string_view name, bool is_added);
    std::string bytes_of(std::string_view name) const;
    void add_merges(const TokenIndex& index);
    void read_normalizer(const JsonValue& value);
    void read_pre_tokenizer(const JsonValue& value, const char* place);
    void add_pattern(std::string regex, bool must_cover = false);
    void read_byte_level(const JsonValue& value);
    void read_metaspace(const JsonValue& value);
    bool is_replaced(const std::string& text) const;
    void read_split(const JsonValue& value);
    void read_decoder(const JsonValue& value);
    void read_post_processor(const JsonValue& value);
    void read_template(const JsonValue& value);

    BytePairVocabulary vocabulary_;
    JoinedTexts names_;              // the tokens as the file spells them
    std::vector<std::int32_t> ids_;  // the tokens' ids, in the order of names_
    JoinedTexts added_names_;        // added tokens' names in the vocabulary
    JoinedTexts merge_parts_;        // each merge's left and right part, as the file spells them
    bool is_byte_level_ = false;

    /// BPE's vocabulary is an object with each token's id. Unigram's is a list of tokens and their scores.
    class VocabularyHandler final : public JsonHandler {
      public:
        explicit VocabularyHandler(TokenizerJsonReader& reader)
            : ids_(Of::object,
                   [&](const std::string& name, const JsonValue& v) { reader.add_token(name, v); }),
              scores_(Of::array,
                      [&](const std::string&, const JsonValue& v) { reader.add_scored_token(v); }) {}
        void scalar(JsonValue value) override {
            ids_.scalar(value);
            scores_.scalar(std::move(value));
        }
        void name(std::string name) override {
            ids_.name(name);
            scores_.name(std::move(name));
        }
        void begin_array() override {
            ids_.begin_array();
            scores_.begin_array();
        }
        void begin_object() override {
            ids_.begin_object();
            scores_.begin_object();
        }
        void end() override {
            ids_.end();
            scores_.end();
        }

      private:
        JsonElements ids_, scores_;  // each skips a value of the other type
    };
    VocabularyHandler vocab_{*this};
    JsonElements encoder_{
        Of::object, [this](const std::string& name, const JsonValue& v) { add_encoder_token(name, v); }};
    JsonElements added_{Of::array, [this](const std::string&, const JsonValue& v) { add_added_token(v); }};
    JsonElements merges_{Of::array, [this](const std::string&, const JsonValue& v) { add_merge(v); }};
};

}  // namespace gradtile
