#pragma once
/// TokenSequence: token ids in order, in memory or in files.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gradtile/core/enum_names.h>

namespace gradtile {

/// The integer type in a token file without a header; a header states its type itself. automatic means
/// uint16, but a file that looks like uint32 is refused.
enum class TokenType { automatic, uint16, uint32 };

template <>
struct EnumNames<TokenType> {
    static constexpr std::array names = {std::pair{TokenType::automatic, std::string_view("auto")},
                                         std::pair{TokenType::uint16, std::string_view("uint16")},
                                         std::pair{TokenType::uint32, std::string_view("uint32")}};
};

struct Examples;
struct FileTokens;
/// The ids in one file or one memory block.
class TokenStorage;

/// A row's input tokens [begin, end) in a sequence; each target is the token after an input token.
struct TokenWindow {
    std::int64_t begin = 0, end = 0;
};

/// A cheap, immutable view of token ids. The ids are in memory, or are read from files when needed; several
/// pieces (shards) form one text. Copies share the storage. Several threads may read at once.
class TokenSequence {
  public:
    TokenSequence() = default;
    /// Ids in memory. `source` is their name in messages.
    TokenSequence(std::vector<std::int32_t> ids, std::string source);
    /// Each byte in the text is an id.
    static TokenSequence from_bytes(std::string text, std::string source);
    static TokenSequence from_file(FileTokens tokens);
    /// Ids that are trained on example by example. `examples` covers exactly these ids.
    static TokenSequence from_examples(std::vector<std::int32_t> ids, Examples examples, std::string source);
    static TokenSequence from_examples(TokenSequence tokens, Examples examples);
    /// The same tokens with another name in messages.
    TokenSequence named(std::string source) const;

    /// Concatenates several sequences.
    static TokenSequence joined(std::span<const TokenSequence> parts, std::string source);

    std::int64_t size() const { return size_; }
    /// Where the tokens come from, for messages: usually a file name.
    const std::string& source() const { return source_; }
    /// The examples in the sequence; null if it is one text.
    const Examples* examples() const { return examples_.get(); }

    /// Copies tokens [begin, begin + out.size()) to `out`. Throws Error when the range is outside the
    /// sequence, when a file cannot be read or became shorter, and when it now holds an id outside its
    /// vocabulary. Makes one system call for up to 8192 tokens in a file.
    void read(std::int64_t begin, std::span<std::int32_t> out) const;
    /// Throws Error when a file in this sequence was changed since it was opened; see require_unchanged().
    void require_unchanged() const;
    /// Returns tokens [begin, end) as a sequence without copying them. Throws Error when this divides one of
    /// the sequence's examples().
    TokenSequence slice(std::int64_t begin, std::int64_t end) const;

  private:
    struct Piece {
        std::shared_ptr<const TokenStorage> storage;
        std::int64_t first;  ///< index of the part's first id in the storage
        std::int64_t begin;  ///< index of the part's first id in the sequence
        std::int64_t length;
    };
    TokenSequence(std::shared_ptr<const TokenStorage> storage, std::int64_t length, std::string source);
    void append(Piece piece);

    std::vector<Piece> pieces_;
    std::int64_t size_ = 0;
    std::string source_;
    std::shared_ptr<const Examples> examples_;
};

}  // namespace gradtile
