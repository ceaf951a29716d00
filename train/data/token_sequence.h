#pragma once
/// TokenSequence: token ids in order, wherever they live.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gradtile/train/data/data_content.h>
#include <gradtile/train/data/data_file.h>

namespace gradtile {

/// Ids in one place.
class TokenStorage;

/// Ids that stay in a file: little-endian integers of two or four bytes, one after another.
struct FileTokens {
    std::shared_ptr<const DataFile> file;
    DataContent content{};    ///< of the file, for require_unchanged()
    std::int64_t offset = 0;  ///< byte where the first id begins
    int id_bytes = 2;
    std::int64_t count = 0;
    std::int64_t vocabulary = 0;  ///< every id is below it; at most 2^31
};

/// A cheap, immutable view of token ids: held in memory or read from files when they are asked for, in one
/// piece or several (shards read as one text). Copying shares the storage. Reading is safe from several
/// threads.
class TokenSequence {
  public:
    TokenSequence() = default;
    /// Ids held in memory. `source` names them in messages.
    TokenSequence(std::vector<std::int32_t> ids, std::string source);
    /// The bytes of a text, each an id.
    static TokenSequence of_bytes(std::string text, std::string source);
    static TokenSequence of_file(FileTokens tokens);

    /// Several sequences, read one after another as one.
    static TokenSequence joined(std::span<const TokenSequence> parts, std::string source);

    std::int64_t size() const { return size_; }
    /// Where the tokens come from, for messages: a file name as a rule.
    const std::string& source() const { return source_; }

    /// Copies tokens [begin, begin + out.size()) to out; throws Error when they are not all there, when a
    /// file cannot be read or has become shorter, and when it now holds an id outside its vocabulary. One
    /// system call for up to 8192 tokens of a file.
    void read(std::int64_t begin, std::span<std::int32_t> out) const;
    /// Throws Error when a file under it was changed since it was opened; see require_unchanged().
    void require_unchanged() const;
    /// Tokens [begin, end) as a sequence of their own; no copy.
    TokenSequence slice(std::int64_t begin, std::int64_t end) const;

  private:
    struct Piece {
        std::shared_ptr<const TokenStorage> storage;
        std::int64_t first;  ///< place of its first id in the storage
        std::int64_t begin;  ///< place of its first id in the sequence
        std::int64_t length;
    };
    TokenSequence(std::shared_ptr<const TokenStorage> storage, std::int64_t length, std::string source);
    void append(Piece piece);

    std::vector<Piece> pieces_;
    std::int64_t size_ = 0;
    std::string source_;
};

}  // namespace gradtile
