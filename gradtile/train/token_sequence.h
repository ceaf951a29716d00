#pragma once
/// TokenSequence: token ids in order, wherever they live.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gradtile {

/// A cheap, immutable view of token ids: held in memory or mapped from files, one, two or four bytes each, in
/// one piece or several (shards read as one text). Copying shares the storage. Reading is safe from several
/// threads.
class TokenSequence {
  public:
    TokenSequence() = default;
    /// Ids held in memory. `source` names them in messages.
    TokenSequence(std::vector<std::int32_t> ids, std::string source);
    /// Ids in memory that `owner` keeps alive (a mapped file).
    TokenSequence(std::shared_ptr<const void> owner, std::span<const std::uint8_t> ids, std::string source);
    TokenSequence(std::shared_ptr<const void> owner, std::span<const std::uint16_t> ids, std::string source);
    TokenSequence(std::shared_ptr<const void> owner, std::span<const std::uint32_t> ids, std::string source);

    /// Several sequences, read one after another as one.
    static TokenSequence joined(std::span<const TokenSequence> parts, std::string source);

    std::int64_t size() const { return size_; }
    /// Where the tokens come from, for messages: a file name as a rule.
    const std::string& source() const { return source_; }

    /// Copies tokens [begin, begin + out.size()) to out; throws Error when they are not all there.
    void read(std::int64_t begin, std::span<std::int32_t> out) const;
    /// Tokens [begin, end) as a sequence of their own; no copy.
    TokenSequence slice(std::int64_t begin, std::int64_t end) const;

  private:
    struct Piece {
        std::shared_ptr<const void> owner;
        const std::byte* data;
        int width;           ///< bytes an id
        std::int64_t begin;  ///< place of its first id in the sequence
        std::int64_t length;
    };
    void append(Piece piece);

    std::vector<Piece> pieces_;
    std::int64_t size_ = 0;
    std::string source_;
};

}  // namespace gradtile
