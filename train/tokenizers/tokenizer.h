#pragma once
/// Tokenizers: text to token ids and back.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <gradtile/core/enum_names.h>

namespace gradtile {

enum class TokenizerKind { characters, bytes };

template <>
struct EnumNames<TokenizerKind> {
    static constexpr std::array names = {std::pair{TokenizerKind::characters, std::string_view("characters")},
                                         std::pair{TokenizerKind::bytes, std::string_view("bytes")}};
};

/// An immutable value. Two tokenizers are equal if they give the same ids for every text.
///
/// bytes: the token id is the byte, vocabulary 256; accepts any text, UTF-8 or not.
/// characters: the distinct code points of a text in increasing order, as nanoGPT numbers them; accepts
/// UTF-8.
///
/// Nothing is normalised: a carriage return or a byte order mark is a token like any other, and
/// decode(encode(text)) == text. (load_dataset() drops a byte order mark at the start of a file first; see
/// dataset.h.)
class Tokenizer {
  public:
    static Tokenizer bytes();
    /// Throws Error naming `source` and the byte offset where the text is not UTF-8, and when it is empty.
    static Tokenizer characters_of(std::string_view text, std::string_view source);

    TokenizerKind kind() const;
    std::int64_t vocab_size() const;
    /// "bytes", or "characters (65)".
    std::string name() const;

    /// Returns the ids of a text; empty for an empty text. Throws Error naming `source` and the byte offset
    /// of invalid UTF-8 or of a character outside the vocabulary.
    std::vector<std::int32_t> encode(std::string_view text, std::string_view source) const;
    /// Returns the text of the ids. Throws Error for an id outside the vocabulary. Bytes are returned
    /// unchanged, valid UTF-8 or not.
    std::string decode(std::span<const std::int32_t> ids) const;

    /// Returns the value for a checkpoint: {"kind": "bytes"} or {"kind": "characters", "characters": "..."}.
    nlohmann::json to_json() const;
    /// Throws Error naming `source` when the value is not what to_json() writes.
    static Tokenizer from_json(const nlohmann::json& value, std::string_view source);

    bool operator==(const Tokenizer&) const = default;

  private:
    struct Bytes {
        bool operator==(const Bytes&) const = default;
    };
    struct Characters {
        std::vector<char32_t> alphabet;   ///< increasing; the id is the index
        std::vector<std::int32_t> id_of;  ///< by code point, up to the largest in the alphabet; -1: none
        bool operator==(const Characters&) const = default;
    };
    using Rules = std::variant<Bytes, Characters>;

    explicit Tokenizer(Rules rules) : rules_(std::move(rules)) {}
    static Tokenizer characters(std::vector<char32_t> alphabet);

    Rules rules_;
};

}  // namespace gradtile
